//! Faults, restarts, losses: in the end every target holds what is desired, and nothing else.

use proptest::prelude::*;
use tec_core::port::{KeyBroker, PortErrorKind};

use super::super::record::Record;
use super::fake::{Fake, Fault, Store};
use super::*;

/// Rounds until everything has converged; each may fail.
pub(super) async fn settle(publisher: &BrokerPublisher, desired: &Desired) {
    for _ in 0..8 {
        if publisher.publish(desired).await.is_ok() {
            return;
        }
    }
    panic!("it does not converge: {:?}", publisher.publish(desired).await);
}

/// A new publisher, over HTTP.
pub(super) async fn publisher(fake: &Fake) -> BrokerPublisher {
    let api = api(&fake.serve().await, admin_key(1), fake.clock());
    BrokerPublisher::new(Arc::new(api), entropy(5))
}

const FAULTS: [Fault; 10] = [
    Fault::Refused("AdminAuthAccess"),
    Fault::Page(404),
    Fault::Page(500),
    Fault::Page(200),
    Fault::Refused("PluginInternalError"),
    Fault::Refused("RvpsError"),
    Fault::NothingDone,
    Fault::LostAck,
    Fault::RestartBefore,
    Fault::RestartAfter,
];

#[tokio::test]
async fn any_fault_at_any_request_is_got_over() {
    let fake = Fake::new();
    let wanted = desired([1, 2]);
    let api = api(&fake.serve().await, admin_key(1), fake.clock());
    let api: Arc<dyn KeyBroker> = Arc::new(api);
    let first = BrokerPublisher::new(Arc::clone(&api), entropy(5));
    settle(&first, &wanted).await;
    assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());
    assert_eq!(fake.early_secrets(), 0, "policies come before secrets");
    let (store, record) = (fake.store(), first.record.lock().await.clone());

    revoke(&wanted, 1);
    register(&wanted, 3);
    fake.taken();
    settle(&first, &wanted).await;
    // A publisher that starts from the notes in the target reads a few of them first.
    let requests = fake.taken().0.len() + 3;
    for (at, fault) in (0..requests).flat_map(|at| FAULTS.iter().map(move |one| (at, one))) {
        // By a publisher that knows what it did, and by one that has just started.
        for record in [record.clone(), Record::default()] {
            fake.restore(store.clone());
            let publisher = BrokerPublisher::new(Arc::clone(&api), entropy(6));
            *publisher.record.lock().await = record;
            fake.plan((0..at).map(|_| Fault::None).chain([*fault]));
            settle(&publisher, &wanted).await;
            fake.plan([]);
            if *fault == Fault::RestartAfter {
                // A loss after the last request is noticed by the next round.
                settle(&publisher, &wanted).await;
            }
            let left = fake.store().differences(&wanted);
            assert_eq!(left, Vec::<String>::new(), "{fault:?} at {at}");
        }
    }
}

#[tokio::test]
async fn what_was_sent_and_not_answered_is_in_doubt_when_it_is_no_longer_wanted() {
    for at in 0..12 {
        let fake = Fake::new();
        let wanted = desired([1, 2]);
        let publisher = BrokerPublisher::new(Arc::new(fake.clone()), entropy(7));
        settle(&publisher, &wanted).await;
        register(&wanted, 3);
        wanted.put_secret(sample::secret_path(1), sample::secret(100));
        wanted.remove_secret(&sample::secret_path(2));
        fake.plan((0..at).map(|_| Fault::None).chain([Fault::LostAck]));
        let _ = publisher.publish(&wanted).await;
        fake.plan([]);
        // All of it is withdrawn before the next round.
        revoke(&wanted, 3);
        register(&wanted, 1);
        register(&wanted, 2);
        settle(&publisher, &wanted).await;
        let left = fake.store().differences(&wanted);
        assert_eq!(left, Vec::<String>::new(), "at {at}");
    }
}

#[tokio::test]
async fn a_publisher_that_knows_nothing_finds_what_an_earlier_one_left() {
    let fake = Fake::new();
    settle(&publisher(&fake).await, &desired(1..=20)).await;
    // Names that belong to others are not touched.
    let mut store = fake.store();
    store.resources.insert("default/other/thing".to_owned(), b"theirs".to_vec());
    fake.restore(store);
    let wanted = desired([7]);
    settle(&publisher(&fake).await, &wanted).await;
    let mut store = fake.store();
    assert!(store.resources.remove("default/other/thing").is_some());
    assert_eq!(store.differences(&wanted), Vec::<String>::new());
}

#[tokio::test]
async fn with_nothing_to_do_two_requests_are_made_and_with_one_machine_eight() {
    let fake = Fake::new();
    let wanted = desired(1..=30);
    let publisher = publisher(&fake).await;
    settle(&publisher, &wanted).await;
    fake.taken();
    settle(&publisher, &wanted).await;
    assert_eq!(fake.taken().0.len(), 2);
    register(&wanted, 31);
    assert_eq!(publisher.publish(&wanted).await.unwrap(), converged(2, &wanted));
    let (requests, bytes) = fake.taken();
    assert_eq!(requests.len(), 8, "{requests:?}");
    assert!(bytes < 8192, "{bytes}");
}

