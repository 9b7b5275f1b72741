//! A node: a software TPM, boot files, a LUKS2 volume on a file, and the real Clevis with our pin.

use std::fs;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tec_core::digest::Sha256Digest;
use tec_core::id::MachineId;
use tec_core::ignition::PinConfig;
use tec_core::pcr::PcrIndex;
use tec_core::secret::SecretBytes;
use tec_tpm::direct;
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::Tpm;

use crate::firmware::{BootChain, boot};
use crate::process::Transcript;
use crate::settings::Settings;
use crate::volume;

/// Size of the volume; a LUKS2 header takes 16 MiB.
const DISK_BYTES: u64 = 24 << 20;

/// A `cryptsetup` that lists its calls, and kills the program that calls it.
const WRAPPER: &str = r#"#!/bin/sh
calls="$(dirname "$0")/calls"
echo "$1" >> "$calls"
number=$(wc -l < "$calls")
if [ "$number" = "$BEFORE" ]; then
    kill -KILL $PPID
    exit 1
fi
PATH=${PATH#*:}
cryptsetup "$@"
status=$?
[ "$number" = "$AFTER" ] && kill -KILL $PPID
exit $status
"#;

/// When a program is killed: at one of its calls of cryptsetup, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// It runs to its end.
    Never,
    /// Before it changes anything.
    Before(u32),
    /// When its change is durable, before its answer is read.
    After(u32),
}

/// A node was refused its key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The code it received, `TEC-…`.
    pub code: String,
    /// What its console shows.
    pub console: String,
}

/// A node.
#[derive(Debug)]
pub struct Machine {
    /// Name of the node in the story.
    pub name: String,
    /// What it boots.
    pub chain: BootChain,
    directory: PathBuf,
    node_agent: PathBuf,
    logs: Arc<Transcript>,
    swtpm: Swtpm,
    /// How many times it asks before it gives up.
    pub rounds: u32,
    /// Whether its initramfs keeps the disk key for the running system.
    pub keeps_key: bool,
}

impl Machine {
    /// A new machine with a new TPM and an empty disk that boots `chain`.
    pub fn new(
        settings: &Settings,
        logs: &Arc<Transcript>,
        directory: &Path,
        name: &str,
        chain: BootChain,
    ) -> anyhow::Result<Self> {
        let directory = directory.join(name);
        fs::create_dir_all(directory.join("bin"))?;
        let swtpm = Swtpm::start().context("cannot start the software TPM")?;
        let machine = Self {
            name: name.to_owned(),
            chain,
            directory,
            node_agent: settings.node_agent(),
            logs: Arc::clone(logs),
            swtpm,
            // Refusals are part of the story, so nodes do not ask again.
            rounds: 1,
            keeps_key: false,
        };
        let mut links = Command::new(&machine.node_agent);
        machine.logs.must(links.arg("install-links").arg(machine.directory.join("bin")))?;
        machine.measure()?;
        Ok(machine)
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The TCTI of its TPM.
    pub fn tcti(&self) -> String {
        self.swtpm.tcti()
    }

    /// The event log of the last boot.
    pub fn event_log(&self) -> PathBuf {
        self.directory.join("event-log")
    }

    /// The file with its volume.
    pub fn disk(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    /// Its `node-agent`.
    pub fn node_agent(&self) -> &Path {
        &self.node_agent
    }

    /// Extends a pinned register without an entry in the event log, as an intruder does after boot.
    pub fn extend_unlisted(&self) -> anyhow::Result<()> {
        let tpm = direct::Tpm::open(&self.tcti()).context("cannot open the TPM")?;
        tpm.pcr_extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("a module"))?;
        Ok(())
    }

    fn measure(&self) -> anyhow::Result<()> {
        let tpm = Tpm::open(&self.tcti()).context("cannot open the TPM")?;
        let log = boot(&tpm, &self.chain)?;
        fs::write(self.event_log(), log)?;
        Ok(())
    }

    /// Restarts the machine: the TPM starts with empty registers, and everything is measured again.
    pub fn reboot(&mut self) -> anyhow::Result<()> {
        self.swtpm.restart().context("cannot restart the software TPM")?;
        self.measure()
    }

    /// A command in the machine's environment: its TPM, its log, and our pin in the PATH.
    fn command(&self, program: &str) -> Command {
        let mut path = vec![self.directory.join("bin")];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        path.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
        let mut command = Command::new(program);
        command
            .env("PATH", std::env::join_paths(path).unwrap_or_default())
            .env("TEC_TCTI", self.tcti())
            .env("TEC_EVENT_LOG", self.event_log())
            .env("TEC_KEPT_KEY", self.kept_key())
            .env("TEC_KEEP_KEY", self.keeps_key.to_string())
            .env("TEC_ROOT_MARK", self.root_mark())
            .env("TEC_ROUNDS", self.rounds.to_string());
        command
    }

    /// The file where its initramfs keeps the disk key.
    pub fn kept_key(&self) -> PathBuf {
        self.directory.join("run/key")
    }

    /// The file with the mark of its root file system.
    pub fn root_mark(&self) -> PathBuf {
        self.directory.join("root-mark")
    }

    /// `node-agent` with these arguments.
    pub fn agent(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.node_agent.to_string_lossy());
        command.args(arguments);
        command
    }

