use tec_core::digest::Sha256Digest;
use tec_core::testing::{World, crash_everywhere};

use super::*;

/// A node whose disk opens with the keys that are offered.
#[derive(Default)]
struct Node {
    register: Sha256Digest,
    extended: usize,
    mapped: bool,
    outcome: Option<RecoverOutcome>,
}

fn cluster() -> ClusterId {
    ClusterId::new([7; 32])
}

impl Node {
    fn run(&mut self, step: RecoverStep) -> RecoverEvent {
        match step {
            RecoverStep::TryKey => RecoverEvent::KeyFits,
            RecoverStep::MapDisk => {
                self.mapped = true;
                RecoverEvent::Mapped(cluster())
            }
            RecoverStep::ReadMarker => RecoverEvent::Marker(MarkerState::of(self.register)),
            RecoverStep::SetMarker => {
                self.register = self.register.extended(&Sha256Digest::of(cluster().as_bytes()));
                self.extended += 1;
                RecoverEvent::MarkerSet
            }
        }
    }
}

impl World for Node {
    type Plan = RecoverPlan;

    fn boot(&mut self) -> (RecoverPlan, RecoverEvent) {
        (RecoverPlan::new(), RecoverEvent::Offered)
    }

    fn apply(&mut self, effect: RecoverEffect) -> Option<RecoverEvent> {
        Some(match effect {
            RecoverEffect::TryKey => self.run(RecoverStep::TryKey),
            RecoverEffect::MapDisk => self.run(RecoverStep::MapDisk),
            RecoverEffect::ReadMarker => self.run(RecoverStep::ReadMarker),
            RecoverEffect::SetMarker(_) => self.run(RecoverStep::SetMarker),
            RecoverEffect::Again(step) => self.run(step),
            RecoverEffect::Finish(outcome) => {
                self.outcome = Some(outcome);
                return None;
            }
        })
    }

    fn failure(&self, effect: &RecoverEffect) -> Option<RecoverEvent> {
        let step = match effect {
            // The caller offers its keys again.
            RecoverEffect::TryKey => return Some(RecoverEvent::Offered),
            RecoverEffect::MapDisk => RecoverStep::MapDisk,
            RecoverEffect::ReadMarker => RecoverStep::ReadMarker,
            RecoverEffect::SetMarker(_) => RecoverStep::SetMarker,
            RecoverEffect::Again(step) => *step,
            RecoverEffect::Finish(_) => return None,
        };
        Some(RecoverEvent::Failed(step))
    }

    fn name(&self, effect: &RecoverEffect) -> String {
        format!("{effect:?}")
    }
}

#[test]
fn a_node_is_recovered_whatever_happens_and_its_marker_is_set_once() {
    crash_everywhere(200, Node::default, |node| {
        assert_eq!(node.outcome, Some(RecoverOutcome::Recovered(cluster())));
        assert!(node.mapped);
        assert_eq!(node.extended, 1);
    });
}

#[test]
fn keys_that_are_refused_or_cannot_be_tried_change_nothing_and_the_next_may_come() {
    let mut plan = RecoverPlan::new();
    for after in [RecoverEvent::KeyRefused, RecoverEvent::Failed(RecoverStep::TryKey)] {
        assert_eq!(plan.step(RecoverEvent::Offered), [RecoverEffect::TryKey]);
        assert!(plan.step(after).is_empty());
    }
    assert_eq!(plan.step(RecoverEvent::Offered), [RecoverEffect::TryKey]);
    assert_eq!(plan.step(RecoverEvent::KeyFits), [RecoverEffect::MapDisk]);
}

#[test]
fn a_disk_of_another_cluster_than_the_marker_goes_nowhere() {
    let mut plan = RecoverPlan::new();
    plan.step(RecoverEvent::Offered);
    plan.step(RecoverEvent::KeyFits);
    plan.step(RecoverEvent::Mapped(cluster()));
    let other = ClusterId::new([8; 32]).marker();
    assert_eq!(
        plan.step(RecoverEvent::Marker(MarkerState::of(other))),
        [RecoverEffect::Finish(RecoverOutcome::OtherCluster)]
    );
}
