//! The hosts, and what is done to them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;
use tec_e2e::admin::Admin;

use crate::Args;
use crate::host::{Host, Process, pause};

const ADMIN: &str = "/etc/kubernetes/admin.conf";
const LIMIT: Duration = Duration::from_mins(3);
/// Exit status for a disk that must be recovered first.
const NOT_READY: i32 = 3;

pub(crate) struct Stage<'a> {
    pub(crate) args: &'a Args,
    pub(crate) began: Instant,
    pub(crate) admin: Admin,
}

impl Stage<'_> {
    pub(crate) fn say(&self, what: &str) -> anyhow::Result<()> {
        let seconds = self.began.elapsed().as_secs();
        Ok(writeln!(std::io::stdout(), "{seconds:>4} s  {what}")?)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.args.bin_dir.join(name)
    }

    pub(crate) fn kubectl(&self, host: &Host, arguments: &[&str]) -> anyhow::Result<String> {
        let mut all = vec!["--kubeconfig", ADMIN];
        all.extend(arguments);
        host.output(&self.args.kubernetes.join("kubectl"), &all)
    }

    /// Objects of a kind, or one object, as JSON.
    pub(crate) fn json(&self, host: &Host, arguments: &[&str]) -> anyhow::Result<Value> {
        let text = self.kubectl(host, &[&["get"][..], arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", arguments.join(" ")))
    }

    /// Objects of a kind, as a list.
    pub(crate) fn items(&self, host: &Host, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
        let json = self.json(host, arguments)?;
        let items = json.get("items").and_then(Value::as_array);
        Ok(items.cloned().unwrap_or_default())
    }

    pub(crate) fn apply(&self, host: &Host, file: &Path) -> anyhow::Result<()> {
        let file = file.display().to_string();
        self.kubectl(host, &["apply", "-f", &file]).map(drop)
    }

    pub(crate) fn bootstrapper(&self, host: &Host, command: &str) -> anyhow::Result<Process> {
        let settings = host.path("bootstrapper.toml").display().to_string();
        let arguments = ["--config", &settings, command];
        host.spawn("bootstrapper", &self.program("bootstrapper"), &arguments)
    }

    /// The attestation key of a host, according to its settings.
    pub(crate) fn key(&self, host: &Host) -> anyhow::Result<String> {
        let settings = host.path("bootstrapper.toml").display().to_string();
        let program = self.program("bootstrapper");
        let key = host.output(&program, &["--config", &settings, "key"])?;
        Ok(key.trim().to_owned())
    }

    pub(crate) fn boot(&self, host: &mut Host) -> anyhow::Result<()> {
        host.reboot()?;
        let early = self.bootstrapper(host, "run")?;
        ended(host, early, NOT_READY)
    }

    /// Waits until exactly these nodes exist and are ready.
    pub(crate) fn nodes_are_ready(&self, first: &Host, names: &[&str]) -> anyhow::Result<()> {
        let names: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
        until(&format!("{names:?}, ready"), || {
            self.items(first, &["nodes"]).is_ok_and(|nodes| {
                let ready: BTreeSet<String> = nodes.iter().filter_map(name_if_ready).collect();
                ready == names && nodes.len() == names.len()
            })
        })
    }
}

fn name_if_ready(node: &Value) -> Option<String> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let is = |condition: &Value, member: &str, text: &str| {
        condition.get(member).and_then(Value::as_str) == Some(text)
    };
    let ready = conditions.iter().any(|one| is(one, "type", "Ready") && is(one, "status", "True"));
    let name = node.pointer("/metadata/name")?.as_str()?;
    ready.then(|| name.to_owned())
}

pub(crate) fn ended(host: &Host, process: Process, expected: i32) -> anyhow::Result<()> {
    let status = process.wait()?;
    anyhow::ensure!(
        status == Some(expected),
        "the bootstrapper of {} ended with {status:?}, not {expected}; see {}",
        host.name,
        host.path("bootstrapper.log").display()
    );
    Ok(())
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !is_so() {
        anyhow::ensure!(begin.elapsed() < LIMIT, "{what}: timed out after {} s", LIMIT.as_secs());
        for _ in 0..10 {
            pause();
        }
    }
    Ok(())
}
