//! A running `kbs-guard` with nothing behind it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

/// A running guard, stopped when the value is dropped.
pub(crate) struct Guard {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guard {
    pub(crate) fn start(program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let keys = directory.join("keys");
        fs::create_dir(&keys)?;
        let mut child = Command::new(program)
            .args(["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1"])
            .args(["--dangerous-plain-http", "--log-form", "json"])
            .arg("--keys")
            .arg(keys)
            .arg("--state-dir")
            .arg(directory.join("guard"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
        let mut lines = lines.map_while(Result::ok);
        let address = lines.find_map(|line| {
            let line: Value = serde_json::from_str(&line).ok()?;
            let fields = line.get("fields")?;
            let address = fields.get("address")?.as_str()?;
            (fields.get("message")? == "ready").then(|| address.parse().ok())?
        });
        // Its later output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.context("the guard did not become ready")?;
        Ok(Self { child, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}
