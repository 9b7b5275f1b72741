//! The state disk as a LUKS2 header, through the program `cryptsetup`.

mod blank;
mod device;
mod header;
mod mounted;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use crate::derive::DiskId;
use crate::lock::LockedNode;
use crate::port::StateDisk;
use async_trait::async_trait;
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tempfile::TempDir;

pub use self::blank::Content;
use self::header::check;
pub use self::header::{HeaderError, Integrity};
pub use self::mounted::lies_on;
use super::directory::{blocking, write_whole};
use super::program::{Call, HostPrograms, ProgramError};

const CRYPTSETUP: &str = "cryptsetup";
/// Directory of mappings.
const MAPPER: &str = "/dev/mapper";
/// Directory where the kernel shows block devices (sysfs).
const DEVICES: &str = "/sys/class/block";
/// Exit status for a passphrase that opens nothing (cryptsetup(8), "RETURN CODES").
const NO_PERMISSION: i32 = 2;
/// The least that Argon2id may cost, in iterations, KiB and threads (cryptsetup(8), "--pbkdf-memory"). Keys are
/// random bytes, so there are no guesses to slow down; the default takes seconds and a gigabyte at each boot.
const KDF: [&str; 8] = [
    "--pbkdf",
    "argon2id",
    "--pbkdf-force-iterations",
    "4",
    "--pbkdf-memory",
    "32",
    "--pbkdf-parallel",
    "1",
];
/// Time limit. Slots that other programs made may cost seconds each.
const LIMIT: Duration = Duration::from_mins(2);
/// Readable only by root.
const PRIVATE: u32 = 0o600;
/// Maximum length of the initial passphrase.
const MAX_PASSPHRASE: u64 = 4096;

/// A disk, or a file with a LUKS2 header.
#[derive(Clone, Debug)]
pub struct LuksDisk {
    device: PathBuf,
    initial_key: PathBuf,
    scratch: PathBuf,
    integrity: Integrity,
    mapper: PathBuf,
    devices: PathBuf,
    programs: Arc<HostPrograms>,
}

/// A copy of the header that passed the check and that nobody else can change anymore.
#[derive(Debug)]
struct Checked {
    directory: TempDir,
}

impl Checked {
    fn path(&self) -> PathBuf {
        self.directory.path().join("header")
    }
}

impl LuksDisk {
    /// `initial_key` is the file with the passphrase that the disk was created with; copies of the header are
    /// created under `scratch`, which should be in memory.
    pub fn new(
        device: impl Into<PathBuf>,
        initial_key: impl Into<PathBuf>,
        scratch: impl Into<PathBuf>,
        programs: Arc<HostPrograms>,
    ) -> Self {
        Self {
            device: device.into(),
            initial_key: initial_key.into(),
            scratch: scratch.into(),
            integrity: Integrity::Required,
            mapper: MAPPER.into(),
            devices: DEVICES.into(),
            programs,
        }
    }

    /// Also accepts disks without authenticated sectors.
    ///
    /// # Security
    /// Whoever can write to the disk can then roll sectors back unnoticed.
    pub fn dangerous_without_integrity(mut self) -> Self {
        self.integrity = Integrity::Optional;
        self
    }

    /// Stores the checked header, if this key opens it. Map the disk with this file as the header: the header
    /// on the disk may be different the next time it is read.
    ///
    /// # Errors
    /// The header is refused, or cannot be written, or the key does not open it.
    pub async fn pin_header(&self, key: &SecretBytes, to: &Path) -> Result<(), PortError> {
        let operation = "keep the header of the state disk";
        let header = self.checked().await?;
        if !self.opens(&header.path(), key).await? {
            return Err(PortError::new(PortErrorKind::Conflict, operation));
        }
        let (from, to) = (header.path(), to.to_owned());
        let kept = blocking(move || write_whole(&to, &fs::read(from)?, PRIVATE)).await;
        kept.map_err(|error| PortError::new(PortErrorKind::Unavailable, operation).because(error))
    }

