//! Logs whose lengths and counts lie.

use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{Bank, EventKind, EventLog, EventLogBuilder};

use super::seeds::sha1_event;
use crate::bytes::{cut, put};
use crate::{Seed, outcome};

fn read(data: &[u8]) -> Result<(), String> {
    outcome(EventLog::parse(data))
}

/// A header of 69 bytes (32 of the event, 37 of data), then one event of 62 bytes from 69 on.
fn good() -> Vec<u8> {
    let mut log = EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256]);
    log.measure(PcrIndex::BOOT_MANAGER, EventKind::SEPARATOR, b"data");
    log.build()
}

/// Places in [`good`]: size of the header, its number of algorithms, the first algorithm and its
/// digest size, the second algorithm, size of the vendor's part; of the event the register, the
/// number of digests, the second algorithm, the size of its data.
const HEADER_SIZE: usize = 28;
const ALGORITHMS: usize = 56;
const FIRST: usize = 60;
const FIRST_SIZE: usize = 62;
const SECOND: usize = 64;
const VENDOR: usize = 68;
const REGISTER: usize = 69;
const DIGESTS: usize = 77;
const SECOND_DIGEST: usize = 103;
const DATA_SIZE: usize = 137;

pub(super) fn seeds() -> Vec<Seed> {
    [headers(), events(), localities()].concat()
}

fn lying(name: &'static str, content: Vec<u8>, error: &'static str) -> Seed {
    Seed::new(name, content).refused(read, error)
}

fn headers() -> Vec<Seed> {
    let with = |at: usize, bytes: &[u8]| put(good(), at, bytes);
    vec![
        lying("nothing", Vec::new(), "Empty"),
        lying("padding_only", vec![0xff; 100], "Empty"),
        lying(
            "header_is_cut_off",
            cut(good(), 31),
            "Truncated { offset: 28, field: \"event size\", needed: 4, left: 3 }",
        ),
        lying(
            "header_of_four_gigabytes",
            with(HEADER_SIZE, &[0xff; 4]),
            "Truncated { offset: 32, field: \"event data\", needed: 4294967295, left: 113 }",
        ),
        lying(
            "header_of_17_bytes",
            with(HEADER_SIZE, &[17]),
            "Truncated { offset: 32, field: \"specification id\", needed: 24, left: 17 }",
        ),
        lying(
            "no_algorithms",
            with(ALGORITHMS, &[0]),
            "AlgorithmCount { offset: 56, count: 0, limit: 16 }",
        ),
        lying(
            "four_billion_algorithms",
            with(ALGORITHMS, &[0xff; 4]),
            "AlgorithmCount { offset: 56, count: 4294967295, limit: 16 }",
        ),
        lying(
            "sixteen_algorithms",
            with(ALGORITHMS, &[16]),
            "Truncated { offset: 68, field: \"algorithm\", needed: 2, left: 1 }",
        ),
        lying(
            "digest_of_65535_bytes",
            with(FIRST, &[0x12, 0, 0xff, 0xff]),
            "Algorithm { offset: 60, algorithm: 18, size: 65535 }",
        ),
        lying(
            "sha1_of_32_bytes",
            with(FIRST_SIZE, &[32]),
            "Algorithm { offset: 60, algorithm: 4, size: 32 }",
        ),
        lying(
            "algorithm_twice",
            with(SECOND, &[4, 0, 20]),
            "Algorithm { offset: 64, algorithm: 4, size: 20 }",
        ),
        lying(
            "vendor_part_past_the_end",
            with(VENDOR, &[0xff]),
            "Truncated { offset: 69, field: \"vendor info\", needed: 255, left: 0 }",
        ),
        lying(
            "one_algorithm_too_few",
            put(with(ALGORITHMS, &[1]), SECOND, &[0]),
            "HeaderLength { offset: 65, extra: 4 }",
        ),
    ]
}

fn events() -> Vec<Seed> {
    let with = |at: usize, bytes: &[u8]| put(good(), at, bytes);
    vec![
        lying(
            "register_24",
            with(REGISTER, &[24]),
            "Register { offset: 69, index: 24 }",
        ),
        lying(
            "register_of_ones",
            with(REGISTER, &[0xff; 4]),
            "Register { offset: 69, index: 4294967295 }",
        ),
        lying(
            "four_billion_digests",
            with(DIGESTS, &[0xff; 4]),
            "DigestCount { offset: 77, count: 4294967295, announced: 2 }",
        ),
        lying(
            "digest_twice",
            with(SECOND_DIGEST, &[4]),
            "Digest { offset: 103, algorithm: 4 }",
        ),
        lying(
            "digest_that_was_not_announced",
            with(SECOND_DIGEST, &[0x0c]),
            "Digest { offset: 103, algorithm: 12 }",
        ),
        lying(
            "data_of_four_gigabytes",
            with(DATA_SIZE, &[0xff; 4]),
            "Truncated { offset: 141, field: \"event data\", needed: 4294967295, left: 4 }",
        ),
        lying(
            "data_one_byte_too_long",
            with(DATA_SIZE, &[5]),
            "Truncated { offset: 141, field: \"event data\", needed: 5, left: 4 }",
        ),
        lying(
            "digest_is_cut_off",
            cut(good(), 110),
            "Truncated { offset: 105, field: \"digest\", needed: 32, left: 5 }",
        ),
    ]
}

fn localities() -> Vec<Seed> {
    let locality = |bytes: &[u8]| {
        sha1_event(
            0,
            EventKind::NO_ACTION,
            &[b"StartupLocality\0", bytes].concat(),
        )
    };
    let measured = || sha1_event(0, EventKind::SEPARATOR, b"data");
    vec![
        lying(
            "locality_twice",
            [locality(&[3]), locality(&[3])].concat(),
            "StartupLocality { offset: 49, reason: \"is repeated\" }",
        ),
        lying(
            "locality_too_late",
            [measured(), locality(&[3])].concat(),
            "StartupLocality { offset: 36, reason: \"comes after PCR 0 was extended\" }",
        ),
        lying(
            "locality_2",
            locality(&[2]),
            "StartupLocality { offset: 0, reason: \"names no locality that can start a TPM\" }",
        ),
        lying(
            "locality_of_two_bytes",
            locality(&[3, 1]),
            "StartupLocality { offset: 0, reason: \"names no locality that can start a TPM\" }",
        ),
    ]
}
