use std::time::Duration;

use super::{Place, assert_filled, audit, fill};
use crate::code::Code;
use crate::port::{
    AkRegistry, AuditAction, AuditEvent, AuditSink, ImageRegistry, MachineRegistry, PortErrorKind,
    PutOutcome, SecretStore, UnclaimedLimit,
};
use crate::secret::SecretBytes;
use crate::store::Store;
use crate::testing::sample;

async fn limit_pages(store: &Store, pages: i64) {
    store
        .write("limit the pages", move |db| {
            db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
            Ok(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_full_disk_is_said_keeps_what_there_is_and_heals() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    limit_pages(&store, 1).await; // SQLite takes the present size instead.
    let path = sample::secret_path(7);
    let big = SecretBytes::new(vec![7; 100_000]);
    for _ in 0..3 {
        let error = store.put_new(&path, &big, &sample::line()).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Unavailable);
        assert_eq!(error.code(), Some(Code::StoreFull));
    }
    assert!(!store.exists(&path).await.unwrap(), "nothing of the request was kept");
    assert_filled(&store).await;
    store.health().unwrap();
    limit_pages(&store, 1_000_000).await;
    assert_eq!(store.put_new(&path, &big, &sample::line()).await.unwrap(), PutOutcome::Stored);
    assert!(SecretStore::find(&store, &path).await.unwrap().unwrap().ct_eq(&big));
}

#[tokio::test]
async fn small_writes_until_the_disk_is_full_leave_an_intact_log() {
    let place = Place::new();
    let store = place.open();
    limit_pages(&store, 30).await;
    let mut written = 0;
    loop {
        match store.append(&sample::audit_event(written)).await {
            Ok(()) => written += 1,
            Err(error) => {
                assert_eq!(error.code(), Some(Code::StoreFull));
                break;
            }
        }
    }
    assert!(written > 10);
    assert_eq!(audit::intact(&store), written);
    drop(store);
    assert_eq!(audit::intact(&place.open()), written);
}

#[tokio::test]
async fn a_change_whose_audit_line_cannot_be_written_does_not_happen() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    let before = audit::intact(&store);
    limit_pages(&store, 1).await;
    // The changes alone would fit into the existing pages.
    let subject = "x".repeat(100_000);
    let line = AuditEvent::new(sample::time(1), AuditAction::AkRevoked, None, subject);
    let key = sample::public_key(1).fingerprint();
    let refused = [
        AkRegistry::revoke(&store, &key, &line).await,
        MachineRegistry::revoke(&store, &sample::machine_id(1), &line).await,
        ImageRegistry::revoke(&store, &sample::image_name(1), &line).await,
    ];
    for error in refused {
        assert_eq!(error.unwrap_err().code(), Some(Code::StoreFull));
    }
    assert_filled(&store).await;
    assert_eq!(audit::intact(&store), before);
    limit_pages(&store, 1_000_000).await;
    AkRegistry::revoke(&store, &key, &line).await.unwrap();
}

#[tokio::test]
async fn a_locked_database_is_unavailable_until_it_is_free() {
    let place = Place::new();
    let store = place.open();
    let short = |db: &rusqlite::Connection| Ok(db.busy_timeout(Duration::from_millis(5))?);
    store.write("wait less", short).await.unwrap();
    let other = place.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let machine = sample::machine(1);
    let error = store.create(&machine, UnclaimedLimit::Unlimited).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
    assert_eq!(error.code(), Some(Code::StoreUnavailable));
    assert_eq!(MachineRegistry::find(&store, &machine.id).await.unwrap(), None, "reads go on");
    other.execute_batch("ROLLBACK").unwrap();
    store.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
}

#[tokio::test]
async fn a_write_that_fails_leaves_the_others_of_its_transaction_alone() {
    let place = Place::new();
    let store = place.open();
    limit_pages(&store, 60).await;
    let (path, line) = (sample::secret_path(1), sample::line());
    let secret = SecretBytes::new(vec![7; 300_000]);
    let events: Vec<_> = (0..20).map(sample::audit_event).collect();
    // The writer waits for the lock, and finds the others waiting when it gets it.
    let other = place.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut appends: Vec<_> = events.iter().map(|event| store.append(event)).collect();
    let mut too_big = store.put_new(&path, &secret, &line);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for append in &mut appends[..10] {
        assert!(append.as_mut().poll(&mut context).is_pending());
    }
    assert!(too_big.as_mut().poll(&mut context).is_pending());
    for append in &mut appends[10..] {
        assert!(append.as_mut().poll(&mut context).is_pending());
    }
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(too_big.await.unwrap_err().code(), Some(Code::StoreFull));
    for append in appends {
        append.await.unwrap();
    }
    assert_eq!(audit::intact(&store), 20);
}
