//! Components of `systemd-pcrlock`.

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_tpm::event_log::{Bank, EventKind, EventLog, EventLogBuilder};
use tec_tpm::output;

use crate::label::{image, text};
use crate::{Seed, outcome};

/// A component written again register by register has the same content for each register.
pub(crate) fn pcrlock(data: &[u8]) {
    let Some(records) = text(data).and_then(|text| output::read_pcrlock(text).ok()) else {
        return;
    };
    let registers: PcrSet = records.iter().map(|(pcr, _)| *pcr).collect();
    let of = |pcr| {
        let events = records.iter().map(|(pcr, hash)| ImageEvent::new("EV", *pcr, *hash, "x"));
        ExpectedPcr::from_events(pcr, events)
    };
    let expected = ExpectedPcrs::new(registers.iter().map(of).collect());
    let written = output::pcrlock(&expected).expect("a component is written");
    let again = output::read_pcrlock(&written).expect("a component that was written");
    assert_eq!(again.len(), records.len());
    for pcr in registers.iter() {
        let digests = |records: &[(PcrIndex, Sha256Digest)]| -> Vec<Sha256Digest> {
            records.iter().filter(|(of, _)| *of == pcr).map(|(_, digest)| *digest).collect()
        };
        assert_eq!(digests(&again), digests(&records));
    }
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(output::read_pcrlock(text(data).ok_or("no text")?))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let written = output::pcrlock(&image("shim", "kernel")).expect("a component is written");
    let mut log = EventLogBuilder::with_banks(&Bank::ALL);
    log.measure(PcrIndex::BOOT_FILES, EventKind::IPL, b"file");
    let log = log.build();
    let parsed = EventLog::parse(&log).expect("a log that was just built");
    let of_log = output::pcrlock_of_log(&parsed, PcrIndex::all().collect());
    let seeds = vec![
        Seed::new("of_an_image", written.clone()),
        Seed::new("of_a_log", of_log.expect("a component is written")),
        Seed::new("empty", "{\"records\":[]}"),
    ];
    [seeds, hostile(&written)].concat()
}

fn hostile(good: &str) -> Vec<Seed> {
    let lying = |name, text: String| Seed::new(name, text).refused(read);
    let replaced = |from: &str, to: &str| good.replacen(from, to, 1);
    let digest = Sha256Digest::of("shim").to_string();
    vec![
        lying("nothing", String::new()),
        lying("brackets", format!("{{\"records\":{}", "[".repeat(2000))),
        lying("register_24", replaced("\"pcr\": 4", "\"pcr\": 24")),
        lying("no_digests", replaced("\"digests\"", "\"digest\"")),
        lying("sha1_only", replaced("sha256", "sha1")),
        lying("digest_of_63_digits", replaced(&digest, digest.get(1..).unwrap_or(""))),
    ]
}
