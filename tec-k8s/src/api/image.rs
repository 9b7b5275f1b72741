//! `ApprovedImage`: an image whose boots may obtain keys.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::image;
use tec_core::image::{ExpectedPcr, ExpectedPcrs};

use super::cluster::registers_schema;
use super::condition::conditions_schema;
use super::convert::{ConvertError, parsed_time, stamp, stamped_at, time_schema};
use super::rule::{by_digest, immutable, set_at_creation, shim_starts_after_firmware, stays_set};

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
#[x_kube(
    validation = stays_set("revokedAt"),
    validation = stays_set("boot"),
    validation = set_at_creation("boot")
)]
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

    /// Hold each machine to its first boot of the image, for those of PCRs 8, 9, 12, 13 and 14 that the image does
    /// not state. Not for a boot that changes them itself, as a GRUB that saves the last entry does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_boot: bool,

    /// How the image boots, where its files do not show it. Its measurements are then computed from its files,
    /// even if it has a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BootSpec")]
    #[x_kube(validation = immutable())]
    pub boot: Option<BootSpec>,
}

/// How an image boots: the flags of `tec image approve` of the same names.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = shim_starts_after_firmware())]
#[non_exhaustive]
pub struct BootSpec {
    /// Kernel that GRUB starts, or unified kernel image that systemd-boot starts, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub kernel: Option<String>,

    /// File that the firmware starts, if it is not found automatically: shim, or a unified kernel image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub firmware_starts: Option<String>,

    /// File that shim starts: GRUB, or a unified kernel image. Needs firmwareStarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub shim_starts: Option<String>,

    /// Measuring behavior of shim (default: that of its version).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version_schema")]
    pub shim_profile: Option<String>,

    /// Measuring behavior of GRUB (default: that of its version).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version_schema")]
    pub grub_profile: Option<String>,

    /// Measuring behavior of systemd-stub (default: that of its version).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "version_schema")]
    pub stub_profile: Option<String>,

    /// Whether Secure Boot is on (default Enabled).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecureBoot")]
    pub secure_boot: Option<SecureBoot>,

    /// GRUB's name for the partition it starts from (default hd0,gpt1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub grub_device: Option<String>,

    /// GRUB's name for the partition with its configuration (default: the hint in its script, else hd0,gpt2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "path_schema")]
    pub grub_root: Option<String>,
}

/// The state of Secure Boot on the machines that boot an image. `On` would be a boolean in YAML.
#[derive(
    JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum SecureBoot {
    /// Secure Boot is on.
    Enabled,
    /// Secure Boot is off.
    Disabled,
}

impl BootSpec {
    /// As flags of the Job that computes the measurements, each in one word.
    pub fn flags(&self) -> Vec<String> {
        let secure_boot = self.secure_boot.map(|state| match state {
            SecureBoot::Enabled => "on",
            SecureBoot::Disabled => "off",
        });
        let flags = [
            ("kernel", self.kernel.as_deref()),
            ("firmware-starts", self.firmware_starts.as_deref()),
            ("shim-starts", self.shim_starts.as_deref()),
            ("shim-profile", self.shim_profile.as_deref()),
            ("grub-profile", self.grub_profile.as_deref()),
            ("stub-profile", self.stub_profile.as_deref()),
            ("secure-boot", secure_boot),
            ("grub-device", self.grub_device.as_deref()),
            ("grub-root", self.grub_root.as_deref()),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        let given = given.map(|(flag, value)| format!("--{flag}={value}"));
        std::iter::once("--ignore-label".to_owned()).chain(given).collect()
    }
}

/// A path in the image, or the name of a device.
fn path_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 1024})
}

/// A version that the Job may know.
fn version_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 16, "pattern": "^[0-9]+([.][0-9]+)*$"})
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

    /// Whether the measured command line names a hash of the root file system; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub root_hash: Option<bool>,

    /// TPM registers that a boot of the image must match; empty if no boot of it gets a key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "registers_schema")]
    pub pinned_pcrs: Vec<u8>,
}

impl ApprovedImageStatus {
    /// What booting the image measures; empty while that is not known.
    pub fn expected(&self) -> ExpectedPcrs {
        let mut expected = ExpectedPcrs::new(self.pcrs.clone());
        expected.root_hash = self.root_hash;
        expected
    }
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
        status.root_hash = image.expected.root_hash;
        object.spec.first_boot = image.expected.first_boot;
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
        let expected = self.status.as_ref().map(ApprovedImageStatus::expected);
        let mut image = image::ApprovedImage::new(
            image_name,
            self.annotations().get(REFERENCE).unwrap_or(&self.spec.image),
            expected.unwrap_or_default(),
            stamped_at(self, APPROVED_AT)?,
        );
        image.expected.first_boot = self.spec.first_boot;
        image.expires_at = parsed_time(self, self.spec.expires_at.as_deref())?;
        image.revoked_at = parsed_time(self, self.spec.revoked_at.as_deref())?;
        Ok(image)
    }

    /// The digest, if the reference ends with a complete SHA-256 digest. The validation rule of the resource
    /// is laxer, as in existing clusters.
    pub fn digest(&self) -> Result<&str, ConvertError> {
        let is_digest =
            |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        self.spec
            .image
            .split_once(DIGEST_MARK)
            .filter(|(image, digest)| !image.is_empty() && is_digest(digest))
            .map(|(_, digest)| digest)
            .ok_or_else(|| ConvertError::NoDigest(self.name_any()))
    }
}

/// A reference for an image that has none: the digest of its measurements, in a registry that does not exist
/// (RFC 6761, section 6.4).
fn stand_in(image: &image::ApprovedImage) -> String {
    let measures = serde_json::to_vec(&image.expected).unwrap_or_default();
    let digest = Sha256Digest::of(measures);
    format!("local.invalid/{}{DIGEST_MARK}{digest}", image.name)
}
