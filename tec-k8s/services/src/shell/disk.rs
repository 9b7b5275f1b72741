//! The disk next to the vault.

use std::{fmt, io};

/// What is kept next to the vault's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The wrapped key.
    Key,
    /// The vault is about to be initialized: the name of the wrapping key.
    Intent,
    /// Which restore is under way.
    Restore,
    /// Asks the vault's supervisor to stop it, empty its storage, start it, and remove this.
    Reset,
}

/// Where the wrapped key is, and how the vault's storage is emptied.
///
/// *Contract*: a `write` is complete and durable when it returns, or has had no effect, and nobody else can
/// read it. *Implementations*: the directory of `services-bootstrap`; test doubles.
pub trait Disk: fmt::Debug + Send + Sync {
    /// The content, if there is any.
    fn read(&self, note: Note) -> io::Result<Option<Vec<u8>>>;
    /// Replaces the content.
    fn write(&self, note: Note, content: &[u8]) -> io::Result<()>;
    /// Removes it, if it exists.
    fn remove(&self, note: Note) -> io::Result<()>;
}
