//! Generates policies from what they should enforce.

use tec_core::attest::PinnedPcrs;
use tec_core::pcr::PcrIndex;
use tec_support::exit::OK;
use tec_trustee::policy::{ClaimValue, PolicyIntent, SnpRequirement};

use super::args::{ClaimArg, IntentArgs, PolicyName};
use crate::output;

pub(super) fn print(which: PolicyName, args: &IntentArgs) -> anyhow::Result<u8> {
    let intent = intent(args)?;
    output::raw(&match which {
        PolicyName::Attestation => intent.render_attestation(),
        PolicyName::Resource => intent.render_resource(),
    })?;
    Ok(OK)
}

/// The policy that the flags describe.
pub(super) fn intent(args: &IntentArgs) -> anyhow::Result<PolicyIntent> {
    let pinned = PinnedPcrs::new(args.pcrs.iter().copied().collect())?;
    let tees = args.platforms.iter().map(|platform| (*platform).into());
    let mut intent = PolicyIntent::new(pinned, tees)?;
    let snp = snp(args);
    if snp != SnpRequirement::default() {
        intent = intent.with_snp(snp)?;
    }
    for ClaimArg { name, key, value } in &args.extension_claims {
        intent = intent.with_claim(name, *key, claim_value(value))?;
    }
    Ok(intent)
}

fn snp(args: &IntentArgs) -> SnpRequirement {
    let mut snp = SnpRequirement::default();
    if args.snp_measurement {
        snp = snp.with_approved_measurement();
    }
    match args.snp_minimum_tcb {
        Some(minimum) => snp.with_minimum_tcb(minimum),
        None => snp,
    }
}

/// `pcr4` stands for the register, anything else for itself.
fn claim_value(text: &str) -> ClaimValue {
    let index = text.strip_prefix("pcr").and_then(|index| index.parse().ok());
    match index.and_then(|index| PcrIndex::new(index).ok()) {
        Some(index) => ClaimValue::Register(index),
        None => ClaimValue::Text(text.to_owned()),
    }
}
