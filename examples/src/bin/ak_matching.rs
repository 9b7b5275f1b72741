//! Attestation key matching: when a key may be bound to a machine.
//!
//! ```text
//! cargo run -p tec-examples --bin ak_matching
//! ```
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use anyhow::ensure;
use tec_core::ak::{
    AkCandidate, AkDecision, AkMatcher, AkReason, AkRecord, AkState, AllOf, EkBoundMatcher,
    ManualMatcher, TofuMatcher,
};
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::time::Timestamp;
use tec_tpm::testing::SoftTpm;

fn tell(what: &str, decision: AkDecision) -> AkDecision {
    let (verdict, reason) = match decision {
        AkDecision::Approve(reason) => ("approve", reason),
        AkDecision::Wait(reason) => ("wait", reason),
        AkDecision::Reject(reason) => ("reject", reason),
    };
    println!("{what:<40} {verdict:<8} {reason}");
    decision
}

fn main() -> anyhow::Result<()> {
    let now = Timestamp::from_unix_seconds(1_795_000_000);
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse()?;
    let machine = Machine::unclaimed(id, RegisteredBy::FirstBoot, now);
    let (tpm, stranger) = (SoftTpm::p256(1), SoftTpm::p256(2));
    let ek = tpm.ek().public.fingerprint();
    let bare = AkCandidate::from_node(tpm.public_key(), None);
    // Credential activation proves that an endorsement key vouches (tec_tpm::ek).
    let proven = AkCandidate::from_node(tpm.public_key(), Some(ek));

    // A matcher is a pure function of what is known: machine, its bound key, this very key.
    let fresh = |matcher: &dyn AkMatcher, candidate: &AkCandidate| {
        matcher.decide(candidate, Some(&machine), None, None)
    };
    let first = tell("trust on first use, first key", fresh(&TofuMatcher, &bare));
    ensure!(first == AkDecision::Approve(AkReason::FirstUse));

    // Once a key is bound, every other key is refused, whatever the policy.
    let mut bound = AkRecord::pending(tpm.public_key(), id, None, now);
    bound.state = AkState::Bound;
    let second = AkCandidate::from_node(stranger.public_key(), None);
    let decision = TofuMatcher.decide(&second, Some(&machine), Some(&bound), None);
    tell("trust on first use, second key", decision);
    ensure!(decision == AkDecision::Reject(AkReason::MachineHasOtherKey));
    tell(
        "the same key again",
        TofuMatcher.decide(&bare, Some(&machine), Some(&bound), Some(&bound)),
    );

    let any_ek = EkBoundMatcher::any_ek();
    tell("endorsement key asked for, none proven", fresh(&any_ek, &bare));
    tell("endorsement key asked for and proven", fresh(&any_ek, &proven));
    let only_others = EkBoundMatcher::allow_list([stranger.ek().public.fingerprint()]);
    tell("proven, but not on the allow-list", fresh(&only_others, &proven));

    tell("manual, the node asks", fresh(&ManualMatcher, &bare));
    let by_admin = AkCandidate::from_admin(tpm.public_key(), None);
    tell("manual, an admin asks", fresh(&ManualMatcher, &by_admin));

    // Policies combine: here a proven key and an admin.
    let both = AllOf::new(vec![Box::new(any_ek), Box::new(ManualMatcher)]);
    let waits = tell("endorsement key and admin, only proven", fresh(&both, &proven));
    ensure!(waits == AkDecision::Wait(AkReason::NeedsAdmin));
    Ok(())
}
