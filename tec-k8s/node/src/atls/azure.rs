//! The proof that vouches for the vTPM of an Azure virtual machine on AMD SNP.
//!
//! ```json
//! { "ReportSigner": "<base64 of the VCEK certificate, PEM or DER>",
//!   "AttestationReport": "<base64 of the SNP report>",
//!   "Azure": { "RuntimeData": "<base64 of the claims, exactly as hashed>" } }
//! ```

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tec_core::ak::PublicKey;
use tec_core::port::Clock;
use tec_tpm::hcl::{HclReport, RuntimeData};
use tec_tpm::snp::{Policy, Roots, UntrustedReport};

use super::{AkTrust, ValidateError};

type Cause = Box<dyn Error + Send + Sync>;

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "ReportSigner")]
    signer: String,
    #[serde(rename = "AttestationReport")]
    report: String,
    #[serde(rename = "Azure")]
    azure: WireAzure,
}

#[derive(Serialize, Deserialize)]
struct WireAzure {
    #[serde(rename = "RuntimeData")]
    runtime: String,
}

/// Where a node gets its paravisor's report and the certificate of the chip's key.
pub trait HclSource: fmt::Debug + Send + Sync {
    /// Content of NV index 0x01400001.
    fn hcl_report(&self) -> Result<Vec<u8>, Cause>;

    /// Certificate of the VCEK in PEM or DER.
    fn vcek(&self) -> Result<Vec<u8>, Cause>;
}

/// The instance information of such a machine, as documents contain it.
pub(super) fn instance_info(source: &dyn HclSource) -> Result<Vec<u8>, Cause> {
    let bytes = source.hcl_report()?;
    let hcl = HclReport::parse(&bytes)?;
    let wire = Wire {
        signer: STANDARD.encode(source.vcek()?),
        report: STANDARD.encode(hcl.hardware_report()),
        azure: WireAzure { runtime: STANDARD.encode(hcl.variable_data()) },
    };
    Ok(serde_json::to_vec(&wire)?)
}

/// Trusts attestation keys that a genuine SNP report vouches for.
#[derive(Clone, Debug)]
pub struct AzureSnpAk {
    clock: Arc<dyn Clock>,
    policy: Policy,
    roots: Arc<Roots>,
}

impl AzureSnpAk {
    /// Trusts the CAs of AMD.
    pub fn new(clock: Arc<dyn Clock>, policy: Policy) -> Self {
        Self::with_roots(clock, policy, Roots::amd())
    }

    /// Trusts these CAs instead.
    pub fn with_roots(clock: Arc<dyn Clock>, policy: Policy, roots: Roots) -> Self {
        Self { clock, policy, roots: Arc::new(roots) }
    }
}

impl AkTrust for AzureSnpAk {
    fn check(&self, ak: &PublicKey, instance_info: &[u8]) -> Result<(), ValidateError> {
        let refused = |reason: String| ValidateError::Untrusted { ak: ak.fingerprint(), reason };
        let wire: Wire = serde_json::from_slice(instance_info)
            .map_err(|source| ValidateError::malformed("InstanceInfo", source))?;
        let report = decode("AttestationReport", &wire.report)?;
        let runtime = decode("RuntimeData", &wire.azure.runtime)?;
        let vcek = certificate_der(decode("ReportSigner", &wire.signer)?)?;
        let verified = UntrustedReport::new(&report, &vcek)
            .verify(&self.roots, &self.policy, self.clock.now())
            .map_err(|error| refused(error.to_string()))?;
        if !binds(&verified.report().report_data, &runtime) {
            return Err(refused("the SNP report binds other runtime data".to_owned()));
        }
        let claims = RuntimeData::parse(&runtime)
            .map_err(|source| ValidateError::malformed("RuntimeData", source))?;
        if claims.ak == *ak {
            Ok(())
        } else {
            Err(refused("the runtime data name another key".to_owned()))
        }
    }
}

/// The first half must be the SHA-256 digest of the claims, the second half zero.
fn binds(report_data: &[u8; 64], runtime: &[u8]) -> bool {
    let mut expected = [0; 64];
    for (to, from) in expected.iter_mut().zip(Sha256::digest(runtime)) {
        *to = from;
    }
    report_data.ct_eq(&expected).into()
}

fn certificate_der(bytes: Vec<u8>) -> Result<Vec<u8>, ValidateError> {
    if !bytes.starts_with(b"-----BEGIN") {
        return Ok(bytes);
    }
    pem_rfc7468::decode_vec(&bytes)
        .map(|(_, der)| der)
        .map_err(|source| ValidateError::malformed("ReportSigner", source))
}

fn decode(at: &'static str, text: &str) -> Result<Vec<u8>, ValidateError> {
    STANDARD.decode(text).map_err(|source| ValidateError::malformed(at, source))
}
