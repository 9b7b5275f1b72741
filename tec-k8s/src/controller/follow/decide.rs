//! The decision about one tag: state in, approvals and revocations out.

use std::collections::BTreeMap;

use tec_core::time::Timestamp;

/// What has become of a version of the tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Measuring,
    /// It cannot be measured or is not signed, with the reason.
    Refused(String),
    Approved,
    /// An admin paused it.
    Paused,
    /// Revoked, expired or deleted.
    Ended,
}

/// An image that was approved for the tag, or is about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) number: u64,
    /// Name of the ApprovedImage.
    pub(super) name: String,
    pub(super) digest: String,
    /// When it was built, if it states this.
    pub(super) built_at: Option<Timestamp>,
    pub(super) standing: Standing,
}

/// What permits to approve an image automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Signed,
    DangerouslyUnsigned,
    /// Neither is configured.
    Missing,
}

/// The machines that boot the images of a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machines {
    /// By name of the image that they last booted; machines as displayed, sorted.
    pub(super) by_image: BTreeMap<String, Vec<String>>,
    /// Those that may have a disk, and of which no boot is known.
    pub(super) unknown: Vec<String>,
}

/// A tag.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) policy: Policy,
    /// Digest that the tag points to, if a look succeeded.
    pub(super) current: Option<&'a str>,
    /// When that image was built, if it states this.
    pub(super) built_at: Option<Timestamp>,
    /// By number, the latest last.
    pub(super) versions: &'a [Version],
    /// The live approval of the same digest by an admin.
    pub(super) by_admin: Option<&'a str>,
    pub(super) machines: &'a Machines,
    pub(super) keep: usize,
}

/// What is reported about the tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No look has succeeded yet.
    NotSeen,
    /// Nothing is approved automatically without a signature policy.
    NoPolicy,
    /// The image is new, and is to be approved.
    New,
    Measuring(String),
    Refused {
        name: String,
        why: String,
    },
    Approved(String),
    /// An admin paused the approval.
    Paused(String),
    /// An admin approved the image under this name.
    ByAdmin(String),
    /// The tag went back to the first of these two, which the second one replaced.
    RolledBack {
        name: String,
        newest: String,
    },
    /// The image is new, but was built before this approved one.
    Older {
        newest: String,
    },
    /// The newest image was revoked or deleted, or has expired.
    Withdrawn(String),
}

/// An older image that stays approved because of these machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) machines: Vec<String>,
}

/// What to do about a tag. All of it may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) state: State,
    /// Names of images to revoke.
    pub(super) revoke: Vec<String>,
    pub(super) held: Vec<Held>,
}

/// Decides about one tag.
///
/// # Security
/// `New`, the only state that leads to an approval, needs a policy and a digest that was never approved for
/// the tag, of an image that was not built before an approved one: neither a tag that goes back nor one whose
/// image an admin revoked or deleted approves anything.
/// What is revoked is older than an approved image, and was created for the tag.
pub(super) fn decide(case: &Case<'_>) -> Decision {
    let state = state(case);
    // While the tag is rolled back, machines may be on their way to the older image.
    let may_revoke = match state {
        State::NotSeen | State::NoPolicy | State::Older { .. } | State::RolledBack { .. } => false,
        State::ByAdmin(_) => !is_rolled_back(case),
        _ => true,
    };
    let (revoke, held) = if may_revoke { outdated(case) } else { (Vec::new(), Vec::new()) };
    Decision { state, revoke, held }
}