    /// First boot as performed by Ignition: formats the volume with a throwaway key, binds it with Clevis,
    /// and removes the throwaway key. Returns the ID in the config.
    pub fn first_boot(&self, ignition: &Value) -> anyhow::Result<MachineId> {
        let luks = &ignition["storage"]["luks"][0];
        let config = luks["clevis"]["custom"]["config"].as_str().context("no pin in the config")?;
        let machine = PinConfig::parse(config)?.path.machine().context("no machine in the path")?;
        let key_file = self.directory.join("first-boot.key");
        let mut key = [0; 32];
        tec_core::port::Entropy::fill(&tec_support::SystemEntropy, &mut key);
        tec_support::files::write_private(&key_file, &key)?;
        File::create(self.disk())?.set_len(DISK_BYTES)?;
        let format = ["luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2"];
        // The minimum that cryptsetup accepts; the key is random anyway.
        let iterations = ["--pbkdf-force-iterations", "1000"];
        let mut cryptsetup = self.command("cryptsetup");
        cryptsetup.args(format).args(iterations).arg(self.disk()).arg(&key_file);
        self.logs.must(&mut cryptsetup)?;
        let mut bind = self.command("clevis");
        bind.args(["luks", "bind", "-y", "-k"]).arg(&key_file).arg("-d").arg(self.disk());
        self.logs.must(bind.args(["trustee", config]))?;
        let mut remove = self.command("cryptsetup");
        remove.args(["luksRemoveKey", "--batch-mode"]).arg(self.disk()).arg(&key_file);
        self.logs.must(&mut remove)?;
        fs::remove_file(&key_file)?;
        Ok(machine)
    }

    /// The object `clevis` in the header of the sealed passphrase, as stored on the volume.
    pub fn clevis_header(&self) -> anyhow::Result<Value> {
        volume::clevis_header(&self.logs, &self.disk())
    }

    /// Opens the volume as the initramfs does, except for device-mapper: Clevis obtains the passphrase, and
    /// cryptsetup tests it. The passphrase goes through a pipe and is never seen.
    ///
    /// # Errors
    /// Something other than a refusal failed.
    pub fn unlock(&self) -> anyhow::Result<Result<Duration, Refusal>> {
        let begin = Instant::now();
        let (path, log) = self.logs.file("clevis-luks-pass")?;
        let mut clevis = self
            .command("clevis")
            .args(["luks", "pass", "-s", "1", "-d"])
            .arg(self.disk())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot run clevis")?;
        let passphrase = clevis.stdout.take().context("no pipe from clevis")?;
        let mut cryptsetup = self.command("cryptsetup");
        cryptsetup.args(["open", "--test-passphrase", "--batch-mode", "--key-file", "-"]);
        let opened = cryptsetup.arg(self.disk()).stdin(passphrase).output()?;
        let released = clevis.wait()?;
        let console = fs::read_to_string(path)?;
        if released.success() {
            ensure!(opened.status.success(), "the key that was released does not open the volume");
            return Ok(Ok(begin.elapsed()));
        }
        let Some(start) = console.find("TEC-") else { bail!("clevis failed: {console}") };
        let code = console.get(start..).unwrap_or_default();
        let code = code.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        Ok(Err(Refusal { code, console }))
    }

