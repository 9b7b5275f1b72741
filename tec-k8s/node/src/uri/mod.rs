//! Where keys and storage are, as `kms://…` and `storage://…` URIs in requests.
//!
//! Parsed once, percent-decoded once, always encoded when written. Both contain secrets, so neither
//! prints its values: `Debug` and errors only name parameters, and [`KmsUri::to_secret_text`]
//! requires a reason.

mod connection;
mod kms;
mod place;
mod query;
mod storage;

use std::fmt::Write as _;

pub use self::connection::AzureConnection;
pub use self::kms::{AwsKey, AzureKey, GcpKey, KmsUri, OpenBaoKey, TrusteeKey};
pub use self::place::{ListedPlaces, ServicePlace, UnlistedPlace};
pub use self::storage::{AzureBlobs, FileStore, GcpBucket, S3Bucket, StorageUri};

/// A URI is refused. The message never contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// It is not a URI of the form `scheme://type?name=value&…`.
    #[error("not a URI of the form {0}://type?name=value")]
    Malformed(&'static str),
    /// It has a different scheme.
    #[error("the scheme is not {0}")]
    Scheme(&'static str),
    /// The type is unknown.
    #[error("unknown {0} type")]
    UnknownType(&'static str),
    /// A parameter is missing or empty.
    #[error("the parameter {0} is missing or empty")]
    Missing(&'static str),
    /// A parameter occurs twice.
    #[error("the parameter {0} is repeated")]
    Duplicate(&'static str),
    /// A parameter is not known for this type.
    #[error("{count} parameters are not supported by this type")]
    Unknown {
        /// Number of such parameters. Their names are left out: they may be unescaped parts of secrets.
        count: usize,
    },
    /// A value is not encoded as required.
    #[error("the value of {parameter} is not {form}")]
    Encoding {
        /// The parameter.
        parameter: &'static str,
        /// The required form.
        form: &'static str,
    },
}

/// Escapes every byte but the unreserved ones (RFC 3986, section 2.3).
pub(crate) fn escape(value: &[u8], to: &mut String) {
    for byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            to.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests;