fn state(case: &Case<'_>) -> State {
    let Some(current) = case.current else {
        return State::NotSeen;
    };
    if case.policy == Policy::Missing {
        return State::NoPolicy;
    }
    let found = case.versions.iter().rfind(|version| version.digest == current);
    let (Some(version), Some(newest)) = (found, case.versions.last()) else {
        return unknown(case);
    };
    let name = version.name.clone();
    let is_newest = version.number == newest.number;
    match (&version.standing, case.by_admin) {
        (Standing::Approved, _) if is_newest => State::Approved(name),
        (_, Some(admins)) => State::ByAdmin(admins.to_owned()),
        _ if !is_newest => State::RolledBack { name, newest: newest.name.clone() },
        (Standing::Measuring, None) => State::Measuring(name),
        (Standing::Refused(why), None) => State::Refused { name, why: why.clone() },
        (Standing::Paused, None) => State::Paused(name),
        _ => State::Withdrawn(name),
    }
}

/// The state of a digest that was never approved for the tag.
fn unknown(case: &Case<'_>) -> State {
    // The time of an image that is not approved yet is a claim of whoever pushed it.
    let approved = case.versions.iter().filter(|one| one.standing == Standing::Approved);
    let latest = approved.filter(|one| one.built_at.is_some()).max_by_key(|one| one.built_at);
    let is_older = |latest: &&Version| case.built_at.is_some() && latest.built_at > case.built_at;
    match (latest.filter(is_older), case.by_admin) {
        (None, _) => State::New,
        (Some(_), Some(admins)) => State::ByAdmin(admins.to_owned()),
        (Some(latest), None) => State::Older { newest: latest.name.clone() },
    }
}

/// Whether the tag points to an image that is not the newest one.
fn is_rolled_back(case: &Case<'_>) -> bool {
    let newest = case.versions.last().map(|newest| newest.digest.as_str());
    newest != case.current
}

/// Images to revoke, and those that machines need: older than the newest approved one and those to keep.
fn outdated(case: &Case<'_>) -> (Vec<String>, Vec<Held>) {
    let (mut revoke, mut held) = (Vec::new(), Vec::new());
    let is_approved = |version: &&Version| version.standing == Standing::Approved;
    let Some(newest) = case.versions.iter().rfind(is_approved) else {
        return (revoke, held);
    };
    let older = || case.versions.iter().rev().filter(|version| version.number < newest.number);
    for version in older().filter(is_approved).skip(case.keep) {
        let machines = needing(case.machines, &version.name);
        if machines.is_empty() {
            revoke.push(version.name.clone());
        } else {
            held.push(Held { name: version.name.clone(), machines });
        }
    }
    // They never were approved, so no machine needs them.
    let is_late =
        |version: &&Version| matches!(version.standing, Standing::Measuring | Standing::Refused(_));
    revoke.extend(older().filter(is_late).map(|version| version.name.clone()));
    (revoke, held)
}

