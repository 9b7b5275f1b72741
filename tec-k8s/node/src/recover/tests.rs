use tec_core::digest::Sha256Digest;
use tec_core::testing::{World, crash_everywhere};

use super::*;

/// A node whose disk opens with the keys of the join service, but not with those that an operator offers
/// first.
#[derive(Default)]
struct Node {
    register: Sha256Digest,
    extended: usize,
    mapped: bool,
    answers: Vec<(KeySource, Answer)>,
    outcome: Option<RecoverOutcome>,
    trying: Option<KeySource>,
}

fn cluster() -> ClusterId {
    ClusterId::new([7; 32])
}

impl Node {
    fn run(&mut self, step: RecoverStep) -> RecoverEvent {
        match step {
            RecoverStep::TryKey if self.trying == Some(KeySource::Rejoin) => RecoverEvent::KeyFits,
            RecoverStep::TryKey => RecoverEvent::KeyRefused,
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
        (RecoverPlan::new(), RecoverEvent::Offered(KeySource::Operator))
    }

    fn apply(&mut self, effect: RecoverEffect) -> Option<RecoverEvent> {
        Some(match effect {
            RecoverEffect::TryKey(source) => {
                self.trying = Some(source);
                self.run(RecoverStep::TryKey)
            }
            RecoverEffect::Answer(source, answer) => {
                self.answers.push((source, answer));
                // The join service is asked until someone's keys are accepted.
                let more = answer != Answer::Accepted;
                return more.then_some(RecoverEvent::Offered(KeySource::Rejoin));
            }
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
            RecoverEffect::TryKey(_) => RecoverStep::TryKey,
            RecoverEffect::MapDisk => RecoverStep::MapDisk,
            RecoverEffect::ReadMarker => RecoverStep::ReadMarker,
            RecoverEffect::SetMarker(_) => RecoverStep::SetMarker,
            RecoverEffect::Again(step) => *step,
            RecoverEffect::Answer(..) | RecoverEffect::Finish(_) => return None,
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
fn a_wrong_key_is_told_and_the_next_may_come() {
    let mut plan = RecoverPlan::new();
    plan.step(RecoverEvent::Offered(KeySource::Operator));
    assert!(plan.step(RecoverEvent::Offered(KeySource::Rejoin)).is_empty());
    assert_eq!(
        plan.step(RecoverEvent::KeyRefused),
        [
            RecoverEffect::Answer(KeySource::Operator, Answer::WrongKey),
            RecoverEffect::TryKey(KeySource::Rejoin),
        ]
    );
    assert_eq!(
        plan.step(RecoverEvent::KeyFits),
        [RecoverEffect::Answer(KeySource::Rejoin, Answer::Accepted), RecoverEffect::MapDisk,]
    );
    assert_eq!(
        plan.step(RecoverEvent::Offered(KeySource::Operator)),
        [RecoverEffect::Answer(KeySource::Operator, Answer::TooLate)]
    );
}

#[test]
fn a_disk_of_another_cluster_than_the_marker_goes_nowhere() {
    let mut plan = RecoverPlan::new();
    plan.step(RecoverEvent::Offered(KeySource::Rejoin));
    plan.step(RecoverEvent::KeyFits);
    plan.step(RecoverEvent::Mapped(cluster()));
    let other = ClusterId::new([8; 32]).marker();
    assert_eq!(
        plan.step(RecoverEvent::Marker(MarkerState::of(other))),
        [RecoverEffect::Finish(RecoverOutcome::OtherCluster)]
    );
}
