//! Variables of a machine.

use tec_tpm::compute::{Guid, PlatformState};

use super::bytes;

/// Non-volatile, authenticated variables that both firmware and system can access (UEFI 2.10, 8.2.1).
pub const ATTRIBUTES: u32 = 0x27;
/// EFI_CERT_SHA256_GUID (UEFI 2.10, 32.4.1), as in memory.
const CERT_SHA256: [u8; 16] = [
    0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28,
];
/// Header of an EFI_SIGNATURE_LIST: type 16, three sizes of 4 (UEFI 2.10, 32.4.1).
const LIST_HEADER: usize = 28;
/// Owner and digest.
const ENTRY: usize = 48;

/// A machine with made-up lists of keys, Secure Boot off, and this many revoked digests.
pub fn machine(seed: u64, revoked: usize) -> PlatformState {
    [("KEK", 1600), ("db", 3200)]
        .into_iter()
        .fold(PlatformState::new(), |machine, (name, size)| {
            let vendor = match name {
                "KEK" => Guid::GLOBAL,
                _ => Guid::SECURITY_DATABASE,
            };
            machine.with_variable(name, vendor, ATTRIBUTES, bytes(seed, size))
        })
        .with_variable("dbx", Guid::SECURITY_DATABASE, ATTRIBUTES, dbx(seed, revoked))
}

/// A signature list of this many revoked digests; empty for none.
pub fn dbx(seed: u64, revoked: usize) -> Vec<u8> {
    if revoked == 0 {
        return Vec::new();
    }
    let entries = bytes(seed ^ 0xdb, revoked * ENTRY);
    let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes();
    let mut list = CERT_SHA256.to_vec();
    list.extend(size(LIST_HEADER + entries.len()));
    list.extend(size(0));
    list.extend(size(ENTRY));
    list.extend(entries);
    list
}

#[cfg(test)]
mod tests {
    use tec_core::pcr::PcrIndex;
    use tec_tpm::compute::BootPredictor;

    use super::super::Program;
    use super::*;

    #[test]
    fn every_digest_is_an_entry_and_counts_in_pcr_7() {
        assert!(dbx(1, 0).is_empty());
        assert_eq!(dbx(1, 3).len(), LIST_HEADER + 3 * ENTRY);
        let image = Program::uki(1, 0).image();
        let pcr7 = |revoked| {
            let machine = machine(1, revoked);
            let prediction = BootPredictor::new().predict(&image, &machine).unwrap();
            prediction.expected().pcr(PcrIndex::SECURE_BOOT).unwrap().value
        };
        assert_eq!(pcr7(3), pcr7(3));
        assert_ne!(pcr7(3), pcr7(4));
    }
}
