//! Errors in the conversion of an object to its domain type.

use k8s_openapi::jiff;
use kube::{Resource, ResourceExt as _};
use schemars::{Schema, SchemaGenerator, json_schema};
use tec_core::ak::{ParseFingerprintError, ParsePublicKeyError};
use tec_core::id::{ParseImageNameError, ParseMachineIdError};
use tec_core::time::{ParseTimestampError, Timestamp};

/// An object cannot be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The ID of a machine is not a UUID.
    #[error("the ID in object {name} is not a UUID")]
    MachineId {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParseMachineIdError,
    },
    /// The clock of a TPM is malformed.
    #[error("cannot read the clock of a TPM")]
    Clock(#[source] serde_json::Error),
    /// The platform of a machine is malformed.
    #[error("cannot read or write the platform of a machine")]
    Platform(#[source] serde_json::Error),
    /// An attestation attempt is malformed.
    #[error("cannot read or write an attestation attempt")]
    Attempt(#[source] serde_json::Error),
    /// The key names no machine, as with old nodes.
    #[error("attestation key {0} names no machine")]
    NoMachine(String),
    /// The type of the key is not allowed for an attestation key.
    #[error("attestation key {name} contains no acceptable public key")]
    PublicKey {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParsePublicKeyError,
    },
    /// The object's name cannot be an image name.
    #[error("object name {name} is not the name of an image")]
    ImageName {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParseImageNameError,
    },
    /// The image is not referenced by digest.
    #[error("image {0} is not referenced by its SHA-256 digest")]
    NoDigest(String),
    /// The endorsement key is not a fingerprint.
    #[error("attestation key {name} names an endorsement key that is not a SHA-256 fingerprint")]
    EndorsementKey {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParseFingerprintError,
    },
    /// A time is not RFC 3339.
    #[error("object {name} has a malformed time")]
    MalformedTime {
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ParseTimestampError,
    },
    /// The object was never stored: it has no creation time.
    #[error("object {0} has no creation timestamp")]
    NotCreated(String),
    /// The time cannot be written.
    #[error("the time is out of range")]
    Time(#[source] jiff::Error),
}

/// Records a time that differs from when the API server stores the object.
pub(super) fn stamp(object: &mut impl Resource, annotation: &str, time: Timestamp) {
    object.annotations_mut().insert(annotation.to_owned(), time.to_string());
}

/// The time in the annotation, or when the API server first stored the object.
pub(super) fn stamped_at(
    object: &impl Resource,
    annotation: &str,
) -> Result<Timestamp, ConvertError> {
    if let Some(time) =
        parsed_time(object, object.annotations().get(annotation).map(String::as_str))?
    {
        return Ok(time);
    }
    let created = object.meta().creation_timestamp.as_ref();
    created
        .map(|time| Timestamp::from_unix_seconds(time.0.as_second()))
        .ok_or_else(|| ConvertError::NotCreated(object.name_any()))
}

/// An optional time in the object.
pub(super) fn parsed_time(
    object: &impl Resource,
    text: Option<&str>,
) -> Result<Option<Timestamp>, ConvertError> {
    let parse = |text: &str| {
        text.parse()
            .map_err(|source| ConvertError::MalformedTime { name: object.name_any(), source })
    };
    text.map(parse).transpose()
}

/// A time in RFC 3339.
pub(super) fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}