    /// `node-agent key rotate` for the volume.
    pub fn key_rotate(&self) -> Command {
        let mut command = self.agent(&["key", "rotate"]);
        command.arg(self.disk());
        command
    }

    /// The actions of cryptsetup that the last [`key_rotate_killed`](Self::key_rotate_killed) called.
    pub fn cryptsetup_calls(&self) -> anyhow::Result<Vec<String>> {
        let calls = fs::read_to_string(self.directory.join("kill").join("calls"))?;
        Ok(calls.lines().map(str::to_owned).collect())
    }

    /// As [`key_rotate`](Self::key_rotate), but killed right before or after a call of cryptsetup.
    pub fn key_rotate_killed(&self, kill: Kill) -> anyhow::Result<Command> {
        let (before, after) = match kill {
            Kill::Never => (0, 0),
            Kill::Before(call) => (call, 0),
            Kill::After(call) => (0, call),
        };
        let directory = self.directory.join("kill");
        fs::create_dir_all(&directory)?;
        let wrapper = directory.join("cryptsetup");
        fs::write(directory.join("calls"), "")?;
        fs::write(&wrapper, WRAPPER)?;
        fs::set_permissions(&wrapper, Permissions::from_mode(0o700))?;
        let mut command = self.key_rotate();
        let own = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
        let own = own.context("a command without PATH")?;
        let path = std::env::join_paths([directory].into_iter().chain(std::env::split_paths(own)))?;
        command.env("PATH", path);
        command.env("BEFORE", before.to_string()).env("AFTER", after.to_string());
        Ok(command)
    }

    /// The passphrases that Clevis obtains for its key slots and that open them, as at a boot.
    pub fn passphrases(&self) -> anyhow::Result<Vec<SecretBytes>> {
        let mut found = Vec::new();
        for token in self.volume_parts()?.1 {
            for slot in token["keyslots"].as_array().into_iter().flatten() {
                let slot = slot.as_str().context("a key slot has no number")?;
                let mut clevis = self.command("clevis");
                clevis.args(["luks", "pass", "-s", slot, "-d"]).arg(self.disk());
                // Not through the transcript, which would keep it.
                let output = clevis.stdin(Stdio::null()).output().context("cannot run clevis")?;
                let passphrase = SecretBytes::new(output.stdout);
                if output.status.success() && self.opens_with(&passphrase)? {
                    found.push(passphrase);
                }
            }
        }
        Ok(found)
    }

    /// Whether a passphrase opens any key slot of the volume.
    pub fn opens_with(&self, passphrase: &SecretBytes) -> anyhow::Result<bool> {
        volume::opens(&self.disk(), passphrase)
    }

    /// The numbers of the volume's key slots, and its tokens.
    pub fn volume_parts(&self) -> anyhow::Result<(Vec<String>, Vec<Value>)> {
        volume::parts(&self.disk())
    }

    /// Flips one byte in the middle of the kernel.
    pub fn tamper_with_kernel(&self) -> anyhow::Result<()> {
        let path = self.chain.kernel()?;
        let mut kernel = fs::read(&path)?;
        let middle = kernel.len() / 2;
        let byte = kernel.get_mut(middle).context("the kernel is empty")?;
        *byte ^= 1;
        fs::write(&path, kernel)?;
        Ok(())
    }
}
