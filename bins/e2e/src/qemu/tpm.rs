//! The TPM of a virtual machine: swtpm on QEMU's socket, with a state that outlives boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use super::must;
use crate::process::wait_for;

/// All banks that swtpm supports.
const BANKS: &str = "sha1,sha256,sha384,sha512";
const START_LIMIT: Duration = Duration::from_secs(30);

/// A TPM that is switched on and off with its machine.
#[derive(Clone, Debug)]
pub struct VirtualTpm {
    state: PathBuf,
}

impl VirtualTpm {
    /// Creates a new TPM with all banks active; its state goes to `state`.
    pub fn manufacture(state: &Path) -> anyhow::Result<Self> {
        Self::with_banks(state, BANKS)
    }

    /// Creates a new TPM with SHA-256 as the only active bank, as on most machines. Firmware then measures
    /// what it starts once, not four times.
    pub fn manufacture_plain(state: &Path) -> anyhow::Result<Self> {
        Self::with_banks(state, "sha256")
    }

    /// A TPM with existing state.
    pub fn found(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    fn with_banks(state: &Path, banks: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(state).with_context(|| format!("cannot create {}", state.display()))?;
        let mut setup = Command::new("swtpm_setup");
        setup.args(["--tpm2", "--pcr-banks", banks, "--tpmstate"]);
        must(setup.arg(state))?;
        Ok(Self { state: state.to_owned() })
    }

    /// Starts it; it exits when the machine disconnects.
    pub(super) fn power_on(&self, socket: &Path) -> anyhow::Result<Child> {
        let with = |key: &str, path: &Path| format!("{key}={}", path.display());
        let child = Command::new("swtpm")
            .args(["socket", "--tpm2", "--terminate", "--tpmstate"])
            .arg(with("dir", &self.state))
            .arg("--ctrl")
            .arg(with("type=unixio,path", socket))
            .arg("--log")
            .arg(with("file", &self.state.join("swtpm.log")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run swtpm")?;
        wait_for("the TPM's socket", START_LIMIT, || Ok(socket.exists()))?;
        Ok(child)
    }
}
