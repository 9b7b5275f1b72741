use proptest::prelude::*;
use tec_core::testing::{Mishap, World, crash_everywhere, run_plan, seeded_mishaps};

use super::*;

const LIMIT: usize = 400;

/// A node, a client that repeats its request until it learns the outcome, and what survives a
/// process.
struct Node {
    request: Sha256Digest,
    cluster: ClusterId,
    journal: Option<Intent>,
    register: Sha256Digest,
    extended: usize,
    rekeyed: bool,
    state_written: bool,
    cluster_up: bool,
    outcome: Option<InitOutcome>,
}

impl Node {
    fn new() -> Self {
        Self {
            request: Sha256Digest::of("request"),
            cluster: ClusterId::new([7; 32]),
            journal: None,
            register: Sha256Digest::ZERO,
            extended: 0,
            rekeyed: false,
            state_written: false,
            cluster_up: false,
            outcome: None,
        }
    }

    /// Like the real lock: a marker that is set already is not set again.
    fn lock(&mut self, cluster: ClusterId) -> InitEvent {
        assert!(self.journal.is_some(), "locked without an intent");
        if self.register == Sha256Digest::ZERO {
            self.register = cluster.marker();
            self.extended += 1;
        }
        assert_eq!(self.register, cluster.marker());
        InitEvent::Done(InitStep::Lock)
    }

    fn run(&mut self, step: InitStep) -> InitEvent {
        let locked = self.register != Sha256Digest::ZERO;
        match step {
            InitStep::ReadJournal => return InitEvent::Journal(self.journal),
            InitStep::ReadMarker => return InitEvent::Marker(MarkerState::of(self.register)),
            InitStep::Prepare => return InitEvent::Prepared(self.cluster),
            InitStep::RekeyDisk => {
                assert!(self.state_written, "power lost now leaves a disk for nobody");
                self.rekeyed = locked;
            }
            InitStep::WriteState => self.state_written = locked,
            InitStep::InitCluster => {
                assert!(self.rekeyed && self.state_written);
                self.cluster_up = true;
            }
            InitStep::Lock => return self.lock(self.cluster),
            InitStep::WriteIntent | InitStep::WriteDone => {
                self.journal = self.journal.map(Intent::done);
            }
        }
        InitEvent::Done(step)
    }

    fn is_bootstrapped(&self) -> bool {
        self.rekeyed
            && self.state_written
            && self.cluster_up
            && self.extended == 1
            && self.outcome == Some(InitOutcome::Initialized(self.cluster))
            && self.journal.is_some_and(|intent| intent.phase == Phase::Done)
    }
}

impl World for Node {
    type Plan = InitPlan;

    fn boot(&mut self) -> (InitPlan, InitEvent) {
        (InitPlan::new(), InitEvent::Requested(self.request))
    }

    fn apply(&mut self, effect: InitEffect) -> Option<InitEvent> {
        Some(match effect {
            InitEffect::Run(step) | InitEffect::Again(step) => self.run(step),
            InitEffect::WriteIntent(intent) => {
                self.journal = Some(intent);
                InitEvent::Done(match intent.phase {
                    Phase::Intended => InitStep::WriteIntent,
                    Phase::Done => InitStep::WriteDone,
                })
            }
            InitEffect::Lock(cluster) => self.lock(cluster),
            // The client repeats the request.
            InitEffect::Finish(InitOutcome::Retry(_)) => InitEvent::Requested(self.request),
            InitEffect::Finish(outcome) => {
                self.outcome = Some(outcome);
                return None;
            }
        })
    }

    fn failure(&self, effect: &InitEffect) -> Option<InitEvent> {
        match effect {
            InitEffect::Run(step) | InitEffect::Again(step) => Some(InitEvent::Failed(*step)),
            InitEffect::WriteIntent(intent) => Some(InitEvent::Failed(match intent.phase {
                Phase::Intended => InitStep::WriteIntent,
                Phase::Done => InitStep::WriteDone,
            })),
            InitEffect::Lock(_) => Some(InitEvent::Failed(InitStep::Lock)),
            InitEffect::Finish(_) => None,
        }
    }

    fn name(&self, effect: &InitEffect) -> String {
        format!("{effect:?}").chars().take(32).collect()
    }
}

#[test]
fn init_ends_bootstrapped_whatever_happens_at_any_step() {
    let rows = crash_everywhere(LIMIT, Node::new, |node| assert!(node.is_bootstrapped()));
    assert!(rows.len() >= 10 * Mishap::ALL.len());
}

proptest! {
    #[test]
    fn init_ends_bootstrapped_after_any_series_of_mishaps(seed: u64, per_mille in 0_u32..600) {
        let mut node = Node::new();
        run_plan(&mut node, LIMIT, seeded_mishaps(seed, per_mille, 120));
        prop_assert!(node.is_bootstrapped());
    }

    #[test]
    fn whoever_gives_up_leaves_a_node_that_is_untouched_or_goes_on(seed: u64, until in 0_usize..40) {
        // The first client repeats its request until it gives up at some point; another one
        // requests something else.
        let mut node = Node::new();
        let mut count = 0;
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut mishaps = seeded_mishaps(seed, 300, 1000);
            run_plan(&mut node, until.max(1), |at| { count = at; mishaps(at) });
        }));
        prop_assume!(stopped.is_err());
        let (first, cluster) = (node.request, node.cluster);
        node.request = Sha256Digest::of("another");
        node.cluster = ClusterId::new([8; 32]);
        let touched = node.register != Sha256Digest::ZERO;
        run_plan(&mut node, LIMIT, |_| Mishap::None);
        if touched {
            prop_assert_eq!(node.outcome, Some(InitOutcome::AlreadyActivated));
            (node.request, node.cluster) = (first, cluster);
            run_plan(&mut node, LIMIT, |_| Mishap::None);
        }
        prop_assert!(node.is_bootstrapped());
    }
}

#[test]
fn the_same_request_after_its_success_is_told_so_and_another_is_refused() {
    let mut node = Node::new();
    run_plan(&mut node, LIMIT, |_| Mishap::None);
    node.outcome = None;
    run_plan(&mut node, LIMIT, |_| Mishap::None);
    assert!(node.is_bootstrapped());
    node.request = Sha256Digest::of("another");
    run_plan(&mut node, LIMIT, |_| Mishap::None);
    assert_eq!(node.outcome, Some(InitOutcome::AlreadyActivated));
}

#[test]
fn what_can_never_succeed_is_refused_and_leaves_no_trace() {
    let mut plan = InitPlan::new();
    plan.step(InitEvent::Requested(Sha256Digest::of("request")));
    plan.step(InitEvent::Journal(None));
    let effects = plan.step(InitEvent::Marker(MarkerState::Unset));
    assert_eq!(effects, [InitEffect::Run(InitStep::Prepare)]);
    let effects = plan.step(InitEvent::Refused(InitStep::Prepare));
    let refused = InitOutcome::Refused(InitStep::Prepare);
    assert_eq!(effects, [InitEffect::Finish(refused)]);
}
