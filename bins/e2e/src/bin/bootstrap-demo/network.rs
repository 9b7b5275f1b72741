//! A bridge, and the devices attached to it.

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::Context as _;

/// Names of bridges and namespaces are machine-wide, so only one run at a time may use them.
const LOCK: &str = "/run/tec-bootstrap-demo.lock";
/// Name of the bridge.
pub(crate) const BRIDGE: &str = "tec-b0";
/// Address of this machine on the bridge, and of everything that is not a node.
pub(crate) const GATEWAY: &str = "198.51.100.254";

/// Runs a program to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    anyhow::ensure!(output.status.success(), "{program} {} failed: {words}", arguments.join(" "));
    Ok(output.stdout)
}

pub(crate) fn ip(arguments: &str) -> anyhow::Result<()> {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    run("ip", &arguments).map(drop)
}

/// Waits until no other run is active; the lock is released when this process ends, at the latest.
fn only_run() -> anyhow::Result<File> {
    let file = File::create(LOCK).with_context(|| format!("cannot create {LOCK}"))?;
    if file.try_lock().is_err() {
        writeln!(std::io::stderr(), "another run of this demo is on this machine, waiting for it")?;
        file.lock().with_context(|| format!("cannot lock {LOCK}"))?;
    }
    Ok(file)
}

/// The bridge; removed on drop, after which another run can create its own.
#[derive(Debug)]
pub(crate) struct Network {
    _only: File,
}

impl Network {
    pub(crate) fn create() -> anyhow::Result<Self> {
        let only = only_run()?;
        // Left behind by a run that was killed.
        let _ = ip(&format!("link del {BRIDGE}"));
        ip(&format!("link add {BRIDGE} type bridge"))?;
        let network = Self { _only: only };
        ip(&format!("addr add {GATEWAY}/24 dev {BRIDGE}"))?;
        ip(&format!("link set {BRIDGE} up"))?;
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = ip(&format!("link del {BRIDGE}"));
    }
}
