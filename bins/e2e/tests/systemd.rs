//! The units of `node-agent` under systemd as PID 1, in a container with this machine's programs: real sandboxes,
//! paths and shutdown locks; no timer elapses. Needs root.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::rotation::Keys;
use tec_e2e::load;
use tec_e2e::machine::Machine;
use tec_e2e::pair::Pair;
use tec_tpm::direct::Tpm;
use tec_tpm::tpm::AnyTpm as _;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../node-agent/deploy/systemd");
/// How often a state is looked at until it is there, ten times a second.
const LOOKS: u32 = 600;

/// A file as a block device, so that `lsblk` finds it as on a node.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Self {
        let mut attach = Command::new("losetup");
        Self(said(attach.args(["--find", "--show"]).arg(file)).trim().to_owned())
    }

    /// What udev, which does not run in a container, would record for `lsblk`.
    fn described(&self, directory: &Path) -> PathBuf {
        let number = said(Command::new("stat").args(["--format=%Hr:%Lr", &self.0]));
        fs::create_dir_all(directory.join("data")).unwrap();
        let device = directory.join("data").join(format!("b{}", number.trim()));
        fs::write(device, "I:1\nE:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_VERSION=2\n").unwrap();
        directory.to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A container whose PID 1 is systemd. Its root is this machine's, with everything that it writes elsewhere.
struct System {
    nspawn: Child,
    root: PathBuf,
    _disk: Loop,
}

impl System {
    fn boot(pair: &Pair, boot: &Path, environment: &str) -> Self {
        let own = pair.directory.path().join("system");
        let [root, upper, work] = ["root", "upper", "work"].map(|name| own.join(name));
        for directory in [&root, &upper, &work] {
            fs::create_dir_all(directory).unwrap();
        }
        let layers = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
        said(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &layers]).arg(&root));
        install_units(&root, environment);
        let disk = Loop::of(&pair.machine.disk());
        let devices = disk.described(&own.join("udev"));
        let bind = |from: &Path, to: &str| format!("--bind={}:{to}", from.display());
        let place = pair.directory.path();
        let nspawn = Command::new("systemd-nspawn")
            .args(["--quiet", "--register=no", "--keep-unit", "--capability=all", "--console=pipe"])
            .arg(format!("--directory={}", root.display()))
            .arg(format!("--bind={}", disk.0))
            .arg(bind(&pair.settings.node_agent(), "/usr/bin/node-agent"))
            .arg(bind(place, place.to_str().unwrap()))
            .arg(bind(boot, "/boot"))
            .arg(bind(&devices, "/run/udev"))
            .args(["--boot", "systemd.unit=sysinit.target"])
            .stdin(Stdio::null())
            .stdout(fs::File::create(own.join("console")).unwrap())
            .stderr(Stdio::null())
            .spawn();
        assert!(nspawn.is_ok(), "systemd-nspawn is missing; run `cargo xtask tools`");
        let nspawn = nspawn.unwrap();
        let system = Self { nspawn, root, _disk: disk };
        until("systemd is up", || {
            let state = system.systemctl(&["is-active", "sysinit.target"])?;
            Ok(state.status.success())
        });
        system
    }

    /// PID of systemd, as this machine counts.
    fn leader(&self) -> anyhow::Result<u32> {
        let mut pid = self.nspawn.id();
        loop {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
            let child = children.split_whitespace().next().context("systemd does not run yet")?;
            pid = child.parse()?;
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let mut names = status.lines().filter_map(|line| line.strip_prefix("NSpid:"));
            if names.next().is_some_and(|pids| pids.split_whitespace().last() == Some("1")) {
                return Ok(pid);
            }
        }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Output> {
        let target = self.leader()?.to_string();
        let enter = ["--mount", "--uts", "--ipc", "--pid", "--wd=/", "--target", &target, program];
        let mut command = Command::new("nsenter");
        Ok(command.args(enter).args(arguments).stdin(Stdio::null()).output()?)
    }

    fn systemctl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.run("systemctl", arguments)
    }

    /// Starts a unit to its end. Returns the exit code of its program, and what it printed.
    fn result(&self, unit: &str) -> (String, String) {
        let started = self.systemctl(&["start", unit]).unwrap();
        let show = ["show", "--value", "--property=ExecMainStatus", unit];
        let code = String::from_utf8(self.systemctl(&show).unwrap().stdout).unwrap();
        let journal = self.journal(unit).unwrap();
        assert_eq!(started.status.success(), code.trim() == "0", "{started:?} {journal}");
        (code.trim().to_owned(), journal)
    }

    fn journal(&self, unit: &str) -> anyhow::Result<String> {
        let printed = self.run("journalctl", &["--no-pager", "--output=cat", "--unit", unit])?;
        Ok(String::from_utf8(printed.stdout)?)
    }

    /// Who holds a shutdown lock.
    fn holders(&self) -> anyhow::Result<String> {
        let listed = self.run("systemd-inhibit", &["--list", "--no-pager", "--no-legend"])?;
        ensure!(listed.status.success(), "{listed:?}");
        Ok(String::from_utf8(listed.stdout)?)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // The end of nspawn alone leaves the container.
        if let Ok(leader) = self.leader() {
            let _ = Command::new("kill").args(["-KILL", &leader.to_string()]).status();
        }
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.root).status();
    }
}

