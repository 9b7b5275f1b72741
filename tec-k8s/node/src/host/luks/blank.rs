//! A disk that has never been opened: its content, and how it becomes a state disk.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::derive::DiskId;
use serde::Deserialize;
use tec_core::digest::Sha256Digest;
use tec_core::port::{Entropy, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::{CRYPTSETUP, KDF, LuksDisk, words};
use crate::host::directory::{blocking, write_whole};
use crate::host::luks::Integrity;
use crate::host::program::Call;

/// Label of a disk whose only passphrase is in the memory of the boot that created it.
const UNCLAIMED: &str = "tec-unclaimed";
/// Label of a disk for which a cluster has a key.
const CLAIMED: &str = "tec-state";
/// Exit status of `blkid --probe` if it finds nothing (blkid(8), "EXIT STATUS").
const NOTHING: i32 = 2;
/// Area in which LUKS2 headers begin: the first at the start, the second at up to 4 MiB (LUKS2 On-Disk Format
/// Specification 1.1.3, 2.1).
const HEADERS: u64 = (4 << 20) + 4096;
const BLOCK: usize = 4096;
/// Sequence number of a header, big-endian, and that of the first one that luksFormat writes, before there is
/// a key slot (the same, 2.1 and table 3).
const SEQUENCE: std::ops::Range<usize> = 16..24;
const FIRST_SEQUENCE: u64 = 2;
const MAGICS: [&[u8]; 2] = [b"LUKS\xba\xbe", b"SKUL\xba\xbe"];
const PROBE_LIMIT: Duration = Duration::from_mins(1);
const FILE_SYSTEM_LIMIT: Duration = Duration::from_mins(10);
/// Time limit of formatting: every sector is written once, for its integrity tag.
const WIPE_LIMIT: Duration = Duration::from_hours(48);
/// Length of the passphrase in bytes: the same as of the keys that replace it.
const PASSPHRASE: usize = 32;
/// Name of the disk's mapping until it has a file system.
const NAME: &str = "tec-new-state";
/// Name of a file in memory, with the digest of the passphrase for the disk that this boot created.
const MADE: &str = "made";
/// Readable only by root, and not to be changed (Constellation).
const KEY_MODE: u32 = 0o400;

/// The content of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that blkid(8) recognizes, and no LUKS header anywhere.
    Blank,
    /// A state disk whose passphrase was lost with the boot that created it, before a cluster had a key:
    /// nobody can open it anymore. Holds its ID, if that can be read.
    Unclaimed(Option<DiskId>),
    /// A LUKS disk for which someone may have the key.
    Encrypted,
    /// Something else, by its name.
    Foreign(String),
}

#[derive(Deserialize)]
struct Slots {
    keyslots: serde_json::Map<String, serde_json::Value>,
}

impl LuksDisk {
    /// Examines the disk, and changes nothing.
    pub async fn content(&self) -> Result<Content, PortError> {
        let operation = "look what is on the state disk";
        if !self.device.exists() {
            return Err(self.missing());
        }
        let mut arguments = words(&["--probe", "--output", "export"]);
        arguments.push(self.device.clone().into());
        let call = Call { program: "blkid", arguments, input: None, limit: PROBE_LIMIT };
        let printed = match self.programs.run(call).await {
            Ok(printed) => String::from_utf8_lossy(&printed).into_owned(),
            // Also the status for a device that cannot be read; that is checked below.
            Err(error) if error.status() == Some(NOTHING) => String::new(),
            Err(error) => return Err(error.during(operation)),
        };
        let value = |name: &str| {
            let of_name =
                |line: &str| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            printed.lines().find_map(of_name)
        };
        match value("TYPE").or_else(|| value("PTTYPE")) {
            Some(kind) if kind == "crypto_LUKS" => {}
            Some(kind) => return Ok(Content::Foreign(kind)),
            None if self.has_header().await? => return Ok(Content::Encrypted),
            None => return Ok(Content::Blank),
        }
        // If there is a second key, from a cluster, the power failed before the label was changed.
        let is_unclaimed = value("LABEL").as_deref() == Some(UNCLAIMED)
            && (self.is_keyless().await? || self.slots().await? < 2);
        if is_unclaimed {
            return Ok(Content::Unclaimed(value("UUID").and_then(|uuid| uuid.parse().ok())));
        }
        Ok(Content::Encrypted)
    }

