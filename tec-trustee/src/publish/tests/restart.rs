//! What a publisher leaves in its target for the next one; changes while a round is under way.

use super::converge::{publisher, settle};
use super::fake::{Fake, Fault, Store};
use super::*;

/// Whether a request changes something.
fn writes(requests: &[String]) -> usize {
    let writes = requests.iter().filter(|text| !text.starts_with("GET "));
    writes.count()
}

#[tokio::test]
async fn after_a_restart_nothing_is_sent_that_the_target_holds() {
    let fake = Fake::new();
    let wanted = desired(1..=200);
    settle(&publisher(&fake).await, &wanted).await;
    fake.taken();
    // Another process, which states everything again.
    let again = desired(1..=200);
    let restarted = publisher(&fake).await;
    let progress = restarted.publish(&again).await.unwrap();
    assert_eq!(progress, converged(0, &again));
    let (requests, _) = fake.taken();
    assert_eq!(writes(&requests), 0, "{requests:?}");
    assert!(requests.len() < 10, "{requests:?}");
    // One that desires something else sends the differences.
    register(&again, 201);
    revoke(&again, 7);
    let progress = publisher(&fake).await.publish(&again).await.unwrap();
    assert_eq!(progress, converged(4, &again));
    assert_eq!(fake.store().differences(&again), Vec::<String>::new());
}

#[tokio::test]
async fn what_was_done_before_a_break_is_not_done_again() {
    let fake = Fake::new();
    let wanted = desired(1..=400);
    fake.plan((0..900).map(|_| Fault::None).chain([Fault::NothingDone]));
    publisher(&fake).await.publish(&wanted).await.unwrap_err();
    let Progress::Converged { changes, .. } =
        publisher(&fake).await.publish(&wanted).await.unwrap()
    else {
        panic!("there is nothing to wait for");
    };
    assert!((400..600).contains(&changes), "{changes}");
    assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_broken_round_did_is_not_done_again_after_a_restart() {
    for fault in [Fault::NothingDone, Fault::LostAck] {
        for at in 0..24 {
            let fake = Fake::new();
            let wanted = desired([1]);
            let first = publisher(&fake).await;
            settle(&first, &wanted).await;
            // A round over several items fails, and the next one repairs it.
            (2..=4).for_each(|number| register(&wanted, number));
            fake.plan((0..at).map(|_| Fault::None).chain([fault]));
            let _ = first.publish(&wanted).await;
            fake.plan([]);
            settle(&first, &wanted).await;
            fake.taken();
            let again = desired(1..=4);
            let progress = publisher(&fake).await.publish(&again).await.unwrap();
            assert_eq!(progress, converged(0, &again), "{fault:?} at {at}");
        }
    }
}

#[tokio::test]
async fn notes_that_are_damaged_or_of_another_state_are_not_believed() {
    let name = |store: &Store, start: &str| {
        let mut names = store.references.keys();
        names.find(|name| name.starts_with(start)).cloned().unwrap()
    };
    for part in ["tec-index-a", "tec-index-epoch", "tec-index"] {
        for damage in [None, Some(json!("garbage"))] {
            let fake = Fake::new();
            let wanted = desired(1..=20);
            settle(&publisher(&fake).await, &wanted).await;
            let mut store = fake.store();
            store.resources.clear();
            let part = name(&store, part);
            match damage.clone() {
                Some(damage) => store.references.insert(part, damage),
                None => store.references.remove(&part),
            };
            fake.restore(store);
            settle(&publisher(&fake).await, &wanted).await;
            assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn the_notes_stay_in_proportion_however_often_something_changes() {
    let fake = Fake::new();
    let wanted = desired(1..=3);
    let publisher = BrokerPublisher::new(Arc::new(fake.clone()), entropy(5));
    for number in 0..1500 {
        wanted.put_secret(sample::secret_path(1), sample::secret(number));
        publisher.publish(&wanted).await.unwrap();
    }
    let references = fake.store().references;
    let notes = references.keys().filter(|name| name.starts_with("tec-index"));
    assert!(notes.count() < 2 * 70);
    let fresh = BrokerPublisher::new(Arc::new(fake.clone()), entropy(6));
    let progress = fresh.publish(&wanted).await.unwrap();
    assert_eq!(progress, converged(0, &wanted));
}

#[tokio::test]
async fn changes_do_not_wait_for_a_round_that_is_under_way() {
    let fake = Fake::new();
    let wanted = desired(1..=50);
    let publisher = publisher(&fake).await;
    let before = wanted.revision();
    let feed = async {
        // The plan is made, and its first steps are taken.
        let planned = |text: &String| text == "POST resource-policy";
        while !fake.taken().0.iter().any(planned) {
            tokio::task::yield_now().await;
        }
        register(&wanted, 51);
        revoke(&wanted, 1);
        wanted.put_secret(sample::secret_path(2), sample::secret(1000));
    };
    let (progress, ()) = tokio::join!(publisher.publish(&wanted), feed);
    let Progress::Converged { revision, .. } = progress.unwrap() else {
        panic!("there is nothing to wait for");
    };
    assert_eq!(revision, before);
    assert_eq!(wanted.changed(revision).await, wanted.revision());
    settle(&publisher, &wanted).await;
    assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());
}

#[tokio::test]
async fn a_secret_that_is_only_kept_is_neither_sent_nor_taken_away_until_it_is_removed() {
    let fake = Fake::new();
    settle(&publisher(&fake).await, &desired(1..=3)).await;
    let before = fake.store().resources;
    // A restart, and nobody knows the secret of the second machine any longer.
    let again = desired([1, 3]);
    again.bind_key(&sample::public_key(2), &sample::machine_id(2)).unwrap();
    again.keep_secret(sample::secret_path(2));
    settle(&publisher(&fake).await, &again).await;
    assert_eq!(fake.store().resources, before);
    // The notes are damaged, so that nobody knows that it is there.
    let mut store = fake.store();
    store.references.retain(|name, _| !name.starts_with("tec-index"));
    fake.restore(store);
    let restarted = publisher(&fake).await;
    settle(&restarted, &again).await;
    assert_eq!(fake.store().resources, before);

    again.remove_secret(&sample::secret_path(2));
    again.unbind_key(&sample::public_key(2));
    settle(&restarted, &again).await;
    assert_eq!(fake.store().differences(&again), Vec::<String>::new());
    again.keep_secret(sample::secret_path(3));
    register(&again, 3);
    settle(&restarted, &again).await;
    assert_eq!(fake.store().differences(&again), Vec::<String>::new());
}
