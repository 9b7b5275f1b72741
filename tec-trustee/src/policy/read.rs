//! Which intent a text expresses.

use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::pcr::{PcrIndex, PcrSet};

use super::intent::{ClaimValue, MACHINE_CLAIM, PolicyIntent, SnpTcb};
use super::name::SNP_MEASUREMENT;
use super::name::path_of;
use super::pcr_reference_name;

impl PolicyIntent {
    /// The intent whose attestation policy is exactly this text; `None` for every other text.
    ///
    /// The values read from the text are only a guess: the guess is correct if they render to the
    /// same text.
    pub fn read_attestation(text: &str) -> Option<Self> {
        let tees = [Tee::Tpm, Tee::AzSnpVtpm].into_iter().filter(|tee| {
            path_of(*tee).is_some_and(|(guard, registers)| {
                text.contains(&format!("\nregisters := {registers} if {{\n\t{guard}\n"))
            })
        });
        let mut intent = Self::new(read_pinned(text)?, tees).ok()?;
        intent.snp.is_measured = text.contains(&format!("approved(\"{SNP_MEASUREMENT}\""));
        intent.snp.minimum = read_minimum(text);
        for (name, key, value) in text.lines().filter_map(read_claim) {
            intent = intent.with_claim(&name, key, value).ok()?;
        }
        (intent.render_attestation() == text).then_some(intent)
    }

    /// Whether the text is a resource policy of some intent.
    pub fn is_resource_policy(text: &str) -> bool {
        let any = Self::new(PinnedPcrs::boot_manager(), [Tee::Tpm]);
        any.is_ok_and(|intent| intent.render_resource() == text)
    }
}

fn read_pinned(text: &str) -> Option<PinnedPcrs> {
    let is_pinned = |pcr: &PcrIndex| {
        let name = pcr_reference_name(*pcr);
        text.contains(&format!("\tapproved(\"{name}\", registers.pcr"))
    };
    let pinned = PcrIndex::all().filter(is_pinned).fold(PcrSet::default(), PcrSet::with);
    PinnedPcrs::new(pinned).ok()
}

fn read_minimum(text: &str) -> Option<SnpTcb> {
    let part = |name: &str| {
        let (_, rest) = text.split_once(&format!(".reported_tcb_{name}, \""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    Some(SnpTcb {
        bootloader: part("bootloader")?,
        tee: part("tee")?,
        snp: part("snp")?,
        microcode: part("microcode")?,
    })
}

/// A line `claims contains {"name": …, "key": …, "value": …} if registers`.
fn read_claim(line: &str) -> Option<(String, i64, ClaimValue)> {
    let rest = line.strip_prefix("claims contains {\"name\": \"")?;
    let (name, rest) = rest.split_once("\", \"key\": ")?;
    let (key, rest) = rest.split_once(", \"value\": ")?;
    let value = rest.strip_suffix("} if registers")?;
    let value = match value.strip_prefix("registers.pcr") {
        Some(index) => ClaimValue::Register(PcrIndex::new(index.parse().ok()?).ok()?),
        None => ClaimValue::Text(serde_json::from_str(value).ok()?),
    };
    (name != MACHINE_CLAIM).then(|| Some((name.to_owned(), key.parse().ok()?, value)))?
}