    /// Whether nothing was written after the first header. If the power fails during the write, cryptsetup
    /// can read neither of the two; the first one is always written before the second.
    async fn is_keyless(&self) -> Result<bool, PortError> {
        let begin = self.read_begin(SEQUENCE.end as u64).await?;
        let number = begin.get(SEQUENCE).and_then(|bytes| bytes.try_into().ok());
        Ok(number.is_some_and(|bytes| u64::from_be_bytes(bytes) <= FIRST_SEQUENCE))
    }

    /// Whether there is a LUKS header anywhere that one may be, read by this process: a failed probe must not
    /// pass for a blank disk.
    async fn has_header(&self) -> Result<bool, PortError> {
        let begin = self.read_begin(HEADERS).await?;
        Ok(begin.chunks(BLOCK).any(|block| MAGICS.iter().any(|magic| block.starts_with(magic))))
    }

    async fn read_begin(&self, bytes: u64) -> Result<Vec<u8>, PortError> {
        let device = self.device.clone();
        let read = blocking(move || {
            let mut begin = Vec::new();
            File::open(device)?.take(bytes).read_to_end(&mut begin)?;
            Ok(begin)
        });
        read.await.map_err(|error| {
            PortError::new(PortErrorKind::Unavailable, "read the state disk").because(error)
        })
    }

    async fn slots(&self) -> Result<usize, PortError> {
        let operation = "count the keys of the state disk";
        let mut dump = words(&["luksDump", "--dump-json-metadata"]);
        dump.push(self.device.clone().into());
        let json = self.cryptsetup(dump, None).await.map_err(|error| error.during(operation))?;
        let slots: Slots = serde_json::from_slice(&json)
            .map_err(|error| PortError::new(PortErrorKind::Invalid, operation).because(error))?;
        Ok(slots.keyslots.len())
    }

    /// Creates a state disk with a volume key and a passphrase that nobody had before, and a file system on
    /// it. Leaves the checked header and the passphrase where systemd looks for them. Whatever was there is
    /// lost.
    ///
    /// With `id`, the disk keeps that ID: a join service may have seen it before the power failed.
    ///
    /// Progress goes to the standard output of this process: every sector is written.
    ///
    /// # Crash safety
    /// From the first write on, the label marks the disk as unclaimed, until a cluster has a key; the
    /// passphrase is written last. A mapping that a killed cryptsetup left is closed by the next call.
    ///
    /// # Errors
    /// The disk is missing, too small, read-only, or in use, or the wipe was interrupted.
    pub async fn dangerous_make(
        &self,
        entropy: &dyn Entropy,
        header_file: &Path,
        id: Option<DiskId>,
    ) -> Result<(), PortError> {
        self.check_device().await?;
        self.check_size().await?;
        // A process of this boot may have died and left it.
        if self.mapping().exists() {
            self.close(NAME).await?;
        }
        self.close_leftovers().await?;
        let passphrase = self.dangerous_format(entropy, header_file, id).await?;
        self.open(&passphrase, header_file).await?;
        let made = self.fill().await;
        self.close(NAME).await?;
        made?;
        self.hand_over_made(&passphrase)
    }

    async fn fill(&self) -> Result<(), PortError> {
        self.check_wiped().await?;
        self.make_file_system().await
    }

    pub(super) fn mapping(&self) -> PathBuf {
        self.mapper.join(NAME)
    }

