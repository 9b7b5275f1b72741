//! The approval policy of a cluster, as the matcher that carries it out.

use tec_core::ak::{AkMatcher, EkBoundMatcher, Fingerprint, ManualMatcher, TofuMatcher};

use super::{ApprovalPolicy, ApprovalSpec};

/// The policy of the cluster, or what is wrong with it.
pub(crate) fn matcher(approval: Option<&ApprovalSpec>) -> Result<Box<dyn AkMatcher>, String> {
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
            let keys: Result<Vec<Fingerprint>, _> = approval
                .allowed_endorsement_keys
                .iter()
                .map(|text| text.parse())
                .collect();
            let keys = keys.map_err(|_| "the cluster's list of endorsement keys is malformed")?;
            Ok(Box::new(EkBoundMatcher::allow_list(keys)))
        }
    }
}
