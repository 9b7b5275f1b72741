//! Rollover of the CA that nodes pin, decided step by step.
//!
//! ```text
//!   current ─ due, or an admin asks ─► next created ─► both published ─ every machine trusts next ─►
//!   next signs, both published ─► previous withdrawn
//! ```
//! A node learns the next CA from a server whose certificate is signed by the current CA, rewrites
//! its pin and reports which CAs the pin trusts. The next CA signs nothing until every machine has
//! reported it. *What it is not*: a clock, a store or an issuer. The caller carries out a [`Step`],
//! durably, and asks again.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::digest::Sha256Digest;
use crate::time::Timestamp;

/// PEM boundary of a certificate (RFC 7468, section 5.1).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// A CA with less remaining lifetime than this is replaced, in seconds: 180 days.
pub const LEAD: i64 = 180 * 86_400;
/// Minimum time for which both CAs are published before and after the next one begins to sign, in
/// seconds. By then, servers have reread their mounted files, and a first boot that began with the old bundle
/// has been registered as a machine.
pub const OVERLAP: i64 = 3600;
/// Maximum number of certificates in a bundle that a node accepts.
pub const MAX_BUNDLE: usize = 8;

/// The CAs of a trust anchor, identified by the SHA-256 digests of their certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The CA that signs now.
    pub current: Sha256Digest,
    /// When it expires, if known.
    pub ends: Option<Timestamp>,
    /// The CA that will sign.
    pub next: Option<Sha256Digest>,
    /// The CA that signed before.
    pub previous: Option<Sha256Digest>,
    /// Time since which every server has handed out exactly these CAs.
    pub published: Option<Timestamp>,
}

/// Requests of an admin. Each names a CA, so that it cannot be carried out twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Replace this CA.
    pub replace: Option<Sha256Digest>,
    /// Let this CA sign although not all machines trust it. Machines that do not trust it are locked out.
    pub dangerous_without_reports: Option<Sha256Digest>,
}

/// A machine that may still attest, and the CAs that it reported as trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Its name.
    pub machine: String,
    /// Empty if the machine never reported any.
    pub trusts: BTreeSet<Sha256Digest>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: one CA signs, and no other is published.
    Stay,
    /// Create the next CA.
    Create,
    /// Publish what exists, and check again at this time, or as soon as it is published if there is no time.
    Publish(Option<Timestamp>),
    /// The next CA waits for these machines, sorted by name.
    Hold(Vec<String>),
    /// Let the next CA sign; the current one becomes the previous.
    Promote,
    /// Withdraw the previous CA.
    Withdraw,
}

/// Returns the next step. Equal arguments give equal answers.
///
/// # Security
/// Never [`Step::Promote`] while a machine has not reported the next CA, unless
/// `asked.dangerous_without_reports` names that very CA. The expiry of the current CA changes
/// nothing: promoting early would lock out machines that can still open their disks.
pub fn step(
    standing: &Standing,
    asked: Asked,
    machines: impl IntoIterator<Item = Pinned>,
    now: Timestamp,
) -> Step {
    if standing.next.is_none() && standing.previous.is_none() {
        let is_due = standing.ends.is_some_and(|ends| ends.plus_seconds(-LEAD) <= now);
        let is_asked = asked.replace == Some(standing.current);
        return if is_due || is_asked { Step::Create } else { Step::Stay };
    }
    let over = standing.published.map(|since| since.plus_seconds(OVERLAP));
    if over.is_none_or(|over| now < over) {
        return Step::Publish(over);
    }
    let Some(next) = standing.next else {
        return Step::Withdraw;
    };
    let missing = machines.into_iter().filter(|machine| !machine.trusts.contains(&next));
    let mut missing: Vec<_> = missing.map(|machine| machine.machine).collect();
    if missing.is_empty() || asked.dangerous_without_reports == Some(next) {
        return Step::Promote;
    }
    missing.sort_unstable();
    Step::Hold(missing)
}

