//! systemd's own log of what it measured.

use tec_core::attest::{LogEvidence, Tee, VerifiedEvidence};
use tec_core::boot::add_systemd;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};
use tec_core::testing::sample;
use tec_tpm::event_log::systemd_records;

use crate::Seed;

/// Whatever a log claims, it explains PCR 9 only by texts of systemd that its digests prove, after the separator; and
/// no other register than that and PCR 15.
pub(crate) fn systemd_log(data: &[u8]) {
    let Some(records) = systemd_records(data) else {
        return;
    };
    let mut quoted = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]);
    for record in &records {
        let value = quoted.value(record.pcr).extended(&record.digest);
        quoted = quoted.with(record.pcr, value);
    }
    let mut log =
        LogEvidence::Parsed { events: Vec::new(), replayed: PcrSet::default(), cut: None };
    add_systemd(&mut log, &quoted, &records);
    let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), quoted);
    evidence.log = log;
    for pcr in PcrIndex::all().filter(|pcr| ![9, 15].contains(&u8::from(*pcr))) {
        assert_eq!(evidence.logged(pcr), None);
    }
    let Some(logged) = evidence.logged(PcrIndex::BOOT_FILES) else {
        return;
    };
    let mut value = Sha256Digest::ZERO;
    for (place, event) in logged.iter().enumerate() {
        let text = event.detail.as_deref().expect("a text");
        assert_eq!(event.digest, Sha256Digest::of(text));
        assert_eq!(place == 0, text == "os-separator");
        let is_last = place + 1 == logged.len();
        let is_separator = is_last && text == "nvpcr-separator";
        assert!(place == 0 || is_separator || text.starts_with("nvpcr-init:"));
        value = value.extended(&event.digest);
    }
    assert_eq!(value, *evidence.pcrs.value(PcrIndex::BOOT_FILES));
}

pub(crate) fn seeds() -> Vec<Seed> {
    let record = |pcr: u8, text: &str| {
        let digest = Sha256Digest::of(text);
        format!(
            "\u{1e}{{\"pcr\":{pcr},\"digests\":[{{\"hashAlg\":\"sha256\",\"digest\":\"{digest}\"}}],\
             \"content_type\":\"systemd\",\"content\":{{\"string\":\"{text}\"}}}}\n"
        )
    };
    let separator = record(9, "os-separator");
    let init = record(9, "nvpcr-init:hardware:0x1d10200:000b9f0e");
    let end = record(9, "nvpcr-separator");
    let identity = record(15, "machine-id:0123456789abcdef0123456789abcdef");
    let phase = record(11, "enter-initrd");
    vec![
        Seed::new("whole", [&*phase, &separator, &init, &end, &identity].concat()),
        Seed::new("without_a_separator", init.clone()),
        Seed::new("other_digest", separator.clone() + &init.replace("hardware", "login")),
        Seed::new("cut_off", (separator + &init).trim_end_matches("}\n")),
        Seed::new("index", "\u{1e}{\"nv_index\":30474752,\"digests\":[]}\n"),
    ]
}
