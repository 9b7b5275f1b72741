use super::{at_once, ok};
use crate::port::{AuditAction, AuditEvent, AuditSink};
use crate::testing::sample;

/// Checks the contract of [`AuditSink`]; `make` returns an empty log, `read` its content in order.
///
/// # Panics
/// If the contract is broken.
pub async fn audit_sink<S: AuditSink>(
    make: impl AsyncFn() -> S,
    read: impl AsyncFn(&S) -> Vec<AuditEvent>,
) {
    let log = make().await;
    assert!(read(&log).await.is_empty());
    let mut expected = Vec::new();
    for event in awkward_events() {
        ok(log.append(&event).await);
        expected.push(event);
        assert_eq!(read(&log).await, expected, "in order, nothing lost");
    }
    let same = sample::audit_event(1);
    for _ in 0..2 {
        ok(log.append(&same).await);
        expected.push(same.clone());
    }
    assert_eq!(read(&log).await, expected, "equal events are two events");
    all_of_many_at_once_are_kept(&make().await, read).await;
}

/// Every member absent or present, and text that a careless encoding would garble.
fn awkward_events() -> Vec<AuditEvent> {
    let event = |machine, subject: &str| {
        AuditEvent::new(sample::time(5), AuditAction::KeyRefused, machine, subject)
    };
    vec![
        event(None, ""),
        event(Some(sample::machine_id(1)), "quote \" backslash \\ newline \n nul \0"),
        event(None, "\u{e9}\u{1f511} and '); DROP TABLE audit; --"),
        AuditEvent::new(sample::time(0), AuditAction::ImageApproved, None, "an older one"),
    ]
}

async fn all_of_many_at_once_are_kept<S: AuditSink>(
    log: &S,
    read: impl AsyncFn(&S) -> Vec<AuditEvent>,
) {
    let events: Vec<_> = (1..=16).map(sample::audit_event).collect();
    for answer in at_once(events.iter().map(|event| log.append(event)).collect()).await {
        ok(answer);
    }
    let mut subjects: Vec<_> = read(log).await.into_iter().map(|event| event.subject).collect();
    subjects.sort_unstable();
    let mut expected: Vec<_> = events.into_iter().map(|event| event.subject).collect();
    expected.sort_unstable();
    assert_eq!(subjects, expected);
}
