//! The admin: runs `tec` beside the hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use crate::files::{INIT_SECRET, KMS, VERSION};
use crate::host::Host;

/// Seconds until a node must answer.
const WAIT: &str = "60";

/// A desk with files of secrets, and the program.
pub(crate) struct Admin {
    program: PathBuf,
    desk: PathBuf,
}

impl Admin {
    pub(crate) fn new(program: PathBuf, base: &Path) -> anyhow::Result<Self> {
        let desk = base.join("admin");
        fs::create_dir(&desk)?;
        fs::write(desk.join("kms-uri"), KMS)?;
        fs::write(desk.join("init-secret"), INIT_SECRET)?;
        Ok(Self { program, desk })
    }

    /// What it says on stderr goes to a log on the desk.
    fn run(&self, arguments: &[&str], key: &str) -> anyhow::Result<Value> {
        let log = fs::File::options().create(true).append(true).open(self.desk.join("tec.log"))?;
        let kms = self.path("kms-uri");
        let output = Command::new(&self.program)
            .args(["--output", "json"])
            .args(arguments)
            .args(["--ak", key, "--dangerous-any-measurements"])
            .args(["--kms-uri-file", &kms, "--wait", WAIT])
            .stderr(log)
            .output()
            .context("run tec")?;
        anyhow::ensure!(
            output.status.success(),
            "tec {} ended with {}; see {}",
            arguments.join(" "),
            output.status,
            self.desk.join("tec.log").display()
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn path(&self, name: &str) -> String {
        self.desk.join(name).display().to_string()
    }

    /// Makes a cluster of a host; its id.
    pub(crate) fn init(&self, host: &Host, key: &str) -> anyhow::Result<String> {
        let (secret, kubeconfig) = (self.path("init-secret"), self.path("admin.conf"));
        let init = ["init", &host.address, "--kubernetes-version", VERSION];
        let files = ["--init-secret-file", &secret, "--kubeconfig", &kubeconfig];
        let checked = self.run(&[&init[..], &files, &["--dry-run"]].concat(), key)?;
        let made = self.run(&[&init[..], &files].concat(), key)?;
        let id =
            |answer: &Value| answer.get("clusterId").and_then(Value::as_str).map(str::to_owned);
        anyhow::ensure!(id(&checked) == id(&made), "the check told another cluster");
        id(&made).context("the cluster has no id")
    }

    /// Opens the disk of a host, after a try of the keys.
    pub(crate) fn recover(&self, host: &Host, key: &str) -> anyhow::Result<()> {
        for more in [&["--check"][..], &[]] {
            let all = [&["recover", &host.address][..], more].concat();
            self.run(&all, key)?;
        }
        Ok(())
    }
}
