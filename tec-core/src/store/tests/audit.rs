use super::Place;
use crate::digest::Sha256Digest;
use crate::port::AuditSink;
use crate::store::{AuditPlace, AuditVerdict, Store};
use crate::testing::sample;

/// Number of lines of an intact log.
pub(super) fn intact(store: &Store) -> u64 {
    match store.verify_audit().unwrap() {
        AuditVerdict::Intact { events, .. } => events,
        AuditVerdict::Broken { sequence } => panic!("broken at {sequence}"),
    }
}

async fn ten_lines() -> (Place, Store) {
    let place = Place::new();
    let store = place.open();
    for number in 1..=10 {
        store.append(&sample::audit_event(number)).await.unwrap();
    }
    (place, store)
}

/// Result of the check after someone with shell access removed the guards and ran `sql`.
async fn verdict_after(sql: &str) -> AuditVerdict {
    let (place, store) = ten_lines().await;
    let raw = place.raw();
    raw.execute_batch("DROP TRIGGER audit_updated; DROP TRIGGER audit_deleted;").unwrap();
    raw.execute_batch(sql).unwrap();
    store.verify_audit().unwrap()
}

#[tokio::test]
async fn an_untouched_log_verifies_and_pages() {
    let (_place, store) = ten_lines().await;
    assert_eq!(intact(&store), 10);
    let page = store.audit_events(3, 2).unwrap();
    let numbers: Vec<_> = page.iter().map(|entry| entry.sequence).collect();
    assert_eq!(numbers, [4, 5]);
    assert_eq!(page[0].event, sample::audit_event(4));
    assert!(store.audit_events(10, 5).unwrap().is_empty());
    assert!(store.audit_events(u64::MAX, usize::MAX).unwrap().is_empty());
}

#[tokio::test]
async fn an_empty_log_is_intact() {
    let place = Place::new();
    let store = place.open();
    let head = Sha256Digest::ZERO;
    assert_eq!(
        store.verify_audit().unwrap(),
        AuditVerdict::Intact { events: 0, archived: 0, head }
    );
}

#[tokio::test]
async fn every_sort_of_tampering_is_found_where_it_begins() {
    let cases = [
        ("UPDATE audit SET event = replace(event, 'event 4', 'event 5') WHERE seq = 4", 4),
        ("UPDATE audit SET hash = zeroblob(32) WHERE seq = 7", 7),
        ("UPDATE audit SET hash = zeroblob(5) WHERE seq = 7", 7),
        ("DELETE FROM audit WHERE seq = 1", 1),
        ("DELETE FROM audit WHERE seq = 5", 5),
        ("DELETE FROM audit WHERE seq = 10", 10),
        ("DELETE FROM audit WHERE seq >= 8", 8),
        ("DELETE FROM audit", 1),
        ("DELETE FROM audit WHERE seq = 5; UPDATE audit SET seq = seq - 1 WHERE seq > 5", 5),
        ("INSERT INTO audit SELECT 11, event, hash FROM audit WHERE seq = 10", 11),
        ("INSERT INTO audit SELECT 0, event, hash FROM audit WHERE seq = 10", 1),
        ("UPDATE audit_head SET seq = 9", 10),
        (
            "DELETE FROM audit WHERE seq <= 5; UPDATE audit_base SET (seq, hash) = (5, zeroblob(32))",
            6,
        ),
        (
            "UPDATE audit_base SET (seq, hash) = (SELECT seq, hash FROM audit WHERE seq = 5);\
          DELETE FROM audit WHERE seq <= 5",
            5,
        ),
        ("UPDATE audit_head SET hash = zeroblob(32)", 11),
        ("UPDATE audit SET event = (SELECT event FROM audit WHERE seq = 3) WHERE seq = 2", 2),
    ];
    for (sql, sequence) in cases {
        assert_eq!(verdict_after(sql).await, AuditVerdict::Broken { sequence }, "{sql}");
    }
}

#[tokio::test]
async fn the_log_is_append_only_even_from_a_shell() {
    let (place, store) = ten_lines().await;
    for sql in ["DELETE FROM audit WHERE seq = 10", "UPDATE audit SET event = '{}'"] {
        assert!(place.raw().execute_batch(sql).is_err(), "{sql}");
    }
    assert_eq!(intact(&store), 10);
}

#[tokio::test]
async fn the_oldest_lines_can_be_archived_and_the_rest_still_verifies() {
    let (place, store) = ten_lines().await;
    let entries = store.audit_events(0, 10).unwrap();
    let mut last = AuditPlace::BEGIN;
    for entry in &entries[..4] {
        last = last.followed_by(&serde_json::to_value(&entry.event).unwrap()).unwrap();
        assert_eq!((last.sequence, last.hash), (entry.sequence, entry.hash));
    }
    let wrong = AuditPlace { hash: entries[4].hash, ..last };
    for place in [wrong, AuditPlace::BEGIN, AuditPlace { sequence: 99, ..last }] {
        let refused = store.archive_audit(AuditPlace::BEGIN, place, sample::time(1)).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), crate::port::PortErrorKind::Conflict, "{place:?}");
    }
    assert_eq!(intact(&store), 10);
    store.archive_audit(AuditPlace::BEGIN, last, sample::time(1)).await.unwrap();
    let verdict = store.verify_audit().unwrap();
    assert!(matches!(verdict, AuditVerdict::Intact { events: 11, archived: 4, .. }), "{verdict:?}");
    assert_eq!(store.audit_base().unwrap(), last);
    let kept = store.audit_events(0, 20).unwrap();
    assert_eq!(
        kept.iter().map(|entry| entry.sequence).collect::<Vec<_>>(),
        [5, 6, 7, 8, 9, 10, 11]
    );
    assert!(place.raw().execute_batch("DELETE FROM audit WHERE seq = 5").is_err());
    let all = AuditPlace { sequence: 11, hash: kept[6].hash };
    let stale = store.archive_audit(AuditPlace::BEGIN, all, sample::time(2)).await;
    assert!(stale.is_err(), "the log begins elsewhere");
    store.archive_audit(last, all, sample::time(2)).await.unwrap();
    let verdict = store.verify_audit().unwrap();
    assert!(
        matches!(verdict, AuditVerdict::Intact { events: 12, archived: 11, .. }),
        "{verdict:?}"
    );
    while store.remove_archived_audit().await.unwrap() > 0 {}
    let rows = "SELECT count(*) FROM audit";
    let rows: i64 = place.raw().query_row(rows, (), |row| row.get(0)).unwrap();
    assert_eq!(rows, 1, "the others are gone");
}

/// SHA-256("tec store audit v1\0" ‖ 32 zero bytes ‖ JSON), recomputed here from the text.
#[tokio::test]
async fn the_first_hash_is_the_documented_one() {
    let (_place, store) = ten_lines().await;
    let json = concat!(
        r#"{"action":"ak-bound","at":"2026-01-01T00:00:03Z","#,
        r#""machine":"00000000-0000-0000-0000-000000000001","subject":"event 1"}"#
    );
    let mut text = b"tec store audit v1\0".to_vec();
    text.extend([0; 32]);
    text.extend(json.as_bytes());
    assert_eq!(store.audit_events(0, 1).unwrap()[0].hash, Sha256Digest::of(text));
}
