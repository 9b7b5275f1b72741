//! What can be wrong with an object before the domain takes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff;
use tec_core::ak::ParsePublicKeyError;
use tec_core::id::ParseImageNameError;
use tec_core::id::ParseMachineIdError;
use tec_core::time::Timestamp;

/// An object and the domain do not fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The id of a machine is not a UUID.
    #[error("object {name} has an id that is not a UUID")]
    MachineId {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParseMachineIdError,
    },
    /// The key names no machine, as those of old nodes do.
    #[error("attestation key {name} names no machine")]
    NoMachine {
        /// Name of the object.
        name: String,
    },
    /// The key is not a public key that an attestation key may have.
    #[error("attestation key {name} holds no acceptable public key")]
    PublicKey {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParsePublicKeyError,
    },
    /// The object's name cannot be that of an image.
    #[error("object name {name} is not the name of an image")]
    ImageName {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParseImageNameError,
    },
    /// The image is not referenced by digest.
    #[error("image {name} is not referenced by its SHA-256 digest")]
    NoDigest {
        /// Name of the object.
        name: String,
    },
    /// Something revoked has no object.
    #[error("{name} is revoked, and what is revoked has no object")]
    Revoked {
        /// Its name.
        name: String,
    },
    /// The object cannot say that an approval ends by itself.
    #[error("the approval of {name} ends by itself, which the object cannot say")]
    Expires {
        /// Its name.
        name: String,
    },
    /// The object was never stored: it has no time of creation.
    #[error("object {name} has no creation timestamp")]
    NotCreated {
        /// Name of the object.
        name: String,
    },
    /// The time cannot be written.
    #[error("the time is out of range")]
    Time {
        /// Why.
        #[source]
        source: jiff::Error,
    },
}

/// When the API server stored the object first.
pub(super) fn created_at(metadata: &ObjectMeta) -> Result<Timestamp, ConvertError> {
    metadata
        .creation_timestamp
        .as_ref()
        .map(|time| Timestamp::from_unix_seconds(time.0.as_second()))
        .ok_or_else(|| ConvertError::NotCreated {
            name: metadata.name.clone().unwrap_or_default(),
        })
}
