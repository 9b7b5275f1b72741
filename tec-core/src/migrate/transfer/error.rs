//! Why a transfer is refused.

use std::io;

use crate::code::Code;

/// A transfer cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The file has another format.
    #[error("not a TEC backup or transfer file: {what}")]
    Malformed {
        /// What is wrong, with the position.
        what: String,
    },
    /// The file was written by a newer program.
    #[error("the transfer has version {found}; this program supports up to {known}")]
    Newer {
        /// Version of the file.
        found: u32,
        /// Highest supported version.
        known: u32,
    },
    /// The file ends too early.
    #[error("the transfer is truncated in {within}")]
    Truncated {
        /// What is incomplete.
        within: String,
    },
    /// A signature or seal is invalid.
    #[error("{part} of the transfer was altered")]
    Altered {
        /// The altered part.
        part: String,
    },
    /// The transfer comes from another signer, or is for another recipient.
    #[error("the transfer is {what}")]
    Foreign {
        /// What is wrong.
        what: &'static str,
    },
    /// The file cannot be read or written.
    #[error("{operation}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl TransferError {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Malformed { .. } | Self::Io { .. } => Code::TransferMalformed,
            Self::Newer { .. } => Code::TransferVersion,
            Self::Truncated { .. } => Code::TransferTruncated,
            Self::Altered { .. } => Code::TransferAltered,
            Self::Foreign { .. } => Code::TransferForeign,
        }
    }

    pub(super) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }

    pub(super) fn altered(part: impl Into<String>) -> Self {
        Self::Altered { part: part.into() }
    }

    /// A read that reached the end of the file means truncation.
    pub(super) fn reading(within: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated { within: within.into() },
            _ => Self::Io { operation: "read the transfer", source },
        }
    }

    pub(super) fn writing(source: io::Error) -> Self {
        Self::Io { operation: "write the transfer", source }
    }
}
