//! The decision about one machine: state in, actions out.

use tec_core::time::Timestamp;

use super::super::summary::Seen;
use crate::api::{ActedOn, OnUntrustedSpec, UntrustedAction};

/// What the last attempts of a machine say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Trusted,
    /// With the reason, for people; the same as long as the reason is.
    Untrusted(String),
    /// Nothing that was signed says anything about what runs.
    Unknown,
}

/// The Node of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Machine and Node name each other.
    Proven { name: String, uid: String },
    /// They do not; why, and what to do.
    Unproven(String),
    /// The operator may not read or change Nodes.
    NoRights,
}

/// A machine.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) verdict: Verdict,
    pub(super) acted: Option<&'a ActedOn>,
    /// By an admin or by the operator.
    pub(super) is_quarantined: bool,
    pub(super) link: Link,
}

/// What to do about a machine. All of it may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Neither do nor report anything.
    Leave,
    /// It is trusted, and nothing was done.
    Clear,
    Undo,
    Act(Deeds),
    /// A dry run.
    WouldAct(Deeds),
    OverLimit,
    /// No action is possible.
    CannotAct(Link),
}

/// Actions, and the Node that they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deeds {
    pub(super) actions: Vec<UntrustedAction>,
    pub(super) link: Link,
}

/// How many further machines may be acted on.
///
/// # Security
/// A machine without a proven Node takes nothing from those with one: whoever holds a registration token can
/// add as many as the cluster takes, and they stay quarantined.
#[derive(Debug)]
pub(super) struct Room {
    with_node: usize,
    without_node: usize,
}

impl Room {
    /// What the limit leaves beside what is done already.
    pub(super) fn new(limit: usize, acted_on: &[ActedOn]) -> Self {
        let with_node = acted_on.iter().filter(|acted| acted.node.is_some()).count();
        Self {
            with_node: limit.saturating_sub(with_node),
            without_node: limit.saturating_sub(acted_on.len() - with_node),
        }
    }

    /// For a machine with this Node.
    pub(super) fn left(&self, link: &Link) -> usize {
        match link {
            Link::Proven { .. } => self.with_node,
            Link::Unproven(_) | Link::NoRights => self.without_node,
        }
    }

    /// One more is acted on.
    pub(super) fn take(&mut self, link: &Link) {
        let room = match link {
            Link::Proven { .. } => &mut self.with_node,
            Link::Unproven(_) | Link::NoRights => &mut self.without_node,
        };
        *room = room.saturating_sub(1);
    }
}

/// Decides about one machine. `room` is what the [`Room`] leaves it.
///
/// # Security
/// Never `Act` without room, unless the machine is acted on already; never an action on a Node that is not
/// proven to be the machine's.
pub(super) fn decide(policy: Option<&OnUntrustedSpec>, case: &Case<'_>, room: usize) -> Decision {
    let Some(policy) = policy else {
        return case.acted.map_or(Decision::Clear, |acted| undo(acted, case));
    };
    match (&case.verdict, case.acted) {
        (_, Some(_)) if policy.dry_run => Decision::Leave,
        (Verdict::Trusted, Some(acted)) => undo(acted, case),
        (Verdict::Trusted, None) => Decision::Clear,
        (Verdict::Unknown, None) => Decision::Leave,
        (_, Some(acted)) => {
            let actions = possible(policy, case, Some(acted));
            // The Node is gone, and so is what was done to it.
            if actions.is_empty() { undo(acted, case) } else { act(actions, case) }
        }
        (Verdict::Untrusted(_), None) => match possible(policy, case, None) {
            actions if actions.is_empty() && case.is_quarantined && policy.only_quarantines() => {
                Decision::Leave
            }
            actions if actions.is_empty() => Decision::CannotAct(case.link.clone()),
            _ if room == 0 => Decision::OverLimit,
            actions if policy.dry_run => {
                Decision::WouldAct(Deeds { actions, link: case.link.clone() })
            }
            actions => act(actions, case),
        },
    }
}

/// Without rights, what was done to a Node stays, and is not forgotten.
fn undo(acted: &ActedOn, case: &Case<'_>) -> Decision {
    match case.link {
        Link::NoRights if acted.node.is_some() => Decision::CannotAct(Link::NoRights),
        _ => Decision::Undo,
    }
}

