//! Evidence that nodes may attest with, in addition to or instead of TPM quotes.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rule::{guests_are_named, snp_needs_its_kind};

/// A type of evidence.
#[derive(
    JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum EvidenceKind {
    /// A TPM quote.
    #[default]
    Tpm,
    /// A quote from an Azure virtual machine's TPM, with an SNP report that vouches for it.
    AzSnpVtpm,
}

impl EvidenceKind {
    /// Its name in flags.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::AzSnpVtpm => "az-snp-vtpm",
        }
    }
}

/// The evidence that is accepted.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = guests_are_named(), validation = snp_needs_its_kind())]
#[non_exhaustive]
pub struct EvidenceSpec {
    /// Kinds of evidence: Tpm, and AzSnpVtpm for Azure confidential VMs, which is experimental and needs the
    /// key broker Builtin.
    #[schemars(length(min = 1, max = 2))]
    pub kinds: Vec<EvidenceKind>,

    /// SNP guests and hosts that are accepted, for the kind AzSnpVtpm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SnpSpec")]
    pub snp: Option<SnpSpec>,
}

/// Requirements on SNP guests and their hosts.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SnpSpec {
    /// SHA-384 digests, in hexadecimal, of ID keys whose guests are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "digests_schema")]
    pub id_keys: Vec<String>,

    /// Launch measurements, in hexadecimal, of accepted guests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "digests_schema")]
    pub measurements: Vec<String>,

    /// Oldest accepted firmware of hosts (default any).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TcbSpec")]
    pub minimum_tcb: Option<TcbSpec>,
}

/// Versions of an SNP host's firmware.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TcbSpec {
    /// Boot loader.
    #[schemars(schema_with = "version_schema")]
    pub bootloader: u8,
    /// Trusted execution environment of the secure processor.
    #[schemars(schema_with = "version_schema")]
    pub tee: u8,
    /// SNP firmware.
    #[schemars(schema_with = "version_schema")]
    pub snp: u8,
    /// Microcode.
    #[schemars(schema_with = "version_schema")]
    pub microcode: u8,
}

impl EvidenceSpec {
    /// The flags of a server that accepts this evidence.
    pub fn arguments(&self) -> Vec<String> {
        let kinds = self.kinds.iter().map(|kind| format!("--evidence={}", kind.flag()));
        let snp = self.snp.iter().flat_map(|snp| {
            let id_keys = snp.id_keys.iter().map(|digest| format!("--snp-id-key={digest}"));
            let measurements =
                snp.measurements.iter().map(|digest| format!("--snp-measurement={digest}"));
            let tcb = snp.minimum_tcb.map(|tcb| {
                let TcbSpec { bootloader, tee, snp, microcode } = tcb;
                format!("--snp-minimum-tcb={bootloader},{tee},{snp},{microcode}")
            });
            id_keys.chain(measurements).chain(tcb)
        });
        kinds.chain(snp).collect()
    }
}

/// SHA-384 digests. The bounds keep the cost of the validation rules low.
fn digests_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {"type": "string", "maxLength": 96, "pattern": "^[0-9a-fA-F]{96}$"},
    })
}

/// A byte. Kubernetes has no unsigned formats.
fn version_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 0, "maximum": 255})
}