#[tokio::test]
async fn values_that_are_lost_are_seen_and_secrets_that_are_lost_are_refreshed() {
    let fake = Fake::new();
    let wanted = desired([1]);
    let publisher = publisher(&fake).await;
    settle(&publisher, &wanted).await;
    register(&wanted, 2);
    // The index head is requested, written and read back; then the value of the key.
    fake.plan([Fault::None, Fault::None, Fault::None, Fault::LostUpdate]);
    settle(&publisher, &wanted).await;
    assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());

    register(&wanted, 3);
    fake.plan((0..5).map(|_| Fault::None).chain([Fault::LostUpdate]));
    settle(&publisher, &wanted).await;
    assert_eq!(fake.store().differences(&wanted).len(), 1, "a secret cannot be read back");
    publisher.refresh(1000).await;
    settle(&publisher, &wanted).await;
    assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());
}

#[tokio::test]
async fn a_policy_that_is_refused_stops_secrets_and_no_revocation() {
    let fake = Fake::new();
    let wanted = desired([1]);
    let publisher = publisher(&fake).await;
    settle(&publisher, &wanted).await;
    revoke(&wanted, 1);
    register(&wanted, 2);
    wanted.set_policies("no rego", rego(2));
    let error = publisher.publish(&wanted).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    let store = fake.store();
    assert!(!store.resources.contains_key(sample::secret_path(1).as_str()));
    assert!(!store.resources.contains_key(sample::secret_path(2).as_str()));
    wanted.set_policies(rego(3), rego(2));
    settle(&publisher, &wanted).await;
    assert_eq!(fake.store().differences(&wanted), Vec::<String>::new());
}

#[derive(Clone, Debug)]
enum Act {
    Register(u64),
    /// Different content in place of the usual one.
    Replace(u64),
    Revoke(u64),
    Policies(u64),
    Publish(Vec<Fault>),
    Backup,
    /// The KBS is reset to the last backup, or to nothing.
    Rollback,
    /// The publisher's process ends, and another one starts.
    Restart,
}

fn acts(silent: bool) -> impl Strategy<Value = Vec<Act>> {
    let mut faults =
        vec![Fault::NothingDone, Fault::LostAck, Fault::RestartBefore, Fault::RestartAfter];
    faults.extend(silent.then_some(Fault::LostUpdate));
    // Few faults, anywhere in the dozen requests of a round; one that starts over has a hundred.
    let fault = (0_usize..16, prop::sample::select(faults));
    let round = prop::collection::vec(fault, 0..3).prop_map(|faults| {
        let quiet = |count| std::iter::repeat_n(Fault::None, count);
        faults.into_iter().flat_map(|(at, fault)| quiet(at).chain([fault])).collect()
    });
    let act = prop_oneof![
        4 => (0_u64..4).prop_map(Act::Register),
        2 => (0_u64..4).prop_map(Act::Replace),
        4 => (0_u64..4).prop_map(Act::Revoke),
        1 => (0_u64..4).prop_map(Act::Policies),
        8 => round.prop_map(Act::Publish),
        1 => Just(Act::Backup),
        1 => Just(Act::Rollback),
        2 => Just(Act::Restart),
    ];
    prop::collection::vec(act, 1..40)
}

async fn play(acts: Vec<Act>, silent: bool) -> Vec<String> {
    let fake = Fake::new();
    let wanted = desired([]);
    let new = |seed| BrokerPublisher::new(Arc::new(fake.clone()) as _, entropy(seed));
    let mut publisher = new(0);
    settle(&publisher, &wanted).await;
    let mut backup = Store::default();
    for (seed, act) in (1..).zip(acts) {
        match act {
            Act::Register(number) => register(&wanted, number),
            Act::Replace(number) => {
                wanted.put_secret(sample::secret_path(number), sample::secret(number + 100));
            }
            Act::Revoke(number) => revoke(&wanted, number),
            Act::Policies(number) => wanted.set_policies(rego(number), rego(2)),
            Act::Publish(faults) => {
                fake.plan(faults);
                let _ = publisher.publish(&wanted).await;
                fake.plan([]);
            }
            Act::Backup => backup = fake.store(),
            Act::Rollback => fake.restore(backup.clone()),
            Act::Restart => {
                publisher = new(seed);
                // Both lost what they knew within one batch, which leaves no trace.
                if !fake.store().references.contains_key("tec-index") {
                    fake.restore(Store::default());
                }
            }
        }
    }
    if silent {
        publisher.distrust().await;
    }
    settle(&publisher, &wanted).await;
    fake.store().differences(&wanted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_happens_it_converges_and_nothing_unwanted_is_left(acts in acts(false)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(runtime.block_on(play(acts, false)), Vec::<String>::new());
    }

    /// Updates that are acknowledged and lost leave no trace, so the publisher is instructed to
    /// send everything again.
    #[test]
    fn after_silent_losses_it_converges_when_it_starts_over(acts in acts(true)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(runtime.block_on(play(acts, true)), Vec::<String>::new());
    }
}
