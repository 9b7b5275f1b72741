//! Decides without binding.

use std::sync::Arc;

use tec_core::ak::{AkCandidate, AkDecision, AkMatcher, AkReason, AkRecord};
use tec_core::machine::Machine;

/// Decides like another matcher, but leaves keys pending that it would bind: a server that strangers can
/// reach has no permission to bind them; the operator does.
#[derive(Clone, Debug)]
pub struct SubmitOnly(Arc<dyn AkMatcher>);

impl SubmitOnly {
    /// Decides like `matcher`.
    pub fn new(matcher: Arc<dyn AkMatcher>) -> Self {
        Self(matcher)
    }
}

impl AkMatcher for SubmitOnly {
    fn decide(
        &self,
        candidate: &AkCandidate,
        machine: Option<&Machine>,
        of_machine: Option<&AkRecord>,
        same_key: Option<&AkRecord>,
    ) -> AkDecision {
        match self.0.decide(candidate, machine, of_machine, same_key) {
            // Nothing is left to bind.
            known @ AkDecision::Approve(AkReason::SameKeyAgain) => known,
            AkDecision::Approve(reason) => AkDecision::Wait(reason),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use tec_core::ak::TofuMatcher;
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn what_would_be_bound_waits_with_the_reason() {
        let matcher = SubmitOnly::new(Arc::new(TofuMatcher));
        let machine = sample::machine(1);
        let candidate = AkCandidate::from_node(sample::public_key(1), None);
        assert_eq!(
            matcher.decide(&candidate, Some(&machine), None, None),
            AkDecision::Wait(AkReason::FirstUse)
        );
        assert_eq!(
            matcher.decide(&candidate, None, None, None),
            AkDecision::Reject(AkReason::MachineNotWaiting)
        );
    }
}
