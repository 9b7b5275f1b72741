//! `ApprovedImage`: an image whose boots may obtain keys.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::image;
use tec_core::image::{ExpectedPcr, ExpectedPcrs};

use super::cluster::registers_schema;
use super::condition::conditions_schema;
use super::convert::{ConvertError, parsed_time, stamp, stamped_at, time_schema};
use super::rule::{by_digest, immutable, stays_set};

/// The separator between the name of an image and its digest.
pub(super) const DIGEST_MARK: &str = "@sha256:";
/// The reference of an image that has no digest, such as a directory that an admin approved.
const REFERENCE: &str = "trusted-execution-clusters.io/reference";
/// When it was approved, if that differs from when the object was created.
const APPROVED_AT: &str = "trusted-execution-clusters.io/approved-at";

/// A bootable container image, identified by its digest.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "ApprovedImage",
    plural = "approvedimages",
    shortname = "teci",
    category = "trusted-execution",
    namespaced,
    status = "ApprovedImageStatus",
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "An image whose boots may obtain keys.",
    printcolumn = r#"{"name":"Image","type":"string","jsonPath":".spec.image"}"#,
    printcolumn = r#"{"name":"Committed","type":"string","jsonPath":".status.conditions[?(@.type==\"Committed\")].status"}"#,
    printcolumn = r#"{"name":"Expires","type":"string","jsonPath":".spec.expiresAt"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Committed\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = stays_set("revokedAt"))]
#[non_exhaustive]
pub struct ApprovedImageSpec {
    /// Reference of the image, with its digest: `registry.example/os@sha256:…`.
    #[x_kube(
        validation = immutable(),
        validation = by_digest()
    )]
    pub image: String,

    /// When the approval expires, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub expires_at: Option<String>,

    /// When the approval was revoked, RFC 3339; final. Deleting the object also revokes it, but leaves no
    /// trace of the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    #[x_kube(validation = immutable())]
    pub revoked_at: Option<String>,

    /// Name of a Secret with the credentials of the registry (kubernetes.io/dockerconfigjson).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub pull_secret: Option<String>,
}

/// Observed state of the image.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovedImageStatus {
    /// `Committed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that the operator acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// When its measurements first became known, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub first_seen: Option<String>,

    /// Measurements of its boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pcrs_schema")]
    pub pcrs: Vec<ExpectedPcr>,

    /// TPM registers that a boot of the image must match; empty if no boot of it gets a key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "registers_schema")]
    pub pinned_pcrs: Vec<u8>,
}

/// A list of registers, in the form of the image label `org.coreos.pcrs`.
fn pcrs_schema(_: &mut SchemaGenerator) -> Schema {
    let digest = json_schema!({"type": "string", "pattern": "^[0-9a-f]{64}$"});
    // A TPM has 24 registers (PC Client Platform TPM Profile 1.05, section 4.6).
    let register = json_schema!({"type": "integer", "minimum": 0, "maximum": 23});
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["id"],
        "items": {
            "type": "object",
            "required": ["id", "value", "events"],
            "properties": {
                "id": register,
                "value": digest,
                "events": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "pcr", "hash", "id"],
                        "properties": {
                            "name": {"type": "string"},
                            "pcr": register,
                            "hash": digest,
                            "id": {"type": "string"},
                            "source": {"type": "string"},
                        },
                    },
                },
            },
        },
    })
}

impl ApprovedImage {
    /// The object for an approved image. The measurements of its boot are in its status, which an API server
    /// accepts only in a separate request.
    pub fn from_core(image: &image::ApprovedImage) -> Self {
        let mut spec =
            ApprovedImageSpec { image: image.reference.clone(), ..ApprovedImageSpec::default() };
        spec.expires_at = image.expires_at.map(|time| time.to_string());
        spec.revoked_at = image.revoked_at.map(|time| time.to_string());
        let mut object = Self::new(image.name.as_str(), spec);
        if object.digest().is_err() {
            object.spec.image = stand_in(image);
            let annotations = object.annotations_mut();
            annotations.insert(REFERENCE.to_owned(), image.reference.clone());
        }
        stamp(&mut object, APPROVED_AT, image.approved_at);
        let status = object.status.get_or_insert_default();
        status.pcrs.clone_from(&image.expected.pcrs);
        object
    }

    /// The image as a domain object; without measurements while they are unknown.
    ///
    /// # Errors
    /// A name or a time is malformed. Whether the reference ends with a digest is checked only by
    /// [`digest`](Self::digest), since the measurements are what is approved.
    pub fn to_core(&self) -> Result<image::ApprovedImage, ConvertError> {
        let name = self.name_any();
        let image_name = name.parse().map_err(|source| ConvertError::ImageName { name, source })?;
        let pcrs = self.status.as_ref().map(|status| status.pcrs.clone());
        let mut image = image::ApprovedImage::new(
            image_name,
            self.annotations().get(REFERENCE).unwrap_or(&self.spec.image),
            ExpectedPcrs::new(pcrs.unwrap_or_default()),
            stamped_at(self, APPROVED_AT)?,
        );
        image.expires_at = parsed_time(self, self.spec.expires_at.as_deref())?;
        image.revoked_at = parsed_time(self, self.spec.revoked_at.as_deref())?;
        Ok(image)
    }

    /// The digest, if the reference ends with a complete SHA-256 digest. The validation rule of the resource
    /// is laxer, as in existing clusters.
    ///
    /// # Errors
    /// It does not.
    pub fn digest(&self) -> Result<&str, ConvertError> {
        let is_digest =
            |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        self.spec
            .image
            .split_once(DIGEST_MARK)
            .filter(|(image, digest)| !image.is_empty() && is_digest(digest))
            .map(|(_, digest)| digest)
            .ok_or_else(|| ConvertError::NoDigest { name: self.name_any() })
    }
}

/// A reference for an image that has none: the digest of its measurements, in a registry that does not exist
/// (RFC 6761, section 6.4).
fn stand_in(image: &image::ApprovedImage) -> String {
    let measures = serde_json::to_vec(&image.expected).unwrap_or_default();
    let digest = Sha256Digest::of(measures);
    format!("local.invalid/{}{DIGEST_MARK}{digest}", image.name)
}
