//! An init and a ticket at the same time, a thousand times.

use std::sync::atomic::{AtomicU64, Ordering};

use tec_core::port::PortError;

use super::*;
use crate::journal::Phase;
use crate::lock::{BootstrapMarker, MarkerState};

/// Makes each caller wait a different number of turns.
#[derive(Debug)]
struct Turns(AtomicU64);

impl Turns {
    async fn wait(&self) {
        // Knuth's multiplicative generator (MMIX): any distribution will do.
        let next = |state: u64| {
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
        };
        let updated =
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| Some(next(state)));
        for _ in 0..updated.unwrap() >> 62 {
            tokio::task::yield_now().await;
        }
    }
}

/// The register of a node, as slow as a TPM.
#[derive(Debug)]
struct SlowMarker(Arc<MemoryNode>, Arc<Turns>);

#[async_trait]
impl BootstrapMarker for SlowMarker {
    async fn read(&self) -> Result<MarkerState, PortError> {
        self.1.wait().await;
        let state = BootstrapMarker::read(&*self.0).await;
        self.1.wait().await;
        state
    }

    async fn set(&self, cluster: &ClusterId) -> Result<(), PortError> {
        self.1.wait().await;
        let set = BootstrapMarker::set(&*self.0, cluster).await;
        self.1.wait().await;
        set
    }
}

#[derive(Debug)]
struct SlowTickets(Arc<Turns>);

#[async_trait]
impl TicketSource for SlowTickets {
    async fn fetch(&self) -> Result<JoinTicket, PortError> {
        self.0.wait().await;
        Tickets(Role::Worker).fetch().await
    }
}

/// Runs one race; returns whether init won.
async fn race(seed: u64, keys: &dyn DataKeys) -> bool {
    let node = node();
    let turns = Arc::new(Turns(AtomicU64::new(seed)));
    let marker = SlowMarker(Arc::clone(&node), Arc::clone(&turns));
    let lock = NodeLock::new(Arc::new(marker));
    let tickets = SlowTickets(turns);
    let request = request("request");
    let uris = uris();
    let init = ports(&node, &lock, &uris);
    let join = JoinPorts {
        lock: &lock,
        disk: &*node,
        store: &*node,
        tickets: &tickets,
        cluster: &*node,
        pause: &*node,
    };
    let name = "node-1".parse().unwrap();
    let (report, joined) =
        tokio::join!(drive_init(init, keys, &request), drive_join(join, &name, Role::Worker));
    let initialized = matches!(report.outcome, Some(InitOutcome::Initialized(_)));
    let joined = matches!(joined, Some(JoinOutcome::Joined(_)));
    let record = node.record();
    assert!(initialized != joined, "{seed}: {report:?}, {record:?}");
    assert_eq!(record.extensions, 1, "{seed}");
    assert_eq!(record.initialized, usize::from(initialized), "{seed}");
    assert_eq!(record.joined, usize::from(joined), "{seed}");
    let intent = record.intent.unwrap();
    assert!(MarkerState::of(record.register).is_of(&intent.cluster));
    assert_eq!(intent.phase, Phase::Done, "{seed}");
    initialized
}

#[tokio::test]
async fn of_a_thousand_races_each_has_one_winner_and_one_extension() {
    let keys = keys().await;
    let mut by_init = 0;
    for seed in 0..1000 {
        by_init += usize::from(race(seed, &*keys).await);
    }
    assert!((100..=900).contains(&by_init), "init won {by_init} times");
}
