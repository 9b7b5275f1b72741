use super::Place;
use crate::attest::Attempt;
use crate::boot::BootState;
use crate::digest::Sha256Digest;
use crate::evidence::LoggedEvent;
use crate::explain::{EventFinding, Gate, PcrMismatch};
use crate::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use crate::pcr::PcrIndex;
use crate::port::AttemptLog;
use crate::testing::sample;

/// A row as earlier versions wrote it: the image appears only in the text of the gate.
fn older_row(gate: Gate, text: &str) -> (Attempt, String) {
    let mut attempt = sample::attempt(1, Some(1));
    attempt.ladder.pass(gate, text);
    let body = serde_json::to_string(&attempt).unwrap();
    assert!(!body.contains("booted"), "{body}");
    (attempt, body)
}

async fn read_back(gate: Gate, text: &str) -> Option<BootState> {
    let place = Place::new();
    let store = place.open();
    let (attempt, body) = older_row(gate, text);
    place
        .raw()
        .execute(
            "INSERT INTO attempt (id, machine, body) VALUES (?1, ?2, ?3)",
            (attempt.id.to_string(), sample::machine_id(1).to_string(), body),
        )
        .unwrap();
    let found = store.find_attempt(&attempt).await;
    assert_eq!(found.ladder, attempt.ladder);
    let latest = store.latest(attempt.machine, 1).await.unwrap();
    assert_eq!(latest.as_slice(), std::slice::from_ref(&found));
    found.booted
}

impl super::Store {
    async fn find_attempt(&self, attempt: &Attempt) -> Attempt {
        let found = AttemptLog::find(self, &attempt.id).await;
        found.unwrap().unwrap()
    }
}

#[tokio::test]
async fn attempts_of_earlier_versions_say_what_was_booted() {
    let booted = read_back(Gate::Pcrs, "boot of image debian-13").await;
    let image = "debian-13".parse().unwrap();
    assert_eq!(booted, Some(BootState::whole([image], [])));
}

#[tokio::test]
async fn other_texts_of_earlier_versions_say_nothing_of_images() {
    for (gate, text) in [
        (Gate::Pcrs, "boot of image NO NAME"),
        (Gate::Pcrs, "PCR 4: Pcr4Vmlinuz (boot of image a) differs"),
        (Gate::ReleasePolicy, "boot of image debian-13"),
    ] {
        assert_eq!(read_back(gate, text).await, None, "{text}");
    }
}

#[tokio::test]
async fn an_id_of_a_machine_is_not_searched_among_the_ids_that_attempts_had() {
    let place = Place::new();
    let store = place.open();
    let of = |id, machine| Attempt {
        earlier: vec![sample::attempt_id(3)],
        ..sample::attempt(id, Some(machine))
    };
    store.record(&of(10, 1)).await.unwrap();
    let find = async || AttemptLog::find(&store, &sample::attempt_id(3)).await.unwrap();
    assert!(find().await.is_some());
    store.record(&of(11, 3)).await.unwrap();
    assert_eq!(find().await, None);
}

/// A refusal as evidence with a long log causes it, in a boot of its own.
fn long_refusal(boot: u32) -> Attempt {
    let mut attempt = sample::attempt_in_boot(u64::from(boot), boot);
    let chain: Vec<_> = (0..400).map(|number| format!("{number} of boot {boot}")).collect();
    let event = |text: &String| {
        let (pcr, digest) = (PcrIndex::BOOT_FILES, Sha256Digest::of(text));
        ImageEvent::new("EV_IPL", pcr, digest, "Pcr9File").from_file(text.as_str())
    };
    let events: Vec<_> = chain.iter().map(event).collect();
    let logged = (0..).zip(events.iter().cycle().take(10_000)).map(|(number, event)| {
        LoggedEvent::new(number, event.pcr, event.hash, "EV_IPL", event.source.clone())
    });
    let finding =
        |event| EventFinding { event, known_as: Vec::new(), expected: None, surplus: true };
    let measured = ExpectedPcr::from_events(PcrIndex::BOOT_FILES, events.iter().cloned());
    attempt.measured = ExpectedPcrs::new(vec![measured]);
    attempt.ladder.fail_pcrs(Box::new(PcrMismatch {
        pcr: PcrIndex::BOOT_FILES,
        quoted: Sha256Digest::ZERO,
        closest: None,
        ended: None,
        events: logged.map(finding).collect(),
        missing: Vec::new(),
        others: Vec::new(),
        apart: Vec::new(),
        trouble: None,
    }));
    attempt
}

#[tokio::test]
async fn long_refusals_take_little_space_and_the_last_one_can_be_approved() {
    let place = Place::new();
    let store = place.open();
    for boot in 1..=40 {
        store.record(&long_refusal(boot)).await.unwrap();
        // Repeated in the same boot.
        let id = sample::attempt_id(1000 + u64::from(boot));
        store.record(&Attempt { id, ..long_refusal(boot) }).await.unwrap();
    }
    let stored = store.latest(Some(sample::machine_id(1)), 100).await.unwrap();
    assert_eq!(stored.len(), 32, "one for each boot");
    assert_eq!(stored[0].measured, long_refusal(40).measured);
    assert_eq!(stored[0].repeats.map(|repeats| repeats.count), Some(2));
    assert!(stored[1..].iter().all(|older| older.measured.is_empty()));
    let query = "SELECT sum(length(body)) FROM attempt";
    let bytes: i64 = place.raw().query_row(query, (), |row| row.get(0)).unwrap();
    assert!(bytes < 400 * 1024, "{bytes} bytes");
    let last = store.last_attempts().unwrap();
    let last = &last[&sample::machine_id(1)];
    assert_eq!(last.ladder.code, stored[0].ladder.code);
    assert!(last.ladder.mismatch.is_none() && last.measured.is_empty(), "a summary");
}
