//! Why a boot cannot be predicted at all.

use std::io;

use tec_core::pcr::PcrIndex;

use super::authority::AuthorityError;
use super::find::FindError;
use super::grub::GrubError;
use super::layout::PeError;
use super::platform::PlatformError;
use super::shim_error::ShimError;
use super::signature::SignatureError;
use super::stub::StubError;
use super::unpredictable::Unpredictable;

/// The next boot cannot be predicted at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The boot files cannot be determined.
    #[error("cannot find the boot files")]
    Find(#[source] FindError),
    /// The variables contradict each other.
    #[error("cannot read the state of the machine")]
    Platform(#[source] PlatformError),
    /// A file cannot be opened or read.
    #[error("cannot read {file}")]
    Open {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file cannot be hashed.
    #[error("cannot hash {file}")]
    Pe {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: PeError,
    },
    /// The signature in a file does not match the file.
    #[error("the signature of {file} does not match")]
    Signature {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: SignatureError,
    },
    /// It cannot be determined who allows a file to start, or no one does: see
    /// [`AuthorityError::is_refusal`].
    #[error("cannot determine whether Secure Boot allows {file} to start")]
    Authority {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: AuthorityError,
    },
    /// What this shim measures is not known, or the shim would not continue.
    #[error("the measurements of {file} are not known")]
    Shim {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: ShimError,
    },
    /// What this GRUB measures is not known.
    #[error("the measurements of {file} are not known")]
    Grub {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: GrubError,
    },
    /// What this stub measures is not known, or the stub would not continue.
    #[error("the measurements of {file} are not known")]
    Stub {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: StubError,
    },
    /// A file is neither shim nor a unified kernel image.
    #[error("{file} is {what}; the programs it starts cannot be predicted")]
    UnknownLoader {
        /// Path in the image.
        file: String,
        /// What the file says it is.
        what: String,
    },
    /// shim starts a file that the image does not have.
    #[error("the file that {0} starts is missing from the image")]
    NoSecondStage(String),
    /// shim starts a program that creates boot entries and restarts the machine.
    #[error("shim would start {0}, which creates boot entries and restarts the machine")]
    Fallback(String),
    /// The boot entry passes options to shim, which may make it start something else.
    #[error("a boot entry passes options to {0}, which may make it start another file")]
    LoadOptions(String),
    /// The only requested register cannot be predicted.
    #[error("PCR {pcr} cannot be predicted")]
    Register {
        /// Register.
        pcr: PcrIndex,
        /// The cause.
        #[source]
        source: Unpredictable,
    },
}

impl PredictError {
    /// Whether it is certain that the machine would refuse to start a file.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Authority { source, .. } => source.is_refusal(),
            Self::Shim { source, .. } => matches!(source, ShimError::Revoked(_)),
            _ => false,
        }
    }

    /// The file that the error is about; none if files were not found or a variable is at fault.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Find(_) | Self::Platform(_) | Self::Register { .. } => None,
            Self::Open { file, .. }
            | Self::Pe { file, .. }
            | Self::Signature { file, .. }
            | Self::Authority { file, .. }
            | Self::Shim { file, .. }
            | Self::Grub { file, .. }
            | Self::Stub { file, .. }
            | Self::UnknownLoader { file, .. }
            | Self::NoSecondStage(file)
            | Self::Fallback(file)
            | Self::LoadOptions(file) => Some(file),
        }
    }
}
