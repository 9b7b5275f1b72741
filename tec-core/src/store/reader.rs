//! A small pool of read-only connections.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rusqlite::Connection;

use super::error::StoreError;
use super::schema;

/// Maximum number of concurrent reads; further reads wait for the first connection.
const CONNECTIONS: usize = 4;

/// The pool.
#[derive(Debug)]
pub(super) struct Readers {
    first: Mutex<Connection>,
    others: Vec<Mutex<Connection>>,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let open = || schema::open_reader(path).map(Mutex::new);
        Ok(Self {
            first: open()?,
            others: (1..CONNECTIONS).map(|_| open()).collect::<Result<_, _>>()?,
        })
    }

    /// Runs `work` on a free connection, on this thread.
    pub(super) fn with<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&self.connection())
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        for connection in std::iter::once(&self.first).chain(&self.others) {
            match connection.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        // A read cannot leave a connection half-done, so poison means nothing.
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
