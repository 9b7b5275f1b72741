//! PE files with wrong headers.

mod certificates;

use tec_tpm::compute::testing::PeBuilder;
use tec_tpm::compute::{PeFile, SignaturePresence};

use super::KEEP;
use crate::bytes::{cut, le32, put};
use crate::{Seed, outcome};

/// Where the builder puts things: fields of the MS-DOS header, the COFF header, the optional header, and the
/// section table of 40 bytes per section.
const PE_OFFSET: usize = 0x3c;
const SIGNATURE: usize = 0x80;
const SECTION_COUNT: usize = 0x86;
const OPTIONAL_SIZE: usize = 0x94;
const OPTIONAL: usize = 0x98;
const HEADERS_SIZE: usize = OPTIONAL + 60;
const CHECKSUM: usize = OPTIONAL + 64;
const DIRECTORY_COUNT: usize = OPTIONAL + 108;
const CERTIFICATES: usize = OPTIONAL + 112 + 4 * 8;
const TEXT: usize = 0x188;
const DATA: usize = TEXT + 40;
/// Fields of a section's header.
const VIRTUAL_SIZE: usize = 8;
const SIZE: usize = 16;
const POINTER: usize = 20;
/// Size of [`good`].
const LENGTH: usize = 0x600;

/// Headers of 512 bytes, then `.text` and `.data` of 512 bytes each.
fn good() -> Vec<u8> {
    PeBuilder::new().section(".text", "code").section(".data", "data").build()
}

fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    put(good(), at, bytes)
}

fn read(data: &[u8]) -> Result<(), String> {
    let file = PeFile::read(data, &KEEP).map_err(|error| format!("{error:?}"))?;
    outcome(file.check_signatures(SignaturePresence::Optional))
}

fn lying(name: &'static str, content: Vec<u8>) -> Seed {
    Seed::new(name, content).refused(read)
}

pub(super) fn seeds() -> Vec<Seed> {
    let seeds = vec![
        Seed::new("checksum_of_ones", with(CHECKSUM, &[0xff; 4])),
        Seed::new("name_without_a_string", put(good(), TEXT, b"/9999999")),
    ];
    [
        seeds,
        headers(),
        sections(),
        kept_sections(),
        certificates::entries(),
        certificates::signatures(),
    ]
    .concat()
}

fn headers() -> Vec<Seed> {
    vec![
        lying("nothing", Vec::new()),
        lying("no_mz", with(0, b"ZM")),
        lying("headers_are_cut_off", cut(good(), 0x90)),
        lying("pe_header_within_the_dos_header", with(PE_OFFSET, &le32(4))),
        lying("pe_header_past_the_end", with(PE_OFFSET, &[0xff; 4])),
        lying("no_pe", with(SIGNATURE, b"NE")),
        lying("rom_image", with(OPTIONAL, &[7, 1])),
        lying("four_directories", with(DIRECTORY_COUNT, &[4])),
        lying("optional_header_without_directories", with(OPTIONAL_SIZE, &[112])),
        lying("zero_sections", with(SECTION_COUNT, &[0])),
        lying("65535_sections", with(SECTION_COUNT, &[0xff; 2])),
        lying("headers_of_two_gigabytes", with(HEADERS_SIZE, &[0xff, 0xff, 0xff, 0x7f])),
        lying("headers_without_the_section_table", with(HEADERS_SIZE, &le32(0x100))),
        lying("headers_past_the_end", with(HEADERS_SIZE, &le32(0x10000))),
    ]
}

fn sections() -> Vec<Seed> {
    vec![
        lying("overlapping_sections", with(DATA + POINTER, &le32(0x300))),
        lying(
            "section_within_another",
            put(with(TEXT + SIZE, &le32(0x400)), DATA + POINTER, &le32(0x300)),
        ),
        lying("section_over_the_headers", with(TEXT + POINTER, &le32(0x100))),
        lying("section_past_the_end", with(DATA + SIZE, &le32(0x10000))),
        lying("section_at_the_last_offset", with(DATA + SIZE, &[0xff; 8])),
        lying("section_over_the_last_offset", with(DATA + SIZE, &[0xff; 4])),
    ]
}

fn kept_sections() -> Vec<Seed> {
    let sbat = || PeBuilder::new().section(".sbat", "sbat,1,S,sbat,1,u\n");
    let with = |at: usize, bytes: &[u8]| put(sbat().build(), at, bytes);
    vec![
        lying("two_sbat_sections", sbat().section(".sbat", "").section(".sbat", "x").build()),
        lying("sbat_in_memory_only", with(TEXT + SIZE, &[0; 8])),
        lying(
            "sbat_of_four_gigabytes",
            put(with(TEXT + VIRTUAL_SIZE, &[0; 4]), TEXT + SIZE, &le32(0xffff_f000)),
        ),
    ]
}
