//! `ApprovedImage`: an image whose boots may obtain keys.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kube::KubeSchema;
use kube::ResourceExt as _;
use serde::Deserialize;
use serde::Serialize;
use tec_core::image;
use tec_core::image::ExpectedPcrs;

use super::condition::conditions_schema;
use super::convert::ConvertError;
use super::convert::created_at;
use super::rule::by_digest;
use super::rule::immutable;

/// What stands between the name of an image and its digest.
const DIGEST_MARK: &str = "@sha256:";

/// A bootable container image by digest.
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
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Committed\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ApprovedImageSpec {
    /// Reference of the image, with its digest: `registry.example/os@sha256:…`.
    #[x_kube(
        validation = immutable(),
        validation = by_digest()
    )]
    pub image: String,
}

/// What is known of the image.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ApprovedImageStatus {
    /// `Committed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

impl ApprovedImage {
    /// The object for an approved image.
    ///
    /// # Errors
    /// When it was revoked (revocation deletes the object), ends by itself (the object cannot say
    /// so), or its reference has no digest.
    pub fn from_core(image: &image::ApprovedImage) -> Result<Self, ConvertError> {
        let name = image.name.as_str();
        if image.revoked_at.is_some() {
            return Err(ConvertError::Revoked { name: name.into() });
        }
        if image.expires_at.is_some() {
            return Err(ConvertError::Expires { name: name.into() });
        }
        let object = Self::new(
            name,
            ApprovedImageSpec {
                image: image.reference.clone(),
            },
        );
        object.checked_reference()?;
        Ok(object)
    }

    /// The image as the domain knows it. What booting it measures is not in this object, so the
    /// caller brings it.
    pub fn to_core(&self, expected: ExpectedPcrs) -> Result<image::ApprovedImage, ConvertError> {
        let name = self.name_any();
        let image_name = name.parse().map_err(|source| ConvertError::ImageName {
            name: name.clone(),
            source,
        })?;
        let reference = self.checked_reference()?;
        let approved_at = created_at(&self.metadata)?;
        Ok(image::ApprovedImage::new(
            image_name,
            reference,
            expected,
            approved_at,
        ))
    }

    /// The reference, if a whole SHA-256 digest ends it. The rule in the resource is laxer, as it
    /// is in existing clusters.
    fn checked_reference(&self) -> Result<&str, ConvertError> {
        let reference = self.spec.image.as_str();
        let is_digest =
            |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        reference
            .split_once(DIGEST_MARK)
            .filter(|(image, digest)| !image.is_empty() && is_digest(digest))
            .map(|_| reference)
            .ok_or_else(|| ConvertError::NoDigest {
                name: self.name_any(),
            })
    }
}