    fn initial_passphrase(&self) -> Result<Option<SecretBytes>, PortError> {
        let failed = |error| {
            let operation = format!("read {}", self.initial_key.display());
            PortError::new(PortErrorKind::Unavailable, operation).because(error)
        };
        match fs::metadata(&self.initial_key) {
            Ok(found) if found.len() <= MAX_PASSPHRASE => {}
            Ok(_) => return Err(failed(io::ErrorKind::FileTooLarge.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let passphrase = fs::read(&self.initial_key).map_err(failed)?;
        Ok(Some(SecretBytes::new(passphrase)))
    }

    async fn cryptsetup(
        &self,
        arguments: Vec<OsString>,
        input: Option<&SecretBytes>,
    ) -> Result<Vec<u8>, ProgramError> {
        let call = Call { program: CRYPTSETUP, arguments, input, limit: LIMIT };
        self.programs.run(call).await
    }

    /// Reads the header once, and checks what was read: the header on the disk may be different the next time
    /// it is read.
    async fn checked(&self) -> Result<Checked, PortError> {
        let scratch = |error| {
            PortError::new(PortErrorKind::Unavailable, "make room for a header").because(error)
        };
        fs::create_dir_all(&self.scratch).map_err(scratch)?;
        let directory = TempDir::new_in(&self.scratch).map_err(scratch)?;
        let copy = Checked { directory };
        let operation = "copy the header of the state disk";
        let mut backup = words(&["luksHeaderBackup", "--batch-mode", "--header-backup-file"]);
        backup.extend([copy.path().into(), self.device.clone().into()]);
        let made = self.cryptsetup(backup, None).await;
        made.map_err(|error| match error.status() {
            Some(_) if !self.device.exists() => self.missing(),
            Some(_) => error.during(operation).with_code(Code::BootstrapHeader),
            None => error.during(operation),
        })?;
        let mut dump = words(&["luksDump", "--dump-json-metadata"]);
        dump.push(copy.path().into());
        let json = self.cryptsetup(dump, None).await;
        let json = json.map_err(|error| error.during("read the header of the state disk"))?;
        check(&json, self.integrity).map_err(|error| {
            let operation = "take the header of the state disk";
            PortError::new(PortErrorKind::Invalid, operation)
                .with_code(Code::BootstrapHeader)
                .because(error)
        })?;
        Ok(copy)
    }

    async fn opens(&self, header: &Path, key: &SecretBytes) -> Result<bool, PortError> {
        let mut arguments = words(&["open", "--test-passphrase", "--batch-mode"]);
        arguments.extend(words(&["--key-file", "-"]));
        arguments.push(header.into());
        match self.cryptsetup(arguments, Some(key)).await {
            Ok(_) => Ok(true),
            Err(error) if error.status() == Some(NO_PERMISSION) => Ok(false),
            Err(error) => Err(error.during("try a key of the state disk")),
        }
    }

    async fn add(&self, old: &SecretBytes, new: &SecretBytes) -> Result<(), PortError> {
        // The keys are arbitrary bytes, so their lengths separate them, and one stream has both.
        let mut both = old.expose("authorize the new key").to_vec();
        both.extend(new.expose("add it"));
        let both = SecretBytes::new(both);
        let mut arguments = words(&["luksAddKey", "--batch-mode"]);
        arguments.extend(words(&KDF));
        let (old, new) = (old.len().to_string(), new.len().to_string());
        arguments.extend(words(&["--key-file", "-", "--keyfile-size", &old]));
        arguments.extend(words(&["--new-keyfile-size", &new]));
        arguments.extend([self.device.clone().into(), "-".into()]);
        let added = self.cryptsetup(arguments, Some(&both)).await;
        added.map(drop).map_err(|error| error.during("add a key to the state disk"))
    }

    async fn remove(&self, key: &SecretBytes) -> Result<(), PortError> {
        let mut arguments = words(&["luksRemoveKey", "--batch-mode", "--key-file", "-"]);
        arguments.push(self.device.clone().into());
        let removed = self.cryptsetup(arguments, Some(key)).await;
        removed.map(drop).map_err(|error| error.during("remove the state disk's first key"))
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[async_trait]
impl StateDisk for LuksDisk {
    async fn id(&self) -> Result<DiskId, PortError> {
        let header = self.checked().await?;
        let operation = "read the id of the state disk";
        let mut arguments = words(&["luksUUID"]);
        arguments.push(header.path().into());
        let printed = self.cryptsetup(arguments, None).await;
        let printed = printed.map_err(|error| error.during(operation))?;
        let id = String::from_utf8_lossy(&printed).trim().parse();
        id.map_err(|error| PortError::new(PortErrorKind::Invalid, operation).because(error))
    }

    async fn opens_with(&self, key: &SecretBytes) -> Result<bool, PortError> {
        let header = self.checked().await?;
        self.opens(&header.path(), key).await
    }

    async fn is_new(&self) -> Result<bool, PortError> {
        match self.initial_passphrase()? {
            Some(passphrase) => self.opens_with(&passphrase).await,
            None => Ok(false),
        }
    }

    /// The new key is added and tried before the old one is removed, so that a power failure at any step
    /// leaves a disk that one of the two opens.
    async fn rekey(&self, _node: &LockedNode, key: &SecretBytes) -> Result<(), PortError> {
        let header = self.checked().await?;
        let opens = self.opens(&header.path(), key).await?;
        let initial = self.initial_passphrase()?;
        if !opens {
            let initial = initial.as_ref().ok_or_else(|| {
                let operation = "find the passphrase that the state disk was made with";
                PortError::new(PortErrorKind::NotFound, operation)
            })?;
            self.add(initial, key).await?;
            let header = self.checked().await?;
            if !self.opens(&header.path(), key).await? {
                let operation = "open the state disk with the key that was added";
                return Err(PortError::new(PortErrorKind::Internal, operation));
            }
        }
        self.mark_claimed().await?;
        let Some(initial) = initial.filter(|initial| !initial.ct_eq(key)) else {
            return Ok(());
        };
        if self.opens(&self.checked().await?.path(), &initial).await? {
            self.remove(&initial).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
