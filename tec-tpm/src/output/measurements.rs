//! The file with the measurements that nodes and join services expect of each other.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::{OutputError, to_json};

/// Values that are enforced, as `tec_tpm::atls::Measurements` reads them. PCR 15 is left out: it names the
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

#[cfg(all(test, feature = "atls"))]
mod tests {
    use super::*;
    use crate::atls::Measurements;

    #[test]
    fn what_is_written_is_read_without_the_register_of_the_cluster() {
        let value = Sha256Digest::of("boot manager");
        let values = BTreeMap::from([(PcrIndex::BOOT_MANAGER, value), (PcrIndex::CLUSTER, value)]);
        let json = measurements(&values).unwrap();
        let read = Measurements::from_json(json.as_bytes()).unwrap();
        let registers: Vec<_> = read.registers().map(|(pcr, one)| (pcr, one.expected)).collect();
        assert_eq!(registers, [(PcrIndex::BOOT_MANAGER, value)]);
    }
}
