//! The file with the measurements that nodes and join services expect of each other.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::{OutputError, to_json};

/// Values that are enforced, as attested TLS (`tec-node`) reads them. PCR 15 is left out: it names the
/// cluster of a node, and is compared separately.
///
/// # Errors
/// [`OutputError::Json`], in practice never.
pub fn measurements(values: &BTreeMap<PcrIndex, Sha256Digest>) -> Result<String, OutputError> {
    let values: BTreeMap<u8, String> = values
        .iter()
        .filter(|(pcr, _)| **pcr != PcrIndex::CLUSTER)
        .map(|(pcr, value)| (u8::from(*pcr), value.to_string()))
        .collect();
    to_json(&values, "a file of measurements")
}