/// The machines that last booted an image, or may have.
fn needing(machines: &Machines, name: &str) -> Vec<String> {
    let booted = machines.by_image.get(name).into_iter().flatten();
    booted.chain(&machines.unknown).cloned().collect()
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::Standing::{Approved, Ended, Measuring, Paused};
    use super::*;

    /// Versions 1, 2, … with these standings; the digest of version n is `n`.
    fn versions(standings: &[Standing]) -> Vec<Version> {
        let version = |(number, standing): (u64, &Standing)| Version {
            number,
            name: format!("os-{number}"),
            digest: number.to_string(),
            built_at: None,
            standing: standing.clone(),
        };
        (1..).zip(standings).map(version).collect()
    }

    #[derive(Debug)]
    struct Table {
        versions: Vec<Version>,
        machines: Machines,
    }

    impl Table {
        fn of(standings: &[Standing]) -> Self {
            Self { versions: versions(standings), machines: Machines::default() }
        }

        fn booted(mut self, image: &str, machine: &str) -> Self {
            let by_image = &mut self.machines.by_image;
            by_image.entry(image.to_owned()).or_default().push(machine.to_owned());
            self
        }

        fn case<'a>(&'a self, current: Option<&'a str>, keep: usize) -> Case<'a> {
            let (versions, machines) = (&self.versions, &self.machines);
            let (policy, by_admin, built_at) = (Policy::Signed, None, None);
            Case { policy, current, built_at, versions, by_admin, machines, keep }
        }

        fn decide(&self, current: &str, keep: usize) -> Decision {
            decide(&self.case(Some(current), keep))
        }
    }

    fn refused() -> Standing {
        Standing::Refused("TEC-I426".to_owned())
    }

    #[test]
    fn a_digest_that_was_never_seen_is_approved_if_a_policy_permits_it() {
        let table = Table::of(&[Approved]);
        for policy in [Policy::Signed, Policy::DangerouslyUnsigned] {
            let case = Case { policy, ..table.case(Some("2"), 1) };
            assert_eq!(decide(&case).state, State::New);
        }
        let case = Case { policy: Policy::Missing, ..table.case(Some("2"), 1) };
        assert_eq!(decide(&case).state, State::NoPolicy);
        assert_eq!(decide(&table.case(None, 1)).state, State::NotSeen);
        assert_eq!(Table::of(&[]).decide("1", 1).state, State::New);
    }

    #[test]
    fn an_image_that_was_built_before_an_approved_one_is_not_approved() {
        let mut table = Table::of(&[Approved, Approved, Measuring]);
        for (version, day) in table.versions.iter_mut().zip([1, 5, 9]) {
            version.built_at = Some(sample::time(day));
        }
        let built =
            |day: i64| Case { built_at: Some(sample::time(day)), ..table.case(Some("4"), 0) };
        let decision = decide(&built(4));
        assert_eq!(decision.state, State::Older { newest: "os-2".to_owned() });
        assert_eq!(decision.revoke, [""; 0]);
        assert_eq!(decide(&built(5)).state, State::New, "a rebuild");
        assert_eq!(decide(&built(6)).state, State::New, "the third one only claims its time");
        assert_eq!(decide(&table.case(Some("4"), 0)).state, State::New, "it states none");
        let case = Case { by_admin: Some("mine"), ..built(4) };
        assert_eq!(decide(&case).state, State::ByAdmin("mine".to_owned()));
    }

    #[test]
    fn what_the_tag_points_to_is_told_as_it_stands() {
        let name = || "os-2".to_owned();
        for (standing, state) in [
            (Measuring, State::Measuring(name())),
            (refused(), State::Refused { name: name(), why: "TEC-I426".to_owned() }),
            (Approved, State::Approved(name())),
            (Paused, State::Paused(name())),
            (Ended, State::Withdrawn(name())),
        ] {
            let table = Table::of(&[Approved, standing]);
            assert_eq!(table.decide("2", 1).state, state);
        }
    }

    #[test]
    fn a_tag_that_goes_back_approves_and_revokes_nothing() {
        for older in [Approved, Ended, Measuring, refused(), Paused] {
            let table = Table::of(&[Approved, older, Approved]);
            let decision = table.decide("2", 0);
            let (name, newest) = ("os-2".to_owned(), "os-3".to_owned());
            assert_eq!(decision.state, State::RolledBack { name, newest });
            assert_eq!(decision.revoke, [""; 0]);
        }
    }

    #[test]
    fn what_an_admin_revoked_or_deleted_is_not_approved_again_unless_by_an_admin() {
        let table = Table::of(&[Approved, Ended]);
        assert_eq!(table.decide("2", 1).state, State::Withdrawn("os-2".to_owned()));
        let case = Case { by_admin: Some("mine"), ..table.case(Some("2"), 1) };
        assert_eq!(decide(&case).state, State::ByAdmin("mine".to_owned()));
        let rolled_back = Table::of(&[Ended, Approved, Approved]);
        let case = Case { by_admin: Some("mine"), ..rolled_back.case(Some("1"), 0) };
        let decision = decide(&case);
        assert_eq!(decision.state, State::ByAdmin("mine".to_owned()));
        assert_eq!(decision.revoke, [""; 0], "the fleet may go back");
    }

    #[test]
    fn older_images_are_revoked_beyond_those_to_keep() {
        let table = Table::of(&[Approved, Approved, Approved, Approved]);
        for (keep, revoked) in
            [(0, &["os-3", "os-2", "os-1"][..]), (1, &["os-2", "os-1"]), (3, &[]), (9, &[])]
        {
            assert_eq!(table.decide("4", keep).revoke, revoked, "{keep}");
        }
        let gone = Table::of(&[Ended, Ended, Approved, Approved]);
        assert_eq!(gone.decide("4", 1).revoke, [""; 0]);
    }

    #[test]
    fn an_image_that_a_machine_booted_last_stays() {
        let table = Table::of(&[Approved, Approved, Approved]).booted("os-1", "worker-1");
        let decision = table.decide("3", 0);
        assert_eq!(decision.revoke, ["os-2"]);
        let held = Held { name: "os-1".to_owned(), machines: vec!["worker-1".to_owned()] };
        assert_eq!(decision.held, [held]);
    }

    #[test]
    fn a_machine_of_which_no_boot_is_known_may_need_any_image() {
        let mut table = Table::of(&[Approved, Approved]);
        table.machines.unknown.push("worker-1".to_owned());
        let decision = table.decide("2", 0);
        assert_eq!(decision.revoke, [""; 0]);
        assert_eq!(decision.held[0].machines, ["worker-1"]);
    }

    #[test]
    fn nothing_is_revoked_before_a_newer_image_is_approved() {
        for newest in [Measuring, refused(), Paused, Ended] {
            let table = Table::of(&[Approved, Approved, newest]);
            assert_eq!(table.decide("3", 1).revoke, [""; 0]);
            assert_eq!(table.decide("3", 0).revoke, ["os-1"], "os-2 is the newest approved one");
        }
        // The new image is not even known.
        assert_eq!(Table::of(&[Approved]).decide("2", 0).revoke, [""; 0]);
    }

    #[test]
    fn an_image_that_was_passed_over_is_not_measured_any_longer() {
        for late in [Measuring, refused()] {
            let table = Table::of(&[Approved, late, Approved]);
            assert_eq!(table.decide("3", 5).revoke, ["os-2"]);
        }
        let table = Table::of(&[Approved, Paused, Approved]);
        assert_eq!(table.decide("3", 5).revoke, [""; 0], "an admin paused it");
    }

    #[test]
    fn without_a_policy_or_a_look_nothing_is_revoked() {
        let table = Table::of(&[Approved, Approved, Approved]);
        assert_eq!(decide(&table.case(None, 0)).revoke, [""; 0]);
        let case = Case { policy: Policy::Missing, ..table.case(Some("3"), 0) };
        assert_eq!(decide(&case).revoke, [""; 0]);
    }

    /// All tags of up to four versions, wherever they point: the newest approved image stays, and so does
    /// what machines need.
    #[test]
    fn whatever_happens_the_newest_approved_image_and_what_machines_need_stay() {
        let standings = [Measuring, refused(), Approved, Paused, Ended];
        for number in 0..5_usize.pow(4) {
            let digits = [0, 1, 2, 3].map(|place| number / 5_usize.pow(place) % 5);
            let table = Table::of(&digits.map(|digit| standings[digit].clone()));
            let table = table.booted("os-2", "worker-1");
            for (current, keep) in [("1", 0), ("4", 0), ("4", 1), ("5", 0)] {
                let decision = table.decide(current, keep);
                let newest = table.versions.iter().rfind(|one| one.standing == Approved);
                let is_revoked = |name: &String| decision.revoke.contains(name);
                assert!(!newest.is_some_and(|newest| is_revoked(&newest.name)), "{table:?}");
                let needed = table.versions.iter().find(|one| one.name == "os-2").unwrap();
                assert!(needed.standing != Approved || !is_revoked(&needed.name), "{digits:?}");
                assert_eq!(decision.state == State::New, current == "5", "{digits:?}");
            }
        }
    }
}
