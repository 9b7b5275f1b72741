//! The admin of bootstrapped nodes: runs `tec` with files on a desk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

/// Key of 32 bytes 40..5f, salt 60..7f (Constellation).
pub const KMS: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                       &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";
/// The key as in the URI.
pub const MASTER_KEY: &str = "QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8";
/// The init secret; nodes have its hash.
pub const INIT_SECRET: &[u8] = b"the secret of the demo";
/// Version of Kubernetes.
pub const VERSION: &str = "v1.34.3";
/// Deadline of a node's answer, in seconds.
const WAIT: &str = "240";

/// A desk with secret files and the program.
#[derive(Debug)]
pub struct Admin {
    program: PathBuf,
    desk: PathBuf,
}

impl Admin {
    /// Sets up a desk in a new directory below `base`.
    pub fn new(program: PathBuf, base: &Path) -> anyhow::Result<Self> {
        let desk = base.join("admin");
        fs::create_dir(&desk)?;
        fs::write(desk.join("kms-uri"), KMS)?;
        fs::write(desk.join("init-secret"), INIT_SECRET)?;
        Ok(Self { program, desk })
    }

    /// Its stderr goes to a log on the desk.
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
            .context("cannot run tec")?;
        anyhow::ensure!(
            output.status.success(),
            "tec {} ended with {}: {}; see {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout).trim(),
            self.desk.join("tec.log").display()
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn path(&self, name: &str) -> String {
        self.desk.join(name).display().to_string()
    }

    /// Uses a different master secret.
    pub fn with_master_key(self, key: &str) -> anyhow::Result<Self> {
        fs::write(self.desk.join("kms-uri"), KMS.replace(MASTER_KEY, key))?;
        Ok(self)
    }

    /// Makes a node the first of a cluster; returns the cluster's ID.
    pub fn init(&self, address: &str, key: &str) -> anyhow::Result<String> {
        let (secret, kubeconfig) = (self.path("init-secret"), self.path("admin.conf"));
        let init = ["node", "init", address, "--kubernetes-version", VERSION];
        let files = ["--init-secret-file", &secret, "--kubeconfig", &kubeconfig];
        let checked = self.run(&[&init[..], &files, &["--dry-run"]].concat(), key)?;
        let made = self.run(&[&init[..], &files].concat(), key)?;
        let id =
            |answer: &Value| answer.get("clusterId").and_then(Value::as_str).map(str::to_owned);
        anyhow::ensure!(id(&checked) == id(&made), "--dry-run reported a different cluster");
        id(&made).context("the answer contains no cluster ID")
    }

    /// Opens the disk of a node, after checking the keys.
    pub fn recover(&self, address: &str, key: &str) -> anyhow::Result<()> {
        for more in [&["--check"][..], &[]] {
            let all = [&["node", "recover", address][..], more].concat();
            self.run(&all, key)?;
        }
        Ok(())
    }

    /// Runs `tec` as the admin of the cluster created from this desk.
    ///
    /// # Errors
    /// The command fails; the error contains its output.
    pub fn kube(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut tec = Command::new(&self.program);
        tec.args(["--kubeconfig", &self.path("admin.conf")]).args(arguments);
        let output = tec.output().context("cannot run tec")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let what = arguments.join(" ");
        anyhow::ensure!(output.status.success(), "tec {what} failed: {}", said.trim());
        Ok(())
    }
}
