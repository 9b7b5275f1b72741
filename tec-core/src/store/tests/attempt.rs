use super::Place;
use crate::attest::Attempt;
use crate::boot::BootState;
use crate::explain::Gate;
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
