//! Errors in reading an image.

use std::error::Error;

use tec_core::code::Code;
use tec_core::port::causes;
use tec_tpm::compute::input::{BlobError, InputError};
use tec_tpm::output::OutputError;

/// An image of a registry cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The client cannot be created.
    #[error("cannot set up the registry client")]
    Setup(#[source] Box<dyn Error + Send + Sync>),
    /// There is no answer, or it is incomplete.
    #[error("cannot reach {url}")]
    Unreachable {
        /// URL of the request.
        url: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The registry asks clients to retry later.
    #[error("{url} answers {status}")]
    Unavailable {
        /// URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The registry denies access.
    #[error("the registry denies access to {url} (status {status})")]
    Denied {
        /// URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The registry does not have it.
    #[error("{0} does not exist")]
    Absent(String),
    /// The answer does not follow the protocol.
    #[error("the answer of {url} violates the protocol: {what}")]
    Answer {
        /// URL of the request.
        url: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The document is larger than the limit.
    #[error("{what} has more than {limit} bytes")]
    TooLarge {
        /// Name of the document.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The content does not match its digest.
    #[error("the content of {url} does not match sha256:{digest}")]
    Altered {
        /// URL that it came from.
        url: String,
        /// The digest.
        digest: tec_core::digest::Sha256Digest,
    },
    /// A manifest, an index or a configuration is malformed.
    #[error("{what} {digest} is malformed: {detail}")]
    Document {
        /// The expected type.
        what: &'static str,
        /// Its digest.
        digest: String,
        /// What is wrong.
        detail: String,
    },
    /// There is no image for the platform, or several.
    #[error(
        "expected one image for {platform} in {reference}, found {count}; available: {}",
        found.join(", ")
    )]
    Platform {
        /// The image.
        reference: String,
        /// The platform.
        platform: String,
        /// Number of matching images.
        count: usize,
        /// Platforms of all images.
        found: Vec<String>,
    },
    /// The label is malformed.
    #[error("cannot use the label {name} of {reference}")]
    Label {
        /// The image.
        reference: String,
        /// Name of the label.
        name: &'static str,
        /// The cause.
        #[source]
        source: OutputError,
    },
    /// None of the accepted keys signed the image.
    #[error("no accepted key signed {reference} (signatures found: {found})")]
    Unsigned {
        /// The image.
        reference: String,
        /// Number of its signatures.
        found: usize,
    },
    /// The layers cannot be read.
    #[error("cannot read the layers of {reference}")]
    Layers {
        /// The image.
        reference: String,
        /// The cause.
        #[source]
        source: Box<InputError>,
    },
}

impl RegistryError {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Setup(_) => Code::TlsMaterial,
            Self::Unreachable { .. } | Self::Unavailable { .. } => Code::RegistryUnreachable,
            Self::Denied { .. } => Code::ImageDenied,
            Self::Absent(_) => Code::ImageAbsent,
            Self::Answer { .. } => Code::RegistryAnswer,
            Self::TooLarge { .. } => Code::ImageTooLarge,
            Self::Altered { .. } => Code::ImageAltered,
            Self::Document { .. } => Code::ImageUnreadable,
            Self::Layers { source, .. } => code_of_layers(source),
            Self::Platform { .. } => Code::ImagePlatform,
            Self::Label { .. } => Code::ImageLabel,
            Self::Unsigned { .. } => Code::ImageUnsigned,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unavailable { .. })
    }
}

/// A layer may be unreadable, altered or missing.
fn code_of_layers(error: &InputError) -> Code {
    if let Some(error) = cause::<RegistryError>(error) {
        return error.code();
    }
    match cause::<BlobError>(error) {
        Some(_) => Code::ImageAltered,
        None => error.code(),
    }
}

/// The cause of this type.
fn cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(<dyn Error>::downcast_ref)
}
