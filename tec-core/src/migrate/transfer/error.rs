//! Why a transfer is refused.

use std::io;

use crate::code::Code;

/// A transfer cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The file has another format.
    #[error("not a TEC backup or transfer file: {0}")]
    Malformed(String),
    /// The file was written by a newer program.
    #[error("the transfer has version {found}; this program supports up to {known}")]
    Newer {
        /// Version of the file.
        found: u32,
        /// Highest supported version.
        known: u32,
    },
    /// The file ends too early.
    #[error("the transfer is truncated in {0}")]
    Truncated(String),
    /// A signature or seal is invalid.
    #[error("{0} of the transfer was altered")]
    Altered(String),
    /// The transfer comes from another signer, or is for another recipient.
    #[error("the transfer is {0}")]
    Foreign(&'static str),
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
            Self::Malformed(_) | Self::Io { .. } => Code::TransferMalformed,
            Self::Newer { .. } => Code::TransferVersion,
            Self::Truncated(_) => Code::TransferTruncated,
            Self::Altered(_) => Code::TransferAltered,
            Self::Foreign(_) => Code::TransferForeign,
        }
    }

    pub(super) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }

    pub(super) fn altered(part: impl Into<String>) -> Self {
        Self::Altered(part.into())
    }

    /// A read that reached the end of the file means truncation.
    pub(super) fn reading(within: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated(within.into()),
            _ => Self::Io { operation: "read the transfer", source },
        }
    }

    pub(super) fn writing(source: io::Error) -> Self {
        Self::Io { operation: "write the transfer", source }
    }
}
