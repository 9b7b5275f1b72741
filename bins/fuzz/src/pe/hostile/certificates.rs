//! Manipulated certificate tables.

use tec_tpm::compute::testing;
use tec_tpm::compute::testing::{PeBuilder, der};

use super::{CERTIFICATES, LENGTH, lying, with};
use crate::Seed;
use crate::bytes::le32;
use crate::signer::{INDIRECT, content_info};

/// Wrong directory entries of certificate tables.
pub(super) fn entries() -> Vec<Seed> {
    let entry =
        |offset: usize, size: u32| with(CERTIFICATES, &[le32(offset), size.to_le_bytes()].concat());
    vec![
        lying("certificates_without_an_offset", entry(0, 8)),
        lying("certificates_without_a_size", entry(LENGTH, 0)),
        lying("certificates_over_a_section", entry(0x400, 0x200)),
        lying("certificates_of_four_gigabytes", entry(LENGTH, u32::MAX)),
        lying("certificates_past_the_end", entry(LENGTH, 256)),
        lying("bytes_after_the_certificates", [entry(LENGTH, 8), vec![0; 16]].concat()),
    ]
}

/// Files with certificate tables of these bytes.
pub(super) fn signatures() -> Vec<Seed> {
    let table = |table: &[u8]| {
        let entry = [le32(LENGTH), le32(table.len())].concat();
        [with(CERTIFICATES, &entry), table.to_vec()].concat()
    };
    let entry = |length: u32| [&length.to_le_bytes()[..], &[0, 2, 2, 0]].concat();
    let signature =
        |content: Vec<u8>| PeBuilder::new().section(".text", "x").signature(content).build();
    let short = {
        let algorithm = der(0x30, &[testing::SHA256]);
        let content =
            der(0x30, &[&der(0x30, &[]), &der(0x30, &[&algorithm, &der(0x04, &[&[7; 31]])])]);
        let content = der(0x30, &[INDIRECT, &der(0xa0, &[&content])]);
        content_info(&[b"\x02\x01\x01", &der(0x31, &[]), &content])
    };
    vec![
        lying("certificate_of_zero_bytes", table(&entry(0))),
        lying("certificate_of_seven_bytes", table(&entry(7))),
        lying("certificate_of_four_gigabytes", table(&entry(u32::MAX))),
        lying("certificate_header_is_cut_off", table(&[16, 0, 0, 0])),
        lying("seventeen_certificates", table(&[8, 0, 0, 0, 0, 2, 1, 0].repeat(17))),
        lying("certificate_without_content", table(&entry(8))),
        lying(
            "certificate_of_another_content_type",
            signature(der(0x30, &[b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01"])),
        ),
        lying("digest_of_31_bytes", signature(short)),
        lying(
            "certificate_of_another_file",
            PeBuilder::new().section(".text", "x").signed_for([7; 32]).build(),
        ),
    ]
}
