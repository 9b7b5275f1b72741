//! The header of a LUKS2 disk: Clevis tokens and passphrases, through `cryptsetup`.
//!
//! Every change is one write of `cryptsetup`, which keeps two copies of the header and so survives
//! a power cut (LUKS2 On-Disk Format Specification, "Metadata Recovery").

mod cryptsetup;
mod found;
mod recovery;
pub(crate) mod stack;
#[cfg(test)]
pub(crate) mod tests;
mod token;

use std::fs::File;
use std::path::PathBuf;
use std::{fmt, fs, io};

use tec_core::luks::header::HeaderError;
use tec_core::secret::SecretBytes;
use tec_trustee::clevis::ClevisError;

pub use self::cryptsetup::Cryptsetup;
pub use self::found::bound;
pub(crate) use self::found::check_all;
pub use self::recovery::{RecoveryState, RecoveryToken, RecoveryView, SlotMark};
pub use self::token::Token;

/// A disk's header cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// `cryptsetup` cannot be run.
    #[error("cannot run cryptsetup to {operation}")]
    Start {
        /// What `cryptsetup` was run for.
        operation: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// `cryptsetup` failed.
    #[error("cryptsetup cannot {operation}: {message}")]
    Failed {
        /// What `cryptsetup` was run for.
        operation: &'static str,
        /// Its error output.
        message: String,
    },
    /// The disks of the machine cannot be listed.
    #[error("cannot list the disks: {0}")]
    List(String),
    /// The metadata is not LUKS2 metadata.
    #[error("the header has no LUKS2 metadata")]
    Metadata(#[source] serde_json::Error),
    /// A header that no passphrase may be given to.
    #[error("the header of {} does not protect the disk", device.display())]
    Unsafe {
        /// The disk.
        device: PathBuf,
        /// The finding.
        #[source]
        source: HeaderError,
    },
    /// The disk has no token of the pin.
    #[error("the header has no token of the Clevis pin trustee")]
    NoToken,
    /// The disks belong to several machines.
    #[error("the disks are bound to keys of several machines: {0}")]
    Machines(String),
    /// Every token number or key slot is taken.
    #[error("the header has no room for another token or key slot")]
    Full,
    /// The passphrase contains a line break, so it cannot be passed as a line of text.
    #[error("the passphrase of the disk contains a line break")]
    LineBreak,
    /// The new passphrase does not open its slot.
    #[error("key slot {0} does not open with the passphrase that was just added to it")]
    SlotReadBack(u32),
    /// The token read back differs from the token written.
    #[error("token {0} was read back with different content")]
    ReadBack(u32),
    /// A token holds no sealed passphrase.
    #[error("cannot read the sealed passphrase in token {id}")]
    Sealed {
        /// The token.
        id: u32,
        /// The cause.
        #[source]
        source: ClevisError,
    },
    /// The disk has tokens of two keys.
    #[error(
        "the header has tokens of two disk keys: a rotation is not finished, or was canceled (run `node-agent \
         key rotate`, then try again)"
    )]
    Rotating,
    /// The passphrase in the token does not open the disk.
    #[error("the passphrase of token {0} opens none of its key slots")]
    Stale(u32),
}

/// Held while key slots change. Not the device itself: `cryptsetup` locks that.
const LOCK: &str = "/run/lock/node-agent.lock";
const LOCKS: &str = "/run/lock";

/// Waits until no other `node-agent` changes key slots; until the file is dropped, no other one does.
pub fn lock() -> io::Result<File> {
    // Not every system has the directory.
    fs::create_dir_all(LOCKS)?;
    let file = File::options().create(true).append(true).open(LOCK)?;
    file.lock()?;
    Ok(file)
}

/// The header of one disk.
///
/// *Contract*: each change is atomic and durable when the call returns. A call fails with [`DiskError`] if it cannot
/// be made, `add_slot` also if the slot is taken. *Implemented by* [`Cryptsetup`], and in tests by a double that
/// dies at every step.
pub trait Header: fmt::Debug + Send + Sync {
    /// The tokens of the pin `trustee`, by number.
    fn tokens(&self) -> Result<Vec<Token>, DiskError>;

    /// Writes a token under a free number, and returns the number.
    fn add_token(&self, slots: &[String], sealed: &str) -> Result<u32, DiskError>;

    /// Removes a token.
    fn remove_token(&self, id: u32) -> Result<(), DiskError>;

    /// Key slots, and tokens of recovery keys.
    fn recovery(&self) -> Result<RecoveryView, DiskError>;

    /// Writes a recovery key token, and returns its number.
    fn add_recovery_token(
        &self,
        slot: u32,
        state: RecoveryState,
        mark: SlotMark,
    ) -> Result<u32, DiskError>;

    /// Creates a key slot with a mark, authorized by a passphrase of the disk.
    fn add_slot(
        &self,
        slot: (u32, SlotMark),
        old: &SecretBytes,
        new: &SecretBytes,
    ) -> Result<(), DiskError>;

    /// Removes a key slot permanently.
    fn remove_slot(&self, slot: u32) -> Result<(), DiskError>;

    /// Whether a passphrase opens a key slot.
    fn opens(&self, slot: &str, passphrase: &SecretBytes) -> Result<bool, DiskError>;
}
