//! Logs with wrong lengths and counts.

use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{Bank, EventKind, EventLog, EventLogBuilder};

use super::seeds::sha1_event;
use crate::bytes::{cut, put};
use crate::{Seed, outcome};

fn read(data: &[u8]) -> Result<(), String> {
    outcome(EventLog::parse(data))
}

/// A header of 69 bytes (32 of the event, 37 of data), then one event of 62 bytes starting at 69.
fn good() -> Vec<u8> {
    let mut log = EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256]);
    log.measure(PcrIndex::BOOT_MANAGER, EventKind::SEPARATOR, b"data");
    log.build()
}

/// Offsets in [`good`]: size of the header, its number of algorithms, the first algorithm and its digest
/// size, the second algorithm, size of the vendor's part; and, in the event, the register, the number of
/// digests, the second algorithm, the size of its data.
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

fn lying(name: &'static str, content: Vec<u8>) -> Seed {
    Seed::new(name, content).refused(read)
}

fn headers() -> Vec<Seed> {
    let with = |at: usize, bytes: &[u8]| put(good(), at, bytes);
    vec![
        lying("nothing", Vec::new()),
        lying("padding_only", vec![0xff; 100]),
        lying("header_is_cut_off", cut(good(), 31)),
        lying("header_of_four_gigabytes", with(HEADER_SIZE, &[0xff; 4])),
        lying("header_of_17_bytes", with(HEADER_SIZE, &[17])),
        lying("no_algorithms", with(ALGORITHMS, &[0])),
        lying("four_billion_algorithms", with(ALGORITHMS, &[0xff; 4])),
        lying("sixteen_algorithms", with(ALGORITHMS, &[16])),
        lying("digest_of_65535_bytes", with(FIRST, &[0x12, 0, 0xff, 0xff])),
        lying("sha1_of_32_bytes", with(FIRST_SIZE, &[32])),
        lying("algorithm_twice", with(SECOND, &[4, 0, 20])),
        lying("vendor_part_past_the_end", with(VENDOR, &[0xff])),
        lying("one_algorithm_too_few", put(with(ALGORITHMS, &[1]), SECOND, &[0])),
    ]
}

fn events() -> Vec<Seed> {
    let with = |at: usize, bytes: &[u8]| put(good(), at, bytes);
    vec![
        Seed::new("register_24", with(REGISTER, &[24])),
        Seed::new("register_of_ones", with(REGISTER, &[0xff; 4])),
        lying("four_billion_digests", with(DIGESTS, &[0xff; 4])),
        lying("digest_twice", with(SECOND_DIGEST, &[4])),
        lying("digest_that_was_not_announced", with(SECOND_DIGEST, &[0x0c])),
        lying("data_of_four_gigabytes", with(DATA_SIZE, &[0xff; 4])),
        lying("data_one_byte_too_long", with(DATA_SIZE, &[5])),
        lying("digest_is_cut_off", cut(good(), 110)),
    ]
}

fn localities() -> Vec<Seed> {
    let locality =
        |bytes: &[u8]| sha1_event(0, EventKind::NO_ACTION, &[b"StartupLocality\0", bytes].concat());
    let measured = || sha1_event(0, EventKind::SEPARATOR, b"data");
    vec![
        lying("locality_twice", [locality(&[3]), locality(&[3])].concat()),
        lying("locality_too_late", [measured(), locality(&[3])].concat()),
        lying("locality_2", locality(&[2])),
        lying("locality_of_two_bytes", locality(&[3, 1])),
    ]
}