fn act(actions: Vec<UntrustedAction>, case: &Case<'_>) -> Decision {
    Decision::Act(Deeds { actions, link: case.link.clone() })
}

/// The actions of the policy that can be taken. A quarantine that was imposed stays recorded, since only an
/// admin lifts it; one that an admin imposed is not ours.
fn possible(
    policy: &OnUntrustedSpec,
    case: &Case<'_>,
    acted: Option<&ActedOn>,
) -> Vec<UntrustedAction> {
    let was = acted.is_some_and(|acted| acted.actions.contains(&UntrustedAction::Quarantine));
    let has_node = matches!(case.link, Link::Proven { .. });
    let mut actions = policy.actions();
    actions.retain(|action| match action {
        UntrustedAction::Quarantine => was || !case.is_quarantined,
        action => has_node || !action.needs_node(),
    });
    if was && !actions.contains(&UntrustedAction::Quarantine) {
        actions.push(UntrustedAction::Quarantine);
    }
    actions
}

impl OnUntrustedSpec {
    fn only_quarantines(&self) -> bool {
        self.actions.iter().all(|action| *action == UntrustedAction::Quarantine)
    }
}

/// The verdict on a machine in service, by the newest attempt that says something. A good one from before
/// `stale` is too old.
pub(super) fn verdict(last: Option<&Seen>, stale: Option<Timestamp>) -> Verdict {
    match last {
        None => Verdict::Unknown,
        Some(Seen { code: Some(code), .. }) => {
            Verdict::Untrusted(format!("{code} {}", code.title()))
        }
        Some(Seen { at, .. }) if stale.is_some_and(|stale| *at < stale) => {
            Verdict::Untrusted(format!("it has not attested since {at}"))
        }
        Some(_) => Verdict::Trusted,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use tec_core::attest::Attempt;
    use tec_core::code::Code;
    use tec_core::explain::Gate;
    use tec_core::testing::sample;

    use super::super::super::summary::seen;
    use super::UntrustedAction::{Cordon, Quarantine, Taint};
    use super::*;

    fn policy(actions: &[UntrustedAction]) -> OnUntrustedSpec {
        OnUntrustedSpec { actions: actions.to_vec(), ..OnUntrustedSpec::default() }
    }

    fn proven() -> Link {
        Link::Proven { name: "worker-1".to_owned(), uid: "uid".to_owned() }
    }

    fn bad() -> Verdict {
        Verdict::Untrusted("TEC-A412".to_owned())
    }

    fn case(verdict: Verdict, link: Link) -> Case<'static> {
        Case { verdict, acted: None, is_quarantined: false, link }
    }

    fn acted(actions: &[UntrustedAction]) -> ActedOn {
        let mut acted = ActedOn::new(sample::time(1));
        acted.actions = actions.to_vec();
        acted
    }

    fn actions_of(decision: &Decision) -> Option<&[UntrustedAction]> {
        match decision {
            Decision::Act(deeds) => Some(&deeds.actions),
            _ => None,
        }
    }

    #[test]
    fn without_a_policy_nothing_is_done_and_what_was_done_is_undone() {
        let mut case = case(bad(), proven());
        assert_eq!(decide(None, &case, 9), Decision::Clear);
        let acted = acted(&[Taint]);
        case.acted = Some(&acted);
        assert_eq!(decide(None, &case, 9), Decision::Undo);
    }

    #[test]
    fn an_untrusted_machine_is_acted_on_while_there_is_room() {
        let policy = policy(&[Cordon, Taint]);
        let case = case(bad(), proven());
        assert_eq!(actions_of(&decide(Some(&policy), &case, 1)), Some(&[Taint, Cordon][..]));
        assert_eq!(decide(Some(&policy), &case, 0), Decision::OverLimit);
    }

    #[test]
    fn a_machine_that_is_acted_on_needs_no_more_room_and_follows_the_policy() {
        let acted = acted(&[Taint]);
        for verdict in [bad(), Verdict::Unknown] {
            let mut case = case(verdict, proven());
            case.acted = Some(&acted);
            let decision = decide(Some(&policy(&[Cordon])), &case, 0);
            assert_eq!(actions_of(&decision), Some(&[Cordon][..]));
        }
    }

    #[test]
    fn a_machine_that_attests_well_is_left_alone_again() {
        let acted = acted(&[Taint]);
        let mut case = case(Verdict::Trusted, proven());
        assert_eq!(decide(Some(&policy(&[Taint])), &case, 1), Decision::Clear);
        case.acted = Some(&acted);
        assert_eq!(decide(Some(&policy(&[Taint])), &case, 1), Decision::Undo);
    }

    #[test]
    fn what_says_nothing_neither_acts_nor_undoes() {
        let case = case(Verdict::Unknown, proven());
        assert_eq!(decide(Some(&policy(&[Taint])), &case, 1), Decision::Leave);
    }

    #[test]
    fn no_node_is_touched_that_is_not_proven() {
        for link in [Link::Unproven("no label".to_owned()), Link::NoRights] {
            let case = case(bad(), link.clone());
            let decision = decide(Some(&policy(&[Taint, Cordon])), &case, 1);
            assert_eq!(decision, Decision::CannotAct(link));
            let decision = decide(Some(&policy(&[Taint, Quarantine])), &case, 1);
            assert_eq!(actions_of(&decision), Some(&[Quarantine][..]), "it needs no Node");
        }
    }

    #[test]
    fn a_node_that_is_gone_leaves_nothing_to_be_recorded() {
        let acted = acted(&[Taint]);
        let mut case = case(bad(), Link::Unproven("gone".to_owned()));
        case.acted = Some(&acted);
        assert_eq!(decide(Some(&policy(&[Taint])), &case, 1), Decision::Undo);
    }

    #[test]
    fn without_rights_what_was_done_to_a_node_is_not_forgotten() {
        let mut acted = acted(&[Taint]);
        acted.node = Some("worker-1".to_owned());
        let cannot = Decision::CannotAct(Link::NoRights);
        for verdict in [bad(), Verdict::Trusted, Verdict::Unknown] {
            let mut case = case(verdict, Link::NoRights);
            case.acted = Some(&acted);
            assert_eq!(decide(Some(&policy(&[Taint])), &case, 1), cannot);
            assert_eq!(decide(None, &case, 1), cannot);
        }
    }

    #[test]
    fn a_dry_run_changes_nothing_in_either_direction() {
        let mut policy = policy(&[Taint]);
        policy.dry_run = true;
        let case_of = |verdict| case(verdict, proven());
        let decision = decide(Some(&policy), &case_of(bad()), 1);
        assert!(matches!(decision, Decision::WouldAct(_)), "{decision:?}");
        assert_eq!(decide(Some(&policy), &case_of(bad()), 0), Decision::OverLimit);
        let acted = acted(&[Taint]);
        for verdict in [bad(), Verdict::Trusted, Verdict::Unknown] {
            let mut case = case_of(verdict);
            case.acted = Some(&acted);
            assert_eq!(decide(Some(&policy), &case, 1), Decision::Leave);
        }
    }

    #[test]
    fn the_quarantine_of_an_admin_is_not_ours_and_ours_stays_recorded() {
        let mut quarantined = case(bad(), proven());
        quarantined.is_quarantined = true;
        assert_eq!(decide(Some(&policy(&[Quarantine])), &quarantined, 1), Decision::Leave);
        let decision = decide(Some(&policy(&[Taint, Quarantine])), &quarantined, 1);
        assert_eq!(actions_of(&decision), Some(&[Taint][..]));
        let acted = acted(&[Taint, Quarantine]);
        quarantined.acted = Some(&acted);
        let decision = decide(Some(&policy(&[Taint])), &quarantined, 1);
        assert_eq!(actions_of(&decision), Some(&[Taint, Quarantine][..]));
    }

    /// Whatever the machines are, no more than the limit are acted on.
    #[test]
    fn no_more_than_the_limit_are_acted_on_whatever_the_policy_says() {
        for most in 1..5_usize {
            let mut policy = policy(&[Taint, Quarantine]);
            policy.max_nodes = Some(IntOrString::Int(i32::try_from(most).unwrap()));
            let mut room = Room::new(policy.limit(10), &[]);
            assert_eq!(acted_on(&policy, &mut room, &proven()), most);
            let stranger = Link::Unproven("no node name".to_owned());
            assert_eq!(acted_on(&policy, &mut room, &stranger), most, "quarantined");
        }
    }

    /// Whoever holds a registration token can add as many machines as the cluster takes.
    #[test]
    fn strangers_without_a_node_keep_no_node_from_being_acted_on() {
        let policy = policy(&[Taint, Quarantine]);
        let strangers = [acted(&[Quarantine]), acted(&[Quarantine]), acted(&[Quarantine])];
        let mut room = Room::new(2, &strangers);
        let stranger = Link::Unproven("no node name".to_owned());
        assert_eq!(acted_on(&policy, &mut room, &stranger), 0);
        assert_eq!(acted_on(&policy, &mut room, &proven()), 2);

        let mut nodes = [acted(&[Taint]), acted(&[Taint])];
        nodes[0].node = Some("worker-1".to_owned());
        nodes[1].node = Some("worker-2".to_owned());
        assert_eq!(acted_on(&policy, &mut Room::new(2, &nodes), &proven()), 0);
    }

    /// How many of ten more machines with this Node are acted on.
    fn acted_on(policy: &OnUntrustedSpec, room: &mut Room, link: &Link) -> usize {
        let mut done = 0;
        for _ in 0..10 {
            let case = case(bad(), link.clone());
            if let Decision::Act(_) = decide(Some(policy), &case, room.left(link)) {
                room.take(link);
                done += 1;
            }
        }
        done
    }

    fn attempt(change: impl FnOnce(&mut Attempt)) -> Attempt {
        let mut attempt = sample::attempt_in_boot(5, 1);
        attempt.machine = Some(sample::machine_id(1));
        attempt.ladder.pass(Gate::Pcrs, "explained");
        change(&mut attempt);
        attempt
    }

    fn seen_of(change: impl FnOnce(&mut Attempt)) -> Option<Seen> {
        seen(&attempt(change), &sample::machine_id(1))
    }

    #[test]
    fn a_good_attempt_counts_until_it_is_too_old() {
        let good = seen_of(|_| {});
        assert_eq!(verdict(good.as_ref(), None), Verdict::Trusted);
        assert_eq!(verdict(good.as_ref(), Some(sample::time(5))), Verdict::Trusted);
        let stale = verdict(good.as_ref(), Some(sample::time(6)));
        assert!(matches!(stale, Verdict::Untrusted(_)), "{stale:?}");
        assert_eq!(verdict(None, Some(sample::time(6))), Verdict::Unknown);
    }

    #[test]
    fn what_was_measured_makes_a_machine_untrusted_and_its_standing_does_not() {
        let of = |code| {
            let seen = seen_of(|attempt| attempt.ladder.code = Some(code));
            verdict(seen.as_ref(), None)
        };
        for code in [Code::PcrMismatch, Code::EventLogMismatch, Code::TpmSetBack] {
            assert!(matches!(of(code), Verdict::Untrusted(_)), "{code}");
        }
        for code in [
            Code::MachineQuarantined,
            Code::MachineUnknown,
            Code::AkNotBound,
            Code::ReleaseDenied,
            Code::KeyMissing,
            Code::QuoteInvalid,
        ] {
            assert_eq!(of(code), Verdict::Unknown, "{code}");
        }
    }

    #[test]
    fn nobody_speaks_for_a_machine_but_its_own_signature() {
        assert!(seen_of(|_| {}).is_some());
        assert_eq!(seen_of(|attempt| attempt.unsigned = true), None);
        assert_eq!(seen_of(|attempt| attempt.machine = None), None);
        assert_eq!(seen_of(|attempt| attempt.machine = Some(sample::machine_id(2))), None);
    }

    #[test]
    fn an_attempt_that_did_not_come_to_the_registers_is_not_a_good_one() {
        assert_eq!(seen_of(|attempt| attempt.ladder = tec_core::explain::Ladder::new()), None);
    }
}
