//! Errors of the store, each with a code.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::code::Code;
use crate::migrate::{NoAuthority, Refused};
use crate::port::{PortError, PortErrorKind};

type Cause = Box<dyn Error + Send + Sync>;

/// The store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The state directory or a file in it has the wrong owner, mode or type.
    #[error("{} {found} ({fix})", path.display())]
    Access {
        /// Directory or file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
        /// Command that fixes it.
        fix: String,
    },
    /// A file operation failed.
    #[error("{operation} {}", path.display())]
    File {
        /// The operation that failed.
        operation: &'static str,
        /// Directory or file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The database is damaged, or is not a store.
    #[error("the store is damaged: {what}")]
    Corrupt {
        /// Where the damage is, or how it was detected.
        what: String,
        /// The cause, if a library reports one.
        #[source]
        source: Option<Cause>,
    },
    /// The database was written by a newer version of this program.
    #[error("the store has schema version {found}; this program supports up to {known}")]
    Newer {
        /// Version in the file.
        found: i64,
        /// Highest version that this program knows.
        known: i64,
    },
    /// Secrets cannot be unsealed.
    #[error("the seal key does not match: {0}")]
    Seal(String),
    /// There is no space left for writing.
    #[error("no space left to {operation}")]
    Full {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// Another process has locked the database.
    #[error("cannot {operation}: another process has locked the store")]
    Busy {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The database cannot be read or written for another reason.
    #[error("{operation}")]
    Database {
        /// The operation that failed.
        operation: &'static str,
        /// Kind of the failure, which determines whether a retry may succeed.
        kind: PortErrorKind,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The transaction that this write shared with others failed; nothing in it was kept.
    #[error("commit")]
    Commit(#[source] Arc<Self>),
    /// The writer stopped.
    #[error("the store's writer stopped")]
    Stopped,
}

impl StoreError {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Access { .. } => Code::StoreAccess,
            Self::Corrupt { .. } => Code::StoreCorrupt,
            Self::Newer { .. } => Code::StoreVersion,
            Self::Seal(_) => Code::KeySealed,
            Self::Full { .. } => Code::StoreFull,
            Self::File { .. } | Self::Busy { .. } | Self::Database { .. } | Self::Stopped => {
                Code::StoreUnavailable
            }
            Self::Commit(cause) => cause.code(),
        }
    }

    /// Kind of failure, as reported to the caller of a port.
    pub fn kind(&self) -> PortErrorKind {
        match self {
            Self::Full { .. } | Self::Busy { .. } | Self::File { .. } | Self::Stopped => {
                PortErrorKind::Unavailable
            }
            Self::Database { kind, .. } => *kind,
            Self::Commit(cause) => cause.kind(),
            Self::Access { .. } | Self::Corrupt { .. } | Self::Newer { .. } | Self::Seal(_) => {
                PortErrorKind::Internal
            }
        }
    }

    pub(super) fn file(operation: &'static str, path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull {
            return Self::Full { operation, source: source.into() };
        }
        if source.kind() == io::ErrorKind::PermissionDenied {
            let user = rustix::process::geteuid().as_raw();
            let found = format!("is closed to user {user} (cannot {operation} it)");
            let fix = format!("compare owner and mode: ls -ld {}", path.display());
            return Self::Access { path: path.to_owned(), found, fix };
        }
        Self::File { operation, path: path.to_owned(), source }
    }

    pub(super) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), source: None }
    }

    /// A value in the database that this program cannot have written.
    pub(super) fn undecodable(what: &str, source: impl Into<Cause>) -> Self {
        Self::Corrupt {
            what: format!("a stored {what} cannot be read"),
            source: Some(source.into()),
        }
    }

    pub(super) fn sqlite(operation: &'static str, source: rusqlite::Error) -> Self {
        let code = source.sqlite_error_code();
        let source = Cause::from(source);
        match code {
            Some(ErrorCode::DiskFull) => Self::Full { operation, source },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Busy { operation, source }
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { what: format!("cannot {operation}"), source: Some(source) }
            }
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::OutOfMemory) => {
                Self::Database { operation, kind: PortErrorKind::Unavailable, source }
            }
            _ => Self::Database { operation, kind: PortErrorKind::Internal, source },
        }
    }
}

/// The reason why a call was not carried out.
#[derive(Debug)]
pub(super) enum Failure {
    /// The contract of the port refuses it.
    Refused(PortErrorKind),
    /// The anchor may not do this.
    NoAuthority(NoAuthority),
    /// The anchor accepts nothing, or nothing of this epoch.
    NotNow(Refused),
    /// The disk key of a machine is being rotated.
    RotationUnderWay {
        /// The machine.
        machine: String,
    },
    /// The store failed.
    Store(StoreError),
}

impl Failure {
    pub(super) fn during(self, operation: impl Into<String>) -> PortError {
        match self {
            Self::Refused(kind) => PortError::new(kind, operation),
            Self::NoAuthority(refused) => refused.during(operation),
            Self::NotNow(refused) => refused.during(operation),
            Self::RotationUnderWay { machine } => {
                let why = format!("{}: machine {machine}", operation.into());
                PortError::new(PortErrorKind::Conflict, why).with_code(Code::RotationUnderWay)
            }
            Self::Store(error) => error.during(operation),
        }
    }
}

impl StoreError {
    pub(super) fn during(self, operation: impl Into<String>) -> PortError {
        PortError::new(self.kind(), operation).with_code(self.code()).because(self)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// For statements of the ports, where [`PortError`] names the operation.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::sqlite("run the statement", error)
    }
}

/// `NotFound` unless a statement changed something.
pub(super) fn some_row(changed: usize) -> Result<(), Failure> {
    if changed == 0 { Err(Failure::Refused(PortErrorKind::NotFound)) } else { Ok(()) }
}
