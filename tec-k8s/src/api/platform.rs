//! `PlatformBaseline`: firmware and Secure Boot policy of a machine. `PlatformApproval`: changes of one
//! baseline that an admin approved.

use kube::core::ObjectMeta;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Error;
use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::platform::{Firmware, MAX_PLATFORM, Platform};
use tec_core::port::{PlatformEntry, PlatformRecord};
use tec_core::time::Timestamp;

use super::convert::{ConvertError, parsed_time};

/// Label with the id of the machine.
pub const PLATFORM_OF: &str = "trusted-execution-clusters.io/platform-of";
/// Label with the first digits of the baseline's id, to select machines that share it.
pub const BASELINE: &str = "trusted-execution-clusters.io/platform-baseline";
/// Annotation with what a list shows, so that it need not read the platforms.
const SUMMARY: &str = "trusted-execution-clusters.io/platform";
/// Digits of the id in the label, whose value has at most 63 characters.
const LABEL_DIGITS: usize = 32;

/// Most approved changes of one baseline; the oldest makes room.
const MAX_APPROVED: usize = 16;
/// Longest approved changes of one baseline, together.
const MAX_APPROVED_SIZE: usize = 1024 * 1024;

/// Firmware and Secure Boot policy of a machine, and what its images leave open, by the key that it attests with.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "PlatformBaseline",
    plural = "platformbaselines",
    category = "trusted-execution",
    namespaced,
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "Firmware and Secure Boot policy of a machine at its first accepted boot, and what its last boot showed. The guard or the built-in key broker writes it; kubectl tec platform prints it. Deleted with its Machine.",
    printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.machine"}"#,
    printcolumn = r#"{"name":"Refused","type":"string","jsonPath":".spec.refusedAt","description":"When a boot was refused, if the last one was"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PlatformBaselineSpec {
    /// Id of the machine.
    pub machine: String,

    /// What boots are compared with: JSON.
    #[schemars(schema_with = "text_schema")]
    pub baseline: String,

    /// What the last boot showed, if it differs from the baseline: JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text_schema")]
    pub seen: Option<String>,

    /// When the last boot was refused, RFC 3339. Absent if it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub refused_at: Option<String>,
}

/// Changes of one baseline that an admin approved, for every machine that has it.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "trusted-execution-clusters.io",
    version = "v1alpha1",
    kind = "PlatformApproval",
    plural = "platformapprovals",
    category = "trusted-execution",
    namespaced,
    derive = "PartialEq",
    attr = "non_exhaustive",
    doc = "Firmware and Secure Boot policies that are accepted in place of one baseline. kubectl tec platform approve writes it, for every machine with the baseline. It is void once no machine has the baseline.",
    printcolumn = r#"{"name":"Baseline","type":"string","jsonPath":".spec.baseline"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PlatformApprovalSpec {
    /// Id of the firmware in the baseline.
    pub baseline: String,

    /// What is accepted in its place, oldest first: JSON. At most 16.
    #[schemars(schema_with = "texts_schema")]
    pub approved: Vec<String>,
}

fn text_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": MAX_PLATFORM})
}

fn texts_schema(_: &mut SchemaGenerator) -> Schema {
    let text = json_schema!({"type": "string", "maxLength": MAX_PLATFORM});
    json_schema!({"type": "array", "maxItems": MAX_APPROVED, "items": text})
}

/// What a list shows about a platform.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    key: Fingerprint,
    baseline: Sha256Digest,
    seen: Sha256Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused_at: Option<Timestamp>,
}

impl PlatformBaseline {
    /// The object for what is recorded about a key. Its name contains the whole fingerprint, so that no two
    /// keys share it.
    pub fn from_core(key: &Fingerprint, record: &PlatformRecord) -> Result<Self, ConvertError> {
        let is_same = record.seen == record.baseline.with_last_boot();
        let seen = (!is_same).then(|| text_of(&record.seen)).transpose()?;
        let mut object = Self::new(
            &Self::name_of(key),
            PlatformBaselineSpec {
                machine: record.machine.to_string(),
                baseline: text_of(&record.baseline)?,
                seen,
                refused_at: record.refused_at.map(|at| at.to_string()),
            },
        );
        let id = |firmware: &Firmware| firmware.id().map_err(failed);
        let summary = Summary {
            key: *key,
            baseline: id(&record.baseline.firmware)?,
            seen: id(&record.seen.firmware)?,
            refused_at: record.refused_at,
        };
        let labels = object.metadata.labels.get_or_insert_default();
        labels.insert(PLATFORM_OF.to_owned(), record.machine.to_string());
        labels.insert(BASELINE.to_owned(), Self::label_of(&summary.baseline));
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(SUMMARY.to_owned(), text_of(&summary)?);
        Ok(object)
    }

    /// `platform-` and the fingerprint of the key.
    pub fn name_of(key: &Fingerprint) -> String {
        format!("platform-{key}")
    }

    /// Value of the label [`BASELINE`] for the id of a baseline.
    pub fn label_of(baseline: &Sha256Digest) -> String {
        baseline.to_string().chars().take(LABEL_DIGITS).collect()
    }

    /// What is recorded, without approved changes.
    pub fn to_core(&self) -> Result<PlatformRecord, ConvertError> {
        let machine = self.spec.machine.parse();
        let machine = machine.map_err(|source| {
            let name = self.metadata.name.clone().unwrap_or_default();
            ConvertError::MachineId { name, source }
        })?;
        let parse = |text: &String| serde_json::from_str::<Platform>(text).map_err(failed);
        let mut record = PlatformRecord::first(machine, &parse(&self.spec.baseline)?);
        record.seen = match &self.spec.seen {
            Some(seen) => parse(seen)?,
            None => record.baseline.with_last_boot(),
        };
        record.refused_at = parsed_time(self, self.spec.refused_at.as_deref())?;
        Ok(record)
    }
}

