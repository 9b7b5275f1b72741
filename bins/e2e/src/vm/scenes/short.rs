//! First boot, reboot, a boot that was tampered with.

use anyhow::ensure;
use serde_json::json;
use tec_guest::node::marks::Mark;

use crate::vm::boot::Ended;
use crate::vm::node::Node;
use crate::vm::stage::Stage;
use crate::volume;

impl Stage {
    /// First boot, the content of the disk afterwards, reboot, and a boot with a different command line.
    pub(in crate::vm) fn short(&mut self) -> anyhow::Result<()> {
        self.story.scene('a', "First boot, reboot, a boot that was tampered with");
        let mut story = std::mem::take(&mut self.story);
        let image = story.works("the image of the nodes is approved", || self.current())?;
        let mut one = self.node("one", &image)?;
        let boot = story.works(
            "first boot: Ignition merges the server's config, encrypts, binds; the root runs",
            || {
                let boot = one.boot()?;
                ensure!(boot.opened()? == 1, "the root is not new");
                for mark in [Mark::FirstBoot, Mark::Fetched, Mark::Bound] {
                    ensure!(boot.at(mark).is_some(), "there was no step {mark}");
                }
                let root = boot.steps.last().map(|step| step.text.as_str());
                ensure!(root == Some("boots=1 ignition=true"), "the root says {root:?}");
                Ok(boot)
            },
        )?;
        self.timed("first boot", &boot);
        let shown = story.works("the disk is bound as documented, and by nothing else", || {
            self.look_at_disk(&one)
        })?;
        story.shows("what Clevis and cryptsetup say of it", &shown);
        let boot = story.works("reboot: Clevis opens the disk", || {
            let boot = one.boot()?;
            ensure!(boot.opened()? == 2, "the root is a different one");
            ensure!(!boot.was_first(), "the disk was created again");
            Ok(boot)
        })?;
        self.timed("reboot", &boot);
        let id = self.machine_of(&one)?;
        let changed = self.image("short-command-line", |parts| parts.command_line = " debug")?;
        story.refused("the command line is changed, reboot", "TEC-A412", || {
            one.install(&changed)?;
            let boot = one.boot()?;
            Ok(match boot.ended()? {
                Ended::Refused(code) => Err((code, boot.report())),
                other => anyhow::bail!("{other:?}"),
            })
        })?;
        let (_, text) = self.explained(id)?;
        ensure!(
            text.contains("kernel command line in GRUB"),
            "the explanation does not name the \
             command line: {text}"
        );
        story.shows("what an admin reads", &text);
        one.install(&image)?;
        self.story = story;
        self.keep(one);
        Ok(())
    }

    /// Checks that what third-party programs report about the volume matches the pin's documentation.
    fn look_at_disk(&self, one: &Node) -> anyhow::Result<String> {
        let root = one.root()?;
        let run = |program: &str, words: &[&str]| {
            let mut command = volume::command(program);
            self.logs.must(command.args(words).arg(&root))
        };
        let dump = run("cryptsetup", &["luksDump"])?;
        let slots = dump.lines().filter(|line| line.trim_end().ends_with(": luks2")).count();
        ensure!(slots == 1, "the throw-away key is still there: {dump}");
        ensure!(dump.contains("0: clevis"), "there is no token: {dump}");
        let list = run("clevis", &["luks", "list", "-d"])?;
        ensure!(list.trim() == "1: unknown pin 'trustee'", "clevis lists {list}");
        let header = volume::sealed_header(&self.logs, &root)?;
        let [_, _, kbs] = self.anchor.urls()?;
        // docs/reference/clevis-pin.md, "Sealed form".
        let expected = json!({"alg": "dir", "enc": "A256GCM", "clevis": {
            "pin": "trustee",
            "servers": [{ "url": kbs, "cert": self.anchor.ca()? }],
            "path": format!("default/{}/root", self.machine_of(one)?),
            "initdata": null,
            "num_retries": null,
            "trustee": {},
        }});
        ensure!(header == expected, "unexpected header: {header}");
        Ok(format!(
            "$ clevis luks list -d {root}\n{list}$ cryptsetup luksDump {root}\n{dump}",
            root = root.display()
        ))
    }
}
