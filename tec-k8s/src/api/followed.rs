//! `FollowedImage`: a tag whose images are approved automatically.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tec_core::time::Timestamp;

use super::condition::conditions_schema;
use super::convert::time_schema;
use super::image::{ApprovedImage, ApprovedImageSpec, DIGEST_MARK};
use super::rule::short_name;

/// Label of an ApprovedImage with the name of the FollowedImage that it was created for. Without it, the
/// approval counts as one by an admin, and is never revoked automatically.
pub const FOLLOWED_BY: &str = "trusted-execution-clusters.io/followed-by";
/// Annotation of such an ApprovedImage: its number among those of the FollowedImage. Later images have higher
/// numbers.
const NUMBER: &str = "trusted-execution-clusters.io/followed-number";
/// Annotation of an ApprovedImage: if `true`, it is measured only while the cluster object has
/// `spec.imageSignatures`.
pub const MUST_BE_SIGNED: &str = "trusted-execution-clusters.io/must-be-signed";

/// Annotation of an ApprovedImage of a tag: when it was built, as its configuration states, RFC 3339.
const BUILT_AT: &str = "trusted-execution-clusters.io/built-at";

/// Default and minimum seconds between two looks at the registry, and the maximum.
const INTERVAL: (u32, u32, u32) = (600, 60, 604_800);
/// Older images that stay approved by default, and the maximum.
const KEEP: (u32, u32) = (1, 20);
/// Digits of the digest in the name of an ApprovedImage.
const NAME_DIGITS: usize = 16;
/// Most entries of `status.images`.
const MAX_IMAGES: usize = 128;

/// A tag whose images are approved automatically.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "FollowedImage",
    plural = "followedimages",
    shortname = "tecf",
    category = "trusted-execution",
    namespaced,
    status = "FollowedImageStatus",
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "A tag whose images are approved automatically, if they are signed; older ones are revoked once no machine needs them.",
    validation = short_name(),
    printcolumn = r#"{"name":"Reference","type":"string","jsonPath":".spec.reference"}"#,
    printcolumn = r#"{"name":"Following","type":"string","jsonPath":".status.conditions[?(@.type==\"Following\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Following\")].reason"}"#,
    printcolumn = r#"{"name":"Looked","type":"date","jsonPath":".status.lastLook"}"#,
    printcolumn = r#"{"name":"Current","type":"string","jsonPath":".status.current","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FollowedImageSpec {
    /// The tag: `registry.example/os:stable`.
    #[schemars(length(min = 1, max = 512))]
    pub reference: String,

    /// Seconds between two looks at the registry (default 600). After a failure, the next look is later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "interval_schema")]
    pub interval_seconds: Option<u32>,

    /// How many images before the newest approved one stay approved even if no machine needs them (default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "keep_schema")]
    pub keep: Option<u32>,

    /// Whether to report what would be approved and revoked, and to change nothing (default false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,

    /// Whether to approve images although the cluster object has no `spec.imageSignatures` (default false).
    /// Whoever can push to the tag can then approve an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dangerously_unsigned: bool,

    /// Name of a Secret with the credentials of the registry (kubernetes.io/dockerconfigjson).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub pull_secret: Option<String>,
}

/// An image that was approved for the tag.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FollowedVersion {
    /// Its number; later images have higher numbers.
    #[schemars(schema_with = "number_schema")]
    pub number: u64,

    /// Name of the ApprovedImage.
    pub name: String,

    /// Its digest, in hexadecimal.
    pub digest: String,
}

/// Observed state of the tag.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FollowedImageStatus {
    /// `Following` and `OldImagesRevoked`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,

    /// The metadata.generation that the operator acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// The image that the tag pointed to at the last successful look, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub current: Option<String>,

    /// When that image was built, as its configuration states, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub current_built_at: Option<String>,

    /// When the operator last looked at the registry, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub last_look: Option<String>,

    /// Number of failed looks since the last successful one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "failures_schema")]
    pub failed_looks: Option<u32>,

    /// The images that were approved for the tag, latest first, at most 128. An image in this list is not
    /// approved automatically again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<FollowedVersion>,
}

fn interval_schema(_: &mut SchemaGenerator) -> Schema {
    let (_, least, most) = INTERVAL;
    json_schema!({"type": "integer", "format": "int32", "minimum": least, "maximum": most})
}

fn keep_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 0, "maximum": KEEP.1})
}

fn number_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 1})
}

fn failures_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 0})
}

impl FollowedImageSpec {
    /// Seconds between two looks at the registry.
    pub fn interval_seconds(&self) -> u32 {
        let (default, least, most) = INTERVAL;
        self.interval_seconds.unwrap_or(default).clamp(least, most)
    }

    /// How many images before the newest approved one stay approved.
    pub fn keep(&self) -> usize {
        let keep = self.keep.unwrap_or(KEEP.0);
        usize::try_from(keep).unwrap_or(usize::MAX)
    }
}