/// SHA-256 digests of the certificates in a PEM bundle; `None` if it is anything but one to
/// [`MAX_BUNDLE`] certificates. The content of the certificates is not checked.
pub fn fingerprints(bundle: &str) -> Option<BTreeSet<Sha256Digest>> {
    let mut found = BTreeSet::new();
    let mut rest = bundle.trim();
    let mut count = 0;
    while !rest.is_empty() {
        let (body, after) = rest.strip_prefix(BEGIN)?.split_once(END)?;
        let body: String = body.split_ascii_whitespace().collect();
        let der = STANDARD.decode(body).ok().filter(|der| !der.is_empty())?;
        found.insert(Sha256Digest::of(der));
        count += 1;
        rest = after.trim_start();
    }
    (1..=MAX_BUNDLE).contains(&count).then_some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_795_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(NOW + seconds)
    }

    fn ca(number: u8) -> Sha256Digest {
        Sha256Digest::of([number])
    }

    fn alone() -> Standing {
        let ends = Some(at(10 * LEAD));
        Standing { current: ca(1), ends, next: None, previous: None, published: None }
    }

    fn rolling() -> Standing {
        Standing { next: Some(ca(2)), published: Some(at(0)), ..alone() }
    }

    fn machine(name: &str, trusts: &[u8]) -> Pinned {
        let trusts = trusts.iter().map(|number| ca(*number)).collect();
        Pinned { machine: name.to_owned(), trusts }
    }

    fn next(standing: &Standing, machines: &[Pinned], seconds: i64) -> Step {
        step(standing, Asked::default(), machines.to_vec(), at(seconds))
    }

    #[test]
    fn a_ca_is_replaced_half_a_year_before_it_expires_and_when_an_admin_names_it() {
        assert_eq!(next(&alone(), &[], 9 * LEAD - 1), Step::Stay);
        assert_eq!(next(&alone(), &[], 9 * LEAD), Step::Create);
        let asked = |replace| Asked { replace: Some(replace), ..Asked::default() };
        assert_eq!(step(&alone(), asked(ca(1)), [], at(0)), Step::Create);
        assert_eq!(step(&alone(), asked(ca(7)), [], at(0)), Step::Stay, "an older request");
        let unreadable = Standing { ends: None, ..alone() };
        assert_eq!(next(&unreadable, &[], 100 * LEAD), Step::Stay);
    }

    #[test]
    fn both_are_published_for_a_while_whatever_machines_say() {
        let machines = [machine("a", &[1, 2])];
        assert_eq!(next(&rolling(), &machines, OVERLAP - 1), Step::Publish(Some(at(OVERLAP))));
        assert_eq!(next(&rolling(), &machines, OVERLAP), Step::Promote);
        let unpublished = Standing { published: None, ..rolling() };
        assert_eq!(next(&unpublished, &machines, 100 * OVERLAP), Step::Publish(None));
    }

    #[test]
    fn a_machine_that_never_reported_holds_the_next_ca_back_even_after_the_end() {
        let machines = [machine("b", &[]), machine("a", &[1]), machine("c", &[1, 2])];
        let hold = Step::Hold(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(next(&rolling(), &machines, OVERLAP), hold);
        assert_eq!(next(&rolling(), &machines, 20 * LEAD), hold);
    }

    #[test]
    fn an_admin_may_lock_machines_out_for_this_very_ca_and_not_before_it_is_published() {
        let machines = [machine("a", &[])];
        let forced = |number, seconds| {
            let dangerous_without_reports = Some(ca(number));
            let asked = Asked { dangerous_without_reports, ..Asked::default() };
            step(&rolling(), asked, machines.to_vec(), at(seconds))
        };
        assert_eq!(forced(2, OVERLAP), Step::Promote);
        assert!(matches!(forced(1, OVERLAP), Step::Hold(_)), "of another replacement");
        assert!(matches!(forced(2, 0), Step::Publish(_)));
    }

    #[test]
    fn the_previous_ca_leaves_after_a_while_and_no_other_begins_before() {
        let ends = Some(at(0));
        let published = Some(at(0));
        let after = Standing { previous: Some(ca(0)), ends, published, ..alone() };
        assert_eq!(next(&after, &[], 1), Step::Publish(Some(at(OVERLAP))));
        assert_eq!(next(&after, &[], OVERLAP), Step::Withdraw);
    }

    #[test]
    fn a_bundle_is_certificates_and_nothing_else() {
        let one = format!("{BEGIN}\nAQ==\n{END}\n");
        let two = format!("{one}{BEGIN}\nAg==\n{END}\n");
        assert_eq!(fingerprints(&two), Some([ca(1), ca(2)].into()));
        assert_eq!(fingerprints(&one), Some([ca(1)].into()));
        let key = one.replace("CERTIFICATE", "PRIVATE KEY");
        for bad in ["", "garbage", &key, &format!("{one}x"), &one.repeat(MAX_BUNDLE + 1)] {
            assert_eq!(fingerprints(bad), None, "{bad}");
        }
    }

    /// Carries out a step as the operator does; only publication changes what a node trusts.
    fn carry_out(standing: &mut Standing, step: &Step, now: Timestamp, number: u8) {
        match step {
            Step::Create => standing.next = Some(ca(number)),
            Step::Promote => {
                standing.previous = Some(standing.current);
                standing.current = standing.next.take().unwrap();
                standing.ends = Some(now.plus_seconds(2 * LEAD));
            }
            Step::Withdraw => standing.previous = None,
            Step::Publish(None) => standing.published = Some(now),
            _ => return,
        }
        if !matches!(step, Step::Publish(_)) {
            standing.published = None;
        }
    }

    proptest! {
        /// Nodes refresh whenever they like, but only over a connection that they trust, and their
        /// reports may arrive late. Whatever happens, each node trusts the CA that signs.
        #[test]
        fn no_machine_is_ever_locked_out(
            actions in proptest::collection::vec((0u8..8, 0i64..2 * OVERLAP), 1..200),
        ) {
            let (mut standing, mut seconds) = (alone(), 0);
            let mut trusts = vec![BTreeSet::from([ca(1)]); 3];
            let mut reported = trusts.clone();
            let mut number = 1;
            for (action, passed) in actions {
                seconds += passed;
                let now = at(seconds);
                match usize::from(action) {
                    node @ 0..3 => {
                        prop_assert!(trusts[node].contains(&standing.current));
                        if standing.published.is_some() {
                            let all = [Some(standing.current), standing.next, standing.previous];
                            trusts[node] = all.into_iter().flatten().collect();
                        }
                    }
                    node @ 3..6 => reported[node - 3] = trusts[node - 3].clone(),
                    _ => {
                        let asked = Asked { replace: Some(standing.current), ..Asked::default() };
                        let machines = reported.iter().enumerate().map(|(name, trusts)| {
                            Pinned { machine: name.to_string(), trusts: trusts.clone() }
                        });
                        let step = step(&standing, asked, machines, now);
                        number += u8::from(step == Step::Create);
                        carry_out(&mut standing, &step, now, number);
                    }
                }
                for trusts in &trusts {
                    prop_assert!(trusts.contains(&standing.current), "locked out");
                }
            }
        }
    }
}
