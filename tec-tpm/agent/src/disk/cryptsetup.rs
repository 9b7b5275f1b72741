//! The program `cryptsetup`, version 2.4 or later.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tec_core::luks::header::LuksHeader;
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use super::{DiskError, Header, RecoveryState, RecoveryToken, RecoveryView, SlotMark, Token};

/// Exit status for a passphrase that opens nothing (cryptsetup(8), "RETURN CODES").
const NO_PERMISSION: i32 = 2;

/// The header of a device or file.
#[derive(Clone, Debug)]
pub struct Cryptsetup {
    device: PathBuf,
}

impl Cryptsetup {
    /// Uses the header of this device.
    pub fn new(device: impl Into<PathBuf>) -> Self {
        Self { device: device.into() }
    }

    /// The device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// # Security
    /// Fails if the disk is bound and its header does not protect it.
    fn metadata(&self) -> Result<Vec<u8>, DiskError> {
        let json = self.dump()?;
        if Token::is_bound(&json)? {
            self.checked(&json)?;
        }
        Ok(json)
    }

    /// Whether one of these passphrases opens a key slot, whatever its token says; `false` if there is no LUKS2 header.
    ///
    /// # Errors
    /// The header does not protect the disk, or `cryptsetup` cannot be run: what is open must not be started from.
    pub(crate) fn opens_with(&self, passphrases: &[SecretBytes]) -> Result<bool, DiskError> {
        let json = match self.dump() {
            Err(DiskError::Failed { .. }) => return Ok(false),
            json => json?,
        };
        for passphrase in passphrases {
            if self.takes(None, passphrase)? {
                return self.checked(&json).map(|()| true);
            }
        }
        Ok(false)
    }

    fn dump(&self) -> Result<Vec<u8>, DiskError> {
        self.good("read the header", &["luksDump", "--dump-json-metadata"], b"")
    }

    fn checked(&self, json: &[u8]) -> Result<(), DiskError> {
        let checked = LuksHeader::parse(json).and_then(|header| header.check());
        checked.map_err(|source| DiskError::Unsafe { device: self.device.clone(), source })
    }

    /// Whether a passphrase opens a key slot, or any.
    fn takes(&self, slot: Option<&str>, passphrase: &SecretBytes) -> Result<bool, DiskError> {
        let operation = "try a passphrase";
        let mut arguments = vec!["open", "--test-passphrase", "--batch-mode", "--key-file", "-"];
        arguments.extend(slot.iter().flat_map(|slot| ["--key-slot", *slot]));
        let output = self.run(operation, &arguments, passphrase.expose("try it"))?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(NO_PERMISSION) => Ok(false),
            _ => Err(failed(operation, &output)),
        }
    }

    fn good(
        &self,
        operation: &'static str,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<Vec<u8>, DiskError> {
        let output = self.run(operation, arguments, input)?;
        if output.status.success() { Ok(output.stdout) } else { Err(failed(operation, &output)) }
    }

    /// Runs `cryptsetup` on the device. Secrets go only through its standard input.
    fn run(
        &self,
        operation: &'static str,
        arguments: &[&str],
        input: &[u8],
    ) -> Result<Output, DiskError> {
        let mut command = Command::new("cryptsetup");
        call(command.args(arguments).arg(&self.device), operation, input)
    }

    /// Writes a token under the lowest free number.
    fn import(&self, token: &str) -> Result<u32, DiskError> {
        let id = Token::free(&self.metadata()?)?;
        let number = id.to_string();
        let arguments = ["token", "import", "--json-file", "-", "--token-id", &number];
        self.good("write a token", &arguments, token.as_bytes())?;
        Ok(id)
    }
}

fn call(command: &mut Command, operation: &'static str, input: &[u8]) -> Result<Output, DiskError> {
    let start = |source| DiskError::Start { operation, source };
    let mut child = command
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may fail before it reads; its own message then says more than ours.
        let _ = stdin.write_all(input);
    }
    child.wait_with_output().map_err(start)
}

fn failed(operation: &'static str, output: &Output) -> DiskError {
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    DiskError::Failed { operation, message }
}

impl Header for Cryptsetup {
    fn tokens(&self) -> Result<Vec<Token>, DiskError> {
        Token::all(&self.metadata()?)
    }

    fn add_token(&self, slots: &[String], sealed: &str) -> Result<u32, DiskError> {
        self.import(&Token::render(slots, sealed))
    }

    fn remove_token(&self, id: u32) -> Result<(), DiskError> {
        let arguments = ["token", "remove", "--token-id", &id.to_string()];
        self.good("remove a token", &arguments, b"").map(drop)
    }

    fn recovery(&self) -> Result<RecoveryView, DiskError> {
        RecoveryView::read(&self.metadata()?)
    }

    fn add_recovery_token(
        &self,
        slot: u32,
        state: RecoveryState,
        mark: SlotMark,
    ) -> Result<u32, DiskError> {
        self.import(&RecoveryToken::render(slot, state, mark))
    }

    fn add_slot(
        &self,
        (slot, mark): (u32, SlotMark),
        old: &SecretBytes,
        new: &SecretBytes,
    ) -> Result<(), DiskError> {
        let (old, new) = (old.expose("authorize"), new.expose("add it"));
        if old.contains(&b'\n') || new.contains(&b'\n') {
            return Err(DiskError::LineBreak);
        }
        // Without a terminal, it reads one line for each.
        let mut input = Zeroizing::new(Vec::with_capacity(old.len() + new.len() + 2));
        for passphrase in [old, new] {
            input.extend(passphrase);
            input.push(b'\n');
        }
        let (slot, iterations) = (slot.to_string(), mark.iterations().to_string());
        let arguments = [
            "luksAddKey",
            "--batch-mode",
            "--key-slot",
            &slot,
            "--pbkdf",
            "pbkdf2",
            "--pbkdf-force-iterations",
            &iterations,
        ];
        self.good("add a key slot", &arguments, &input).map(drop)
    }

    fn remove_slot(&self, slot: u32) -> Result<(), DiskError> {
        // The device is the last argument of every action except this one.
        let device = self.device.as_os_str();
        let mut command = Command::new("cryptsetup");
        command.args(["luksKillSlot", "--batch-mode"]).arg(device);
        command.arg(slot.to_string());
        let operation = "remove a key slot";
        let output = call(&mut command, operation, b"")?;
        if output.status.success() { Ok(()) } else { Err(failed(operation, &output)) }
    }

    fn opens(&self, slot: &str, passphrase: &SecretBytes) -> Result<bool, DiskError> {
        self.takes(Some(slot), passphrase)
    }
}