impl FollowedVersion {
    /// The image with this reference by digest, as the version with this number of a FollowedImage; `None` if
    /// the reference has no digest.
    pub fn new(followed: &str, reference: &str, number: u64) -> Option<Self> {
        let (_, digest) = reference.split_once(DIGEST_MARK)?;
        let name = format!("{followed}-{}", digest.get(..NAME_DIGITS)?);
        Some(Self { number, name, digest: digest.to_owned() })
    }

    /// As many versions as a status lists, latest first.
    pub fn latest(mut all: Vec<Self>) -> Vec<Self> {
        all.sort_by_key(|version| Reverse(version.number));
        all.truncate(MAX_IMAGES);
        all
    }

    /// The version that an ApprovedImage is, if it was created for a FollowedImage.
    pub fn of(image: &ApprovedImage) -> Option<Self> {
        let number = image.annotations().get(NUMBER)?.parse().ok()?;
        let digest = image.digest().ok()?.to_owned();
        Some(Self { number, name: image.name_any(), digest })
    }
}

impl FollowedImage {
    /// The ApprovedImage for a version of the tag.
    pub fn approved_image(
        &self,
        version: &FollowedVersion,
        reference: &str,
        built_at: Option<Timestamp>,
    ) -> ApprovedImage {
        let spec = ApprovedImageSpec {
            image: reference.to_owned(),
            pull_secret: self.spec.pull_secret.clone(),
            ..ApprovedImageSpec::default()
        };
        let mut image = ApprovedImage::new(&version.name, spec);
        image.labels_mut().insert(FOLLOWED_BY.to_owned(), self.name_any());
        let annotations = image.annotations_mut();
        annotations.insert(NUMBER.to_owned(), version.number.to_string());
        annotations.extend(built_at.map(|at| (BUILT_AT.to_owned(), at.to_string())));
        if !self.spec.dangerously_unsigned {
            annotations.insert(MUST_BE_SIGNED.to_owned(), "true".to_owned());
        }
        image
    }
}

/// When the image of a tag was built, as its configuration states.
pub fn built_at(image: &ApprovedImage) -> Option<Timestamp> {
    image.annotations().get(BUILT_AT)?.parse().ok()
}

/// Whether an image may be measured only if it is signed.
pub fn must_be_signed(image: &ApprovedImage) -> bool {
    image.annotations().get(MUST_BE_SIGNED).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(number: u8) -> String {
        format!("registry.example/os@sha256:{}", format!("{number:02x}").repeat(32))
    }

    fn followed(spec: FollowedImageSpec) -> FollowedImage {
        FollowedImage::new("os", spec)
    }

    #[test]
    fn an_image_of_a_tag_is_named_after_both_and_knows_its_number() {
        let version = FollowedVersion::new("os", &reference(7), 3).unwrap();
        assert_eq!(version.name, "os-0707070707070707");
        let time = Timestamp::EPOCH;
        let tag = followed(FollowedImageSpec::default());
        let image = tag.approved_image(&version, &reference(7), Some(time));
        assert_eq!(FollowedVersion::of(&image), Some(version));
        assert_eq!(built_at(&image), Some(time));
        assert!(must_be_signed(&image));
        let spec = FollowedImageSpec { dangerously_unsigned: true, ..FollowedImageSpec::default() };
        let version = FollowedVersion::new("os", &reference(8), 4).unwrap();
        let image = followed(spec).approved_image(&version, &reference(8), None);
        assert!(!must_be_signed(&image));
        assert_eq!(FollowedVersion::new("os", "registry.example/os:44", 1), None);
    }

    #[test]
    fn an_approval_by_an_admin_is_no_version_of_a_tag() {
        let spec = ApprovedImageSpec { image: reference(1), ..ApprovedImageSpec::default() };
        assert_eq!(FollowedVersion::of(&ApprovedImage::new("os", spec)), None);
    }

    #[test]
    fn the_list_of_images_is_bounded_and_latest_first() {
        let version = |number: u64| FollowedVersion::new("os", &reference(1), number).unwrap();
        let latest = FollowedVersion::latest((1..=200).map(version).collect());
        let numbers: Vec<_> = latest.iter().map(|image| image.number).collect();
        assert_eq!(numbers.len(), MAX_IMAGES);
        assert_eq!((numbers[0], numbers[MAX_IMAGES - 1]), (200, 73));
    }

    #[test]
    fn an_interval_is_never_shorter_than_a_minute() {
        let of = |seconds| {
            let spec =
                FollowedImageSpec { interval_seconds: seconds, ..FollowedImageSpec::default() };
            spec.interval_seconds()
        };
        assert_eq!((of(None), of(Some(1)), of(Some(90))), (600, 60, 90));
    }
}
