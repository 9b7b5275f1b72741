//! The server's side of attestation with the vTPM of an Azure virtual machine on AMD SNP.
//!
//! ```text
//!  evidence ─ AK from the runtime data ──► quote: signature, nonce, selection, digest
//!                       │ SHA-256
//!  SNP report ── report data ◄┘  ── signed by ──► VCEK ──► ASK ──► ARK
//! ```

mod evidence;

pub use self::evidence::{AzSnpEvidence, AzSnpEvidenceError, AzSnpEvidenceVersion};

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tec_core::ak::Fingerprint;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::digest::Sha256Digest;
use tec_core::port::{Clock, EvidenceRequest, Verifier, chain};

use super::{check_init_data, init_data_value, refusal, tpm_claims};
use crate::hcl::{HardwareKind, HclError, HclReport, RuntimeData};
use crate::quote::{UntrustedQuote, VerifiedQuote};
use crate::snp::{
    GuestPolicy, PlatformInfo, Policy, Report, Roots, UntrustedReport, VerifiedReport,
};

/// Verifies evidence of type `az-snp-vtpm`, in its versions 0, 1 and 2.
///
/// Claims have the names that confidential-containers uses, and all are strings; registers are
/// under `tpm`. One claim is added there: `ak_public`, the key that the SNP report vouches for.
///
/// # Security
/// Genuine hardware says nothing about the software in the guest: without a list of measurements or
/// ID keys in the [`Policy`], any guest can make up a vTPM. The appraisal decides whose key it is.
#[derive(Clone, Debug)]
pub struct AzSnpVtpmVerifier {
    clock: Arc<dyn Clock>,
    policy: Policy,
    roots: Arc<Roots>,
}

impl AzSnpVtpmVerifier {
    /// Trusts AMD's CAs.
    pub fn new(clock: Arc<dyn Clock>, policy: Policy) -> Self {
        Self::with_roots(clock, policy, Roots::amd())
    }

    /// Trusts these CAs instead.
    pub fn with_roots(clock: Arc<dyn Clock>, policy: Policy, roots: Roots) -> Self {
        Self { clock, policy, roots: Arc::new(roots) }
    }

    /// Checks evidence over report data of any length; the port has 48 bytes.
    ///
    /// # Errors
    /// The first check that failed. A hardware report is refused with all findings.
    pub fn verify_evidence(
        &self,
        evidence: &Value,
        report_data: &[u8],
        init_data: Option<&[u8]>,
    ) -> Result<VerifiedEvidence, VerifyError> {
        let evidence = AzSnpEvidence::from_value(evidence)
            .map_err(|error| VerifyError::Malformed(error.member()))?;
        let hcl = HclReport::parse(&evidence.hcl_report).map_err(|error| malformed(&error))?;
        let runtime = hcl.runtime_data().map_err(|error| malformed(&error))?;
        let ak = runtime.ak.fingerprint();
        let signature = evidence.tpmt_signature();
        let quote = UntrustedQuote::new(&evidence.message, &signature, &evidence.values)
            .verify(&runtime.ak, report_data)
            .map_err(|error| refusal(&error, ak))?;
        let report = self.hardware(&hcl, &evidence.vcek, ak)?;
        if evidence.version == AzSnpEvidenceVersion::V2 {
            check_user_data(&runtime, report_data, ak)?;
        }
        if let Some(digest) = init_data {
            check_init_data(quote.pcrs(), digest, ak)?;
        }
        Ok(assemble(runtime, &quote, report.report(), report_data))
    }

    /// The SNP report is genuine, satisfies the policy, and binds the runtime data.
    fn hardware(
        &self,
        hcl: &HclReport<'_>,
        vcek: &[u8],
        claimed_ak: Fingerprint,
    ) -> Result<VerifiedReport, VerifyError> {
        let refused = |findings: String| VerifyError::Hardware { findings, claimed_ak };
        if hcl.kind() != HardwareKind::Snp {
            return Err(refused("it is not of SNP".to_owned()));
        }
        let verified = UntrustedReport::new(hcl.hardware_report(), vcek)
            .verify(&self.roots, &self.policy, self.clock.now())
            .map_err(|error| refused(error.to_string()))?;
        if hcl.is_bound_by(&verified.report().report_data) {
            Ok(verified)
        } else {
            Err(refused("it binds other runtime data".to_owned()))
        }
    }
}

#[async_trait]
impl Verifier for AzSnpVtpmVerifier {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        if request.tee != Tee::AzSnpVtpm {
            return Err(VerifyError::Unsupported(request.tee));
        }
        self.verify_evidence(request.evidence, request.report_data, request.init_data)
    }
}

fn malformed(error: &HclError) -> VerifyError {
    VerifyError::Malformed(format!("hcl_report: {}", chain(error)))
}

/// From version 2 on, the hardware report is created for this session, too. The NV index is larger
/// than the report data, and what follows them is left over from before.
fn check_user_data(
    runtime: &RuntimeData,
    report_data: &[u8],
    ak: Fingerprint,
) -> Result<(), VerifyError> {
    let user_data = runtime.user_data.as_deref().unwrap_or_default();
    if user_data.starts_with(report_data) {
        Ok(())
    } else {
        Err(VerifyError::Quote {
            reason: "the hardware report was made for another session",
            claimed_ak: Some(ak),
        })
    }
}

fn assemble(
    runtime: RuntimeData,
    quote: &VerifiedQuote,
    report: &Report,
    report_data: &[u8],
) -> VerifiedEvidence {
    let pcrs = quote.pcrs();
    let mut claims = snp_claims(report);
    claims.insert("tpm".to_owned(), tpm_claims(&runtime.ak, pcrs).into());
    let init_data = init_data_value(pcrs).map(Sha256Digest::to_string);
    let mut verified = VerifiedEvidence::new(Tee::AzSnpVtpm, runtime.ak, pcrs.clone());
    verified.claims = claims;
    verified.clock = Some(quote.clock());
    verified.report_data = hex::encode(report_data);
    verified.init_data = init_data.unwrap_or_default();
    verified
}

fn snp_claims(report: &Report) -> Map<String, Value> {
    let tcb = &report.reported_tcb;
    let allows = |bit| report.policy.contains(bit).to_string();
    let has = |bit| report.platform.contains(bit).to_string();
    [
        ("policy_abi_major", report.policy.abi_major().to_string()),
        ("policy_abi_minor", report.policy.abi_minor().to_string()),
        ("policy_smt_allowed", allows(GuestPolicy::SMT)),
        ("policy_migrate_ma", allows(GuestPolicy::MIGRATE_MA)),
        ("policy_debug_allowed", allows(GuestPolicy::DEBUG)),
        ("policy_single_socket", allows(GuestPolicy::SINGLE_SOCKET)),
        ("reported_tcb_bootloader", tcb.bootloader.to_string()),
        ("reported_tcb_tee", tcb.tee.to_string()),
        ("reported_tcb_snp", tcb.snp.to_string()),
        ("reported_tcb_microcode", tcb.microcode.to_string()),
        ("platform_tsme_enabled", has(PlatformInfo::TSME)),
        ("platform_smt_enabled", has(PlatformInfo::SMT)),
        ("measurement", STANDARD.encode(report.measurement)),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_owned(), text.into()))
    .collect()
}

#[cfg(test)]
mod tests;