    /// Writes a header, and an integrity tag for each sector.
    pub(super) async fn dangerous_format(
        &self,
        entropy: &dyn Entropy,
        header_file: &Path,
        id: Option<DiskId>,
    ) -> Result<SecretBytes, PortError> {
        let mut passphrase = zeroize::Zeroizing::new(vec![0; PASSPHRASE]);
        entropy.fill(&mut passphrase);
        let passphrase = SecretBytes::new(passphrase.to_vec());
        // The parameters that `check` requires of a header.
        let mut arguments = words(&["luksFormat", "--batch-mode", "--type", "luks2"]);
        arguments.extend(words(&["--cipher", "aes-xts-plain64", "--key-size", "512"]));
        arguments.extend(words(&["--sector-size", "4096"]));
        arguments.extend(words(&KDF));
        arguments.extend(words(&["--hash", "sha256", "--label", UNCLAIMED]));
        if let Some(id) = id {
            arguments.extend(words(&["--uuid", &id.to_string()]));
        }
        if self.integrity == Integrity::Required {
            arguments.extend(words(&["--integrity", "hmac-sha256"]));
            arguments.extend(words(&["--progress-frequency", "5"]));
        }
        arguments.extend(words(&["--key-file", "-"]));
        arguments.push(self.device.clone().into());
        let input = Some(&passphrase);
        let call = Call { program: CRYPTSETUP, arguments, input, limit: WIPE_LIMIT };
        let made = self.programs.run_shown(call).await;
        made.map_err(|error| error.during("make the state disk"))?;
        self.pin_header(&passphrase, header_file).await?;
        Ok(passphrase)
    }

    async fn open(&self, key: &SecretBytes, header_file: &Path) -> Result<(), PortError> {
        let mut arguments = words(&["open", "--type", "luks2", "--key-file", "-", "--header"]);
        arguments.extend([header_file.into(), self.device.clone().into(), NAME.into()]);
        let opened = self.cryptsetup(arguments, Some(key)).await;
        opened.map(drop).map_err(|error| error.during("open the new state disk"))
    }

    /// systemd would not make one: according to its udev rules, a mapped disk is not ready before it has one.
    async fn make_file_system(&self) -> Result<(), PortError> {
        let mut arguments = words(&["-q"]);
        arguments.push(self.mapping().into());
        let call = Call { program: "mkfs.ext4", arguments, input: None, limit: FILE_SYSTEM_LIMIT };
        let made = self.programs.run(call).await;
        made.map(drop).map_err(|error| error.during("make the file system of the state disk"))
    }

    pub(super) async fn close(&self, name: &str) -> Result<(), PortError> {
        let closed = self.cryptsetup(words(&["close", name]), None).await;
        closed.map(drop).map_err(|error| error.during("close a mapping of the new state disk"))
    }

    /// The digest is written first: a passphrase without a digest came from elsewhere.
    pub(super) fn hand_over_made(&self, passphrase: &SecretBytes) -> Result<(), PortError> {
        let made = self.scratch.join(MADE);
        write_whole(&made, digest(passphrase).as_bytes(), KEY_MODE).map_err(|error| {
            let operation = format!("write {}", made.display());
            PortError::new(PortErrorKind::Unavailable, operation).because(error)
        })?;
        self.hand_over(passphrase)
    }

    /// Whether the first passphrase is the one that [`dangerous_make`](Self::dangerous_make) generated in
    /// this boot.
    ///
    /// # Security
    /// Whoever formatted a disk may know its volume key, and another passphrase does not change that.
    pub fn is_made_here(&self) -> Result<bool, PortError> {
        let Some(passphrase) = self.initial_passphrase()? else {
            return Ok(false);
        };
        let made = self.scratch.join(MADE);
        match fs::read(&made) {
            Ok(kept) => Ok(kept == digest(&passphrase).into_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                let operation = format!("read {}", made.display());
                Err(PortError::new(PortErrorKind::Unavailable, operation).because(error))
            }
        }
    }

    /// Puts a key where systemd looks for it.
    pub fn hand_over(&self, key: &SecretBytes) -> Result<(), PortError> {
        let content = key.expose("systemd opens the disk with it");
        write_whole(&self.initial_key, content, KEY_MODE).map_err(|error| {
            let operation = format!("write {}", self.initial_key.display());
            PortError::new(PortErrorKind::Unavailable, operation).because(error)
        })
    }

    /// Records on the disk that a cluster has a key for it.
    pub(super) async fn mark_claimed(&self) -> Result<(), PortError> {
        let mut arguments = words(&["config", "--label", CLAIMED]);
        arguments.push(self.device.clone().into());
        let marked = self.cryptsetup(arguments, None).await;
        marked.map(drop).map_err(|error| error.during("mark the state disk as claimed"))
    }
}

/// Digest of 32 random bytes; it does not reveal them.
fn digest(passphrase: &SecretBytes) -> String {
    Sha256Digest::of(passphrase.expose("tell it from the passphrases of others")).to_string()
}
