//! Where keys and storage are, as the texts `kms://…` and `storage://…` that requests carry.
//!
//! Parsed once, percent-decoded once, always encoded when written. Both carry secrets, so neither
//! prints its values: `Debug` and errors name parameters, [`KmsUri::to_secret_text`] has a reason.

mod kms;
mod older;
mod place;
mod query;
mod storage;

pub use self::kms::{AwsKey, AzureKey, GcpKey, KmsUri, OpenBaoKey, TrusteeKey};
pub use self::older::{AzureConnection, PlatformBucket, PlatformKey};
pub use self::place::{ListedPlaces, ServicePlace, UnlistedPlace};
pub use self::storage::{AzureBlobs, FileStore, GcpBucket, S3Bucket, StorageUri};

/// A URI was refused. No value is ever part of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// It is no URI of the form `scheme://type?name=value&…`.
    #[error("not a URI of the form {scheme}://type?name=value")]
    Malformed {
        /// What it should begin with.
        scheme: &'static str,
    },
    /// Another scheme.
    #[error("the scheme is not {scheme}")]
    Scheme {
        /// What it should be.
        scheme: &'static str,
    },
    /// No such type.
    #[error("unknown {scheme} type")]
    UnknownType {
        /// Of which scheme.
        scheme: &'static str,
    },
    /// A parameter is missing or empty.
    #[error("the parameter {parameter} is missing or empty")]
    Missing {
        /// Which.
        parameter: &'static str,
    },
    /// A parameter is there twice.
    #[error("the parameter {parameter} is there twice")]
    Duplicate {
        /// Which of those that are known.
        parameter: &'static str,
    },
    /// A parameter that this type does not have.
    #[error("{count} parameters are unknown to this type")]
    Unknown {
        /// How many. Their names may be secrets that lack an escape.
        count: usize,
    },
    /// A value is not encoded as it must be.
    #[error("the value of {parameter} is not {form}")]
    Encoding {
        /// Which.
        parameter: &'static str,
        /// What it must be.
        form: &'static str,
    },
}

#[cfg(test)]
mod tests;
