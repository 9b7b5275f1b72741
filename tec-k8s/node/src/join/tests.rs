use super::*;

fn cluster() -> ClusterId {
    ClusterId::new([7; 32])
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