fn install_units(root: &Path, environment: &str) {
    let units = root.join("usr/lib/systemd/system");
    for unit in fs::read_dir(UNITS).unwrap() {
        let unit = unit.unwrap();
        let name = unit.file_name().into_string().unwrap();
        let kind = Path::new(&name).extension().and_then(|kind| kind.to_str());
        if !matches!(kind, Some("path" | "service" | "timer")) {
            continue;
        }
        fs::copy(unit.path(), units.join(&name)).unwrap();
        if kind == Some("service") {
            let drop_ins = root.join("etc/systemd/system").join(format!("{name}.d"));
            fs::create_dir_all(&drop_ins).unwrap();
            fs::write(drop_ins.join("test.conf"), format!("[Service]\n{environment}")).unwrap();
        }
    }
}

/// The TPM and the event log of a machine, for its units.
fn environment(machine: &Machine) -> String {
    let log = machine.event_log();
    format!("Environment=TEC_TCTI={} TEC_EVENT_LOG={}\n", machine.tcti(), log.display())
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {words} (root is needed)");
    String::from_utf8(output.stdout).unwrap()
}

fn until(what: &str, is_there: impl Fn() -> anyhow::Result<bool>) {
    let mut last = None;
    for _ in 0..LOOKS {
        match is_there() {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => last = Some(error),
        }
        load::pause(100);
    }
    panic!("waited in vain until {what}: {last:?}");
}

#[test]
fn the_timers_units_attest_replace_the_key_and_refresh_the_ca_in_their_sandboxes() {
    let mut pair = Pair::start().unwrap();
    let empty = pair.directory.path().join("boot");
    fs::create_dir(&empty).unwrap();
    let system = System::boot(&pair, &empty, &environment(&pair.machine));
    let (code, words) = system.result("tec-attest.service");
    assert_eq!(code, "0", "{words}");
    assert!(words.contains(&format!("machine {} attested", pair.id)), "{words}");

    let before = *pair.kept().unwrap().current();
    pair.anchor.tec(&["key", "rotate", &pair.id.to_string()]).unwrap();
    let (code, words) = system.result("tec-key-rotate.service");
    assert_eq!(code, "0", "{words}");
    let kept = pair.kept().unwrap();
    assert!(matches!(kept, Keys::Settled { current } if current != before), "{kept:?}");

    let (code, words) = system.result("tec-refresh-ca.service");
    assert_eq!(code, "0", "{words}");

    let tpm = Tpm::open(&pair.machine.tcti()).unwrap();
    tpm.pcr_extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("a module")).unwrap();
    drop(tpm);
    let (code, words) = system.result("tec-attest.service");
    assert_eq!(code, "3", "{words}");
    // The log does not list it.
    assert!(words.contains("TEC-A407"), "{words}");

    drop(system);
    pair.machine.reboot().unwrap();
    assert_eq!(pair.machine.passphrases().unwrap().len(), 1);
}

#[test]
fn a_shutdown_is_held_until_the_next_boot_is_approved() {
    let pair = Pair::start().unwrap();
    let (boot, variables) =
        (pair.directory.path().join("boot"), pair.directory.path().join("efivars"));
    fs::create_dir(&variables).unwrap();
    let copy = |name: &str| {
        let from = pair.settings.image(name).join(".");
        said(
            Command::new("cp").args(["--recursive", "--no-target-directory"]).arg(from).arg(&boot),
        );
    };
    copy("current");
    let environment = environment(&pair.machine)
        + &format!(
            "Environment=\"BOOT=/boot --secure-boot off --efivars {}\" EVERY=1\n",
            variables.display()
        );
    let system = System::boot(&pair, &boot, &environment);
    for unit in ["dbus.socket", "systemd-logind.service", "tec-next-boot.path"] {
        let started = system.systemctl(&["start", unit]).unwrap();
        assert!(started.status.success(), "{unit}: {started:?}");
    }
    // As after an update: other files, none of them approved.
    fs::remove_dir_all(boot.join("boot")).ok();
    copy("update");
    fs::write(boot.join("changed"), "").unwrap();
    let is_held = || Ok(system.holders()?.contains("tec-next-boot"));
    until("the shutdown is held", is_held);
    let off = ["poweroff", "--check-inhibitors=yes"];
    let refused = system.systemctl(&off).unwrap();
    assert!(!refused.status.success());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("the next boot would not unlock the disks"), "{words}");

    let update = pair.settings.image("update");
    let approve = ["image", "approve", "update", update.to_str().unwrap(), "--secure-boot", "off"];
    pair.anchor.tec(&approve).unwrap();
    until("the shutdown is not held", || {
        ensure!(!is_held()?, "{}", system.journal("tec-next-boot.service")?);
        Ok(true)
    });
    let mut system = system;
    let off = system.systemctl(&off).unwrap();
    assert!(off.status.success(), "{off:?}");
    until("the machine is off", || Ok(system.leader().is_err()));
    system.nspawn.wait().unwrap();
}