/// The line of a list, from the metadata of a [`PlatformBaseline`]; none if someone edited it.
pub(crate) fn platform_entry(metadata: &ObjectMeta) -> Option<PlatformEntry> {
    let machine = metadata.labels.as_ref()?.get(PLATFORM_OF)?.parse().ok()?;
    let text = metadata.annotations.as_ref()?.get(SUMMARY)?;
    let summary: Summary = serde_json::from_str(text).ok()?;
    let of = (machine, summary.key);
    Some(PlatformEntry::new(of, summary.baseline, summary.seen, summary.refused_at))
}

impl PlatformApproval {
    /// `platform-` and the id of the baseline.
    pub fn name_of(baseline: &Sha256Digest) -> String {
        format!("platform-{baseline}")
    }

    /// The object of a baseline, without approved changes.
    pub fn empty(baseline: &Sha256Digest) -> Self {
        let spec = PlatformApprovalSpec { baseline: baseline.to_string(), approved: Vec::new() };
        Self::new(&Self::name_of(baseline), spec)
    }

    /// Adds a change; the oldest ones make room.
    pub fn add(&mut self, firmware: &Firmware) -> Result<(), ConvertError> {
        let text = text_of(firmware)?;
        let approved = &mut self.spec.approved;
        approved.retain(|other| *other != text);
        approved.push(text);
        let mut size: usize = approved.iter().map(String::len).sum();
        while approved.len() > MAX_APPROVED || size > MAX_APPROVED_SIZE {
            size -= approved.remove(0).len();
        }
        Ok(())
    }

    /// What is accepted.
    pub fn approved(&self) -> Result<Vec<Firmware>, ConvertError> {
        self.spec.approved.iter().map(|text| serde_json::from_str(text).map_err(failed)).collect()
    }
}

fn text_of(value: &impl Serialize) -> Result<String, ConvertError> {
    serde_json::to_string(value).map_err(failed)
}

fn failed(source: Error) -> ConvertError {
    ConvertError::Platform(source)
}

#[cfg(test)]
mod tests {
    use tec_core::testing::{PlatformBoot, sample};

    use super::*;

    fn firmware(version: usize) -> Firmware {
        PlatformBoot::new().firmware(&version.to_string()).platform().firmware
    }

    #[test]
    fn a_record_is_read_back_and_a_platform_that_did_not_change_is_stored_once() {
        let key = sample::public_key(1).fingerprint();
        let (old, new) = (PlatformBoot::new(), PlatformBoot::new().firmware("2.0"));
        let first = PlatformRecord::first(sample::machine_id(1), &old.platform());
        let object = PlatformBaseline::from_core(&key, &first).unwrap();
        assert_eq!(object.to_core().unwrap(), first);
        assert_eq!(object.spec.seen, None);

        let (refused, _) = first.after(&new.platform(), sample::time(9));
        let object = PlatformBaseline::from_core(&key, &refused).unwrap();
        assert_eq!(object.to_core().unwrap(), refused);
        let entry = platform_entry(&object.metadata).unwrap();
        assert_eq!((entry.machine, entry.key), (sample::machine_id(1), key));
        assert_eq!(entry.baseline, old.platform().firmware.id().unwrap());
        assert_eq!(entry.seen, new.platform().firmware.id().unwrap());
        assert_eq!(entry.refused_at, Some(sample::time(9)));
    }

    #[test]
    fn what_an_image_leaves_open_is_stored_once_and_earlier_objects_are_read() {
        let key = sample::public_key(1).fingerprint();
        let old = PlatformRecord::first(sample::machine_id(1), &PlatformBoot::new().platform());
        let object = PlatformBaseline::from_core(&key, &old).unwrap();
        assert!(!object.spec.baseline.contains("boots"), "as earlier versions wrote it");
        let mut record = object.to_core().unwrap();
        for kernel in ["one", "two"] {
            let boot = PlatformBoot::new().kernel(kernel).initramfs("first").platform();
            record = record.after(&boot, sample::time(9)).0;
        }
        let object = PlatformBaseline::from_core(&key, &record).unwrap();
        assert_eq!(object.spec.seen, None, "the last of the two");
        assert_eq!(object.to_core().unwrap(), record);
        assert_eq!(record.baseline.boots.len(), 2);
    }

    #[test]
    fn the_oldest_approved_changes_make_room() {
        let mut approval = PlatformApproval::empty(&Sha256Digest::ZERO);
        for version in 0..=MAX_APPROVED {
            approval.add(&firmware(version)).unwrap();
        }
        approval.add(&firmware(1)).unwrap();
        let approved = approval.approved().unwrap();
        assert_eq!(approved.len(), MAX_APPROVED);
        assert!(!approved.contains(&firmware(0)));
        assert_eq!(approved.last(), Some(&firmware(1)));

        let entries: Vec<u64> = (0..2000).collect();
        let long = PlatformBoot::new().keys(tec_core::platform::KeyDatabase::Dbx, &entries);
        for version in 0..8 {
            let long = long.clone().firmware(&version.to_string());
            approval.add(&long.platform().firmware).unwrap();
        }
        let size: usize = approval.spec.approved.iter().map(String::len).sum();
        assert!((MAX_APPROVED_SIZE / 2..=MAX_APPROVED_SIZE).contains(&size), "{size}");
        assert!(approval.spec.approved.len() < 8);
    }
}
