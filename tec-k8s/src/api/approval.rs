//! The approval policy of a cluster, as the matcher that implements it.

use tec_core::ak::{AkMatcher, EkBoundMatcher, Fingerprint, ManualMatcher, TofuMatcher};

use super::{ApprovalPolicy, ApprovalSpec};

/// An approval policy that cannot be implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApprovalError {
    /// An entry of `allowedEndorsementKeys` is not the fingerprint of a key.
    #[error("the cluster's list of endorsement keys is malformed")]
    EndorsementKeys,
}

/// The matcher for the policy in a cluster's `spec.approval`; first use by default.
pub fn approval_matcher(
    approval: Option<&ApprovalSpec>,
) -> Result<Box<dyn AkMatcher>, ApprovalError> {
    let Some(approval) = approval else {
        return Ok(Box::new(TofuMatcher));
    };
    match approval.policy {
        ApprovalPolicy::FirstUse => Ok(Box::new(TofuMatcher)),
        ApprovalPolicy::Manual => Ok(Box::new(ManualMatcher)),
        ApprovalPolicy::EndorsementKey if approval.allowed_endorsement_keys.is_empty() => {
            Ok(Box::new(EkBoundMatcher::any_ek()))
        }
        ApprovalPolicy::EndorsementKey => {
            let keys: Result<Vec<Fingerprint>, _> =
                approval.allowed_endorsement_keys.iter().map(|text| text.parse()).collect();
            let keys = keys.map_err(|_| ApprovalError::EndorsementKeys)?;
            Ok(Box::new(EkBoundMatcher::allow_list(keys)))
        }
    }
}
