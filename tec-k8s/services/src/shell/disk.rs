//! The disk next to the vault.

use std::{fmt, io};

/// Where the wrapped key is, and how the vault's storage is emptied.
///
/// *Contract*: a `write` is complete and durable when it returns, or has had no effect; `reset` returns when
/// the storage is empty and the vault starts again. *Implementations*: the directory of `services-bootstrap`;
/// test doubles.
pub trait Disk: fmt::Debug + Send + Sync {
    /// The file, if there is one.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;
    /// Writes the file with mode 0600: writes a temporary file, syncs it, renames it, and syncs the
    /// directory.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;
    /// Removes the file, if there is one.
    fn remove(&self) -> io::Result<()>;
    /// Records, as durably as the file, that the vault is about to be initialized under the wrapping key with
    /// this name.
    fn write_intent(&self, key_id: &str) -> io::Result<()>;
    /// The name of that wrapping key, if it was recorded.
    fn read_intent(&self) -> io::Result<Option<Vec<u8>>>;
    /// Removes that record, if it exists.
    fn remove_intent(&self) -> io::Result<()>;
    /// Records, as durably as the file, which restore is under way.
    fn write_restore(&self, note: &str) -> io::Result<()>;
    /// That record, if there is one.
    fn read_restore(&self) -> io::Result<Option<Vec<u8>>>;
    /// Removes that record, if it exists.
    fn remove_restore(&self) -> io::Result<()>;
    /// Asks the vault's supervisor to stop it, empty its storage, and start it.
    fn request_reset(&self) -> io::Result<()>;
    /// Withdraws the reset request, if it has not been carried out yet.
    fn withdraw_reset(&self) -> io::Result<()>;
    /// Whether the reset request is still pending.
    fn is_reset_pending(&self) -> io::Result<bool>;
}
