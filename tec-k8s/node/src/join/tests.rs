use proptest::prelude::*;
use tec_core::testing::{Mishap, World, crash_everywhere, run_plan, seeded_mishaps};

use super::*;

const LIMIT: usize = 600;

/// A node whose join service always answers, and what survives a process.
#[derive(Default)]
struct Node {
    journal: Option<Intent>,
    register: Sha256Digest,
    extended: usize,
    done: Vec<JoinStep>,
    outcome: Option<JoinOutcome>,
    longest_wait: u32,
}

fn cluster() -> ClusterId {
    ClusterId::new([7; 32])
}

impl Node {
    fn lock(&mut self, cluster: ClusterId) -> JoinEvent {
        assert!(self.journal.is_some(), "locked without an intent");
        if self.register == Sha256Digest::ZERO {
            self.register = cluster.marker();
            self.extended += 1;
        }
        JoinEvent::Done(JoinStep::Lock)
    }

    /// A machine that loses power can be recovered, and no key is on a disk that its first key
    /// opens.
    fn assert_recoverable(&self, next: JoinStep) {
        let done = |step| self.done.contains(&step);
        match next {
            JoinStep::RekeyDisk => assert!(done(JoinStep::WriteState)),
            JoinStep::WriteFiles => assert!(done(JoinStep::RekeyDisk)),
            _ => {}
        }
    }

    fn run(&mut self, step: JoinStep) -> JoinEvent {
        match step {
            JoinStep::ReadJournal => JoinEvent::Journal(self.journal),
            JoinStep::ReadMarker => JoinEvent::Marker(MarkerState::of(self.register)),
            JoinStep::FetchTicket => JoinEvent::Ticket(cluster()),
            JoinStep::Lock => self.lock(cluster()),
            JoinStep::WriteState
            | JoinStep::RekeyDisk
            | JoinStep::WriteFiles
            | JoinStep::JoinCluster => {
                assert_ne!(self.register, Sha256Digest::ZERO, "{step:?} before the lock");
                self.assert_recoverable(step);
                self.done.push(step);
                JoinEvent::Done(step)
            }
            JoinStep::WriteIntent | JoinStep::WriteDone => {
                self.journal = self.journal.map(Intent::done);
                JoinEvent::Done(step)
            }
            JoinStep::Prepare => JoinEvent::Done(step),
        }
    }

    fn is_member(&self) -> bool {
        let wanted = [
            JoinStep::WriteState,
            JoinStep::RekeyDisk,
            JoinStep::WriteFiles,
            JoinStep::JoinCluster,
        ];
        let joined = [
            Some(JoinOutcome::Joined(cluster())),
            // The answer to the last write was lost with the process.
            Some(JoinOutcome::AlreadyMember),
        ];
        wanted.iter().all(|step| self.done.contains(step))
            && self.extended == 1
            && joined.contains(&self.outcome)
            && self.journal.is_some_and(|intent| intent.phase == Phase::Done)
    }
}

impl World for Node {
    type Plan = JoinPlan;

    fn boot(&mut self) -> (JoinPlan, JoinEvent) {
        let request = Sha256Digest::of("node-1 worker");
        (JoinPlan::new(), JoinEvent::Started(request))
    }

    fn apply(&mut self, effect: JoinEffect) -> Option<JoinEvent> {
        Some(match effect {
            JoinEffect::Run(step) | JoinEffect::Again(step) => self.run(step),
            JoinEffect::WriteIntent(intent) => {
                self.journal = Some(intent);
                JoinEvent::Done(match intent.phase {
                    Phase::Intended => JoinStep::WriteIntent,
                    Phase::Done => JoinStep::WriteDone,
                })
            }
            JoinEffect::Lock(cluster) => self.lock(cluster),
            JoinEffect::Wait { doublings } => {
                self.longest_wait = self.longest_wait.max(doublings);
                JoinEvent::Waited
            }
            JoinEffect::Finish(outcome) => {
                self.outcome = Some(outcome);
                return None;
            }
        })
    }

    fn failure(&self, effect: &JoinEffect) -> Option<JoinEvent> {
        match effect {
            JoinEffect::Run(step) | JoinEffect::Again(step) => Some(JoinEvent::Failed(*step)),
            JoinEffect::WriteIntent(intent) => Some(JoinEvent::Failed(match intent.phase {
                Phase::Intended => JoinStep::WriteIntent,
                Phase::Done => JoinStep::WriteDone,
            })),
            JoinEffect::Lock(_) => Some(JoinEvent::Failed(JoinStep::Lock)),
            JoinEffect::Wait { .. } | JoinEffect::Finish(_) => None,
        }
    }

    fn name(&self, effect: &JoinEffect) -> String {
        format!("{effect:?}").chars().take(32).collect()
    }
}

#[test]
fn join_ends_as_a_member_whatever_happens_at_any_step() {
    let rows = crash_everywhere(LIMIT, Node::default, |node| assert!(node.is_member()));
    assert!(rows.len() >= 10 * Mishap::ALL.len());
}

proptest! {
    #[test]
    fn join_ends_as_a_member_after_any_series_of_mishaps(seed: u64, per_mille in 0_u32..600) {
        let mut node = Node::default();
        run_plan(&mut node, LIMIT, seeded_mishaps(seed, per_mille, 200));
        prop_assert!(node.is_member());
        prop_assert!(node.longest_wait <= MAX_DOUBLINGS);
    }
}

#[test]
fn join_yields_to_init_before_the_lock_and_not_beyond() {
    let mut plan = JoinPlan::new();
    plan.step(JoinEvent::Started(Sha256Digest::ZERO));
    let yielded = [JoinEffect::Finish(JoinOutcome::Yielded)];
    assert_eq!(plan.step(JoinEvent::Stopped), yielded);

    let mut plan = JoinPlan::new();
    plan.step(JoinEvent::Started(Sha256Digest::ZERO));
    plan.step(JoinEvent::Journal(None));
    plan.step(JoinEvent::Marker(MarkerState::Unset));
    plan.step(JoinEvent::Ticket(cluster()));
    plan.step(JoinEvent::Done(JoinStep::Prepare));
    plan.step(JoinEvent::Done(JoinStep::WriteIntent));
    assert!(plan.step(JoinEvent::Stopped).is_empty());
    let taken = plan.step(JoinEvent::LockTaken);
    assert_eq!(taken, yielded);
}

#[test]
fn a_node_that_another_procedure_marked_is_left_alone() {
    let mut plan = JoinPlan::new();
    plan.step(JoinEvent::Started(Sha256Digest::of("join")));
    plan.step(JoinEvent::Journal(Some(Intent::new(cluster(), Sha256Digest::of("init")))));
    let effects = plan.step(JoinEvent::Marker(MarkerState::of(cluster().marker())));
    assert_eq!(effects, [JoinEffect::Finish(JoinOutcome::AlreadyMember)]);
}
