//! The header of a LUKS2 disk: tokens of Clevis, and passphrases, through `cryptsetup`.
//!
//! Every change is one write of `cryptsetup`, which keeps two copies of the header and so survives
//! a power cut (LUKS2 On-Disk Format Specification, "Metadata Recovery").

mod cryptsetup;
#[cfg(test)]
pub(crate) mod fake;
mod found;
mod recovery;
mod token;

use std::{fmt, io};

use tec_core::secret::SecretBytes;
use tec_trustee::clevis::ClevisError;

pub use self::cryptsetup::Cryptsetup;
pub use self::found::bound;
pub use self::recovery::{RecoveryState, RecoveryToken, RecoveryView, SlotMark};
pub use self::token::Token;

/// A disk's header cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// `cryptsetup` cannot be used.
    #[error("run cryptsetup to {operation}")]
    Start {
        /// What for.
        operation: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `cryptsetup` failed.
    #[error("cryptsetup cannot {operation}: {message}")]
    Failed {
        /// What was to be done.
        operation: &'static str,
        /// What it said.
        message: String,
    },
    /// The disks of the machine are unknown.
    #[error("lsblk cannot list the disks: {reason}")]
    List {
        /// What it said.
        reason: String,
    },
    /// The metadata is not that of LUKS2.
    #[error("the header has no metadata of LUKS2")]
    Metadata(#[source] serde_json::Error),
    /// No token of the pin.
    #[error("the header has no token of the pin trustee")]
    NoToken,
    /// Disks of other machines.
    #[error("the disks are bound to keys of several machines: {ids}")]
    Machines {
        /// Which.
        ids: String,
    },
    /// Every place for a token or a key slot is taken.
    #[error("the header has no room for another token or key slot")]
    Full,
    /// A passphrase that cannot go through a line of text.
    #[error("the passphrase of the disk has a line break")]
    LineBreak,
    /// The new passphrase does not open its slot.
    #[error("key slot {slot} does not open with the passphrase that it was made with")]
    SlotReadBack {
        /// Which.
        slot: u32,
    },
    /// What was written is not what is read.
    #[error("token {id} reads back as something else")]
    ReadBack {
        /// Which.
        id: u32,
    },
    /// A token holds no sealed passphrase.
    #[error("token {id} holds no passphrase that can be opened")]
    Sealed {
        /// Which.
        id: u32,
        /// Why.
        #[source]
        source: ClevisError,
    },
    /// The passphrase in the token does not open the disk.
    #[error("the passphrase of token {id} opens none of its key slots")]
    Stale {
        /// Which.
        id: u32,
    },
}

/// The header of one disk.
///
/// *Contract*: each change is atomic and durable when the call returns. *Implemented by*
/// [`Cryptsetup`], and by a double in the tests that dies at every step.
pub trait Header: fmt::Debug + Send + Sync {
    /// The tokens of the pin `trustee`, by their number.
    ///
    /// # Errors
    /// [`DiskError`].
    fn tokens(&self) -> Result<Vec<Token>, DiskError>;

    /// Writes a token at a free number, and returns the number.
    ///
    /// # Errors
    /// [`DiskError`].
    fn add_token(&self, slots: &[String], sealed: &str) -> Result<u32, DiskError>;

    /// Removes a token.
    ///
    /// # Errors
    /// [`DiskError`].
    fn remove_token(&self, id: u32) -> Result<(), DiskError>;

    /// Key slots, and tokens of recovery keys.
    ///
    /// # Errors
    /// [`DiskError`].
    fn recovery(&self) -> Result<RecoveryView, DiskError>;

    /// Writes a token of a recovery key, and returns its number.
    ///
    /// # Errors
    /// [`DiskError`].
    fn add_recovery_token(
        &self,
        slot: u32,
        state: RecoveryState,
        mark: SlotMark,
    ) -> Result<u32, DiskError>;

    /// Makes a key slot of this number that is recognized by this mark, authorized by a passphrase of
    /// the disk.
    ///
    /// # Errors
    /// [`DiskError`], also when the slot is taken.
    fn add_slot(
        &self,
        slot: (u32, SlotMark),
        old: &SecretBytes,
        new: &SecretBytes,
    ) -> Result<(), DiskError>;

    /// Removes a key slot, for good.
    ///
    /// # Errors
    /// [`DiskError`].
    fn remove_slot(&self, slot: u32) -> Result<(), DiskError>;

    /// Whether a passphrase opens a key slot.
    ///
    /// # Errors
    /// [`DiskError`].
    fn opens(&self, slot: &str, passphrase: &SecretBytes) -> Result<bool, DiskError>;
}
