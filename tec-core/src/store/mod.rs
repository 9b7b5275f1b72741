//! The embedded store: machines, attestation keys, images, sealed disk keys, audit log and attempt
//! log in one SQLite file (feature `embedded`).
//!
//! *What it is*: the implementation of all storage [`port`](crate::port)s for one host. Every
//! write is on disk when its call returns.
//!
//! *What it is not*: a cache, or a database for several hosts. It is the only place in this crate
//! that does I/O; it starts one thread, which ends with the store.
//!
//! ```text
//! call ─► bounded queue ─► writer thread: BEGIN IMMEDIATE
//! call ─►      "              SAVEPOINT per call (one that is refused leaves nothing behind)
//! call ─►      "           COMMIT: one fsync for all that waited ─► each caller is answered
//! find ──────────────────► pool of read-only connections
//! ```
//! The state directory holds `tec.db` (with `-wal` and `-shm` next to it) and `seal.key`, all
//! closed to other users. Losing `seal.key` means losing every disk key in the store: back up both the
//! database and the key, again after [`Store::reseal`].
//!
//! Every write checks the record of authority in its own transaction ([`crate::migrate`]): a store
//! that gave up the authority approves nothing, and one that was replaced releases nothing.
//!
//! Reads run on the caller's thread: they take microseconds, since the file is small and its pages
//! are cached. Several processes may open one directory; writers take turns.
//!
//! # Cancel safety
//! A write whose future is dropped may still happen, as if its acknowledgement had been lost.

mod access;
mod ak;
mod attempt;
mod audit;
mod authority;
mod clock;
mod demands;
mod error;
mod image;
mod machine;
mod name;
mod platform;
mod reader;
mod reseal;
mod rotation;
mod schema;
mod seal;
mod secret;
mod trust;
mod writer;

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use self::error::Failure;
use self::reader::Readers;
use self::seal::Seal;
use self::writer::Writer;
use crate::port::{Entropy, PortError};

pub use self::audit::{AuditEntry, AuditPlace, AuditVerdict};
pub use self::error::StoreError;

/// The embedded store.
///
/// Several of its traits have methods with the same name. Call them through `&dyn MachineRegistry` and so on,
/// or as `MachineRegistry::find(&store, …)`.
///
/// Dropping it waits for queued writes.
#[derive(Debug)]
pub struct Store {
    // In this order: readers close first, so that the writer is last and cleans up.
    readers: Readers,
    writer: Writer,
    seal: Arc<Seal>,
}

impl Store {
    /// Opens the store in a state directory, or creates it there. Creates the directory itself, but
    /// not its parents.
    ///
    /// Reads the whole file once for a quick check, so run it on a blocking thread if the file may
    /// be large.
    ///
    /// # Errors
    /// `Access` if the directory or a file has the wrong owner or mode, `Corrupt` if the file is
    /// damaged or not a store, `Newer` if a newer version wrote it, `Seal` if the seal key is not
    /// the one that its secrets were sealed with, `Busy` while another process has it locked.
    ///
    /// # Security
    /// Refuses to create a new seal key, or an empty database, next to the other half of an old
    /// pair.
    pub fn open(dir: &Path, entropy: &dyn Entropy) -> Result<Self, StoreError> {
        access::check(dir)?;
        // Concurrent first starts create one database and one seal key.
        let _alone = access::lock(dir)?;
        let db_path = access::database_file(dir)?;
        let mut db = schema::open_writer(&db_path)?;
        let seal = Arc::new(Seal::load(dir, &mut db, entropy)?);
        authority::found(&db, entropy)?;
        // SQLite has created its own files by now.
        access::check(dir)?;
        Ok(Self { readers: Readers::open(&db_path)?, writer: Writer::start(db)?, seal })
    }

    /// Checks that the store can be read, its writer runs, and its seal key was not replaced since.
    pub fn health(&self) -> Result<(), StoreError> {
        if !self.writer.is_running() {
            return Err(StoreError::Stopped);
        }
        self.readers.with(|db| {
            db.query_row("SELECT seq FROM audit_head", (), |_| Ok(()))
                .map_err(|source| StoreError::sqlite("read the store", source))?;
            self.seal.is_current(db)
        })
    }

    /// Reads for a port. Its error names `operation`.
    fn read<T, E: Into<Failure>>(
        &self,
        operation: impl Into<String>,
        work: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, PortError> {
        self.readers.with(work).map_err(|error| error.into().during(operation))
    }

    /// Queues a write and waits until it is durable. Its error names `operation`.
    async fn write<T: Send + 'static>(
        &self,
        operation: impl Into<String>,
        work: impl FnMut(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, PortError> {
        self.writer.run(work).await.map_err(|failure| failure.during(operation))
    }
}

#[cfg(test)]
mod tests;
