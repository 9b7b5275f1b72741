//! An Azure confidential virtual machine in software.

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rsa::RsaPublicKey;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::traits::PublicKeyParts as _;
use sha2::{Digest as _, Sha256};
use tec_core::ak::PublicKey;
use tec_core::attest::Tee;
use tec_core::port::{AttestationEvidence, Attester, PortError};

use super::{SoftSnp, SoftTpm};
use crate::hcl;
use crate::snp::{Product, REPORT_SIZE};
use crate::verifier::{AzSnpEvidence, AzSnpEvidenceVersion};

/// Bytes of the NV index that has the paravisor's report.
const NV_INDEX: usize = 2600;
/// Bytes of a TPMT_SIGNATURE before the RSA signature: scheme, hash, size.
const SIGNATURE_HEAD: usize = 6;

/// A virtual machine whose vTPM is vouched for by an SNP report, all in software.
///
/// ```
/// use tec_tpm::hcl::HclReport;
/// use tec_tpm::testing::SoftAzure;
///
/// let machine = SoftAzure::new(1);
/// let bytes = machine.hcl_report(&machine.runtime_json(&[7; 48]));
/// let report = HclReport::parse(&bytes)?;
/// assert_eq!(report.runtime_data()?.ak, machine.tpm().public_key());
/// # Ok::<(), tec_tpm::hcl::HclError>(())
/// ```
#[derive(Debug)]
pub struct SoftAzure {
    tpm: SoftTpm,
    chip: SoftSnp,
}

impl SoftAzure {
    /// With an RSA 2048 attestation key, on a chip of the product Milan.
    pub fn new(seed: u64) -> Self {
        Self { tpm: SoftTpm::rsa(seed), chip: SoftSnp::vcek(Product::Milan, seed) }
    }

    /// The vTPM of the machine.
    pub fn tpm(&self) -> &SoftTpm {
        &self.tpm
    }

    /// The processor of the machine.
    pub fn chip(&self) -> &SoftSnp {
        &self.chip
    }

    /// The runtime data after a guest wrote `user_data`; zeros follow up to 64 bytes.
    pub fn runtime_json(&self, user_data: &[u8]) -> Vec<u8> {
        let mut padded = user_data.to_vec();
        padded.resize(64, 0);
        serde_json::json!({
            "keys": [
                {"kid": "HCLEkPub", "key_ops": ["encrypt"], "kty": "RSA", "e": "AQAB", "n": "AAAA"},
                jwk(&self.tpm.public_key()),
            ],
            "vm-configuration": {"secure-boot": true, "tpm-enabled": true},
            "user-data": hex::encode_upper(padded),
        })
        .to_string()
        .into_bytes()
    }

    /// Runtime data of an RSA key alone, as early hosts wrote them: with their report they fit into
    /// an emulated TPM.
    pub fn claims_of(ak: &PublicKey) -> Vec<u8> {
        serde_json::json!({"keys": [jwk(ak)], "vm-configuration": {}}).to_string().into_bytes()
    }

    /// A paravisor's report over runtime data, bound by a report of this processor, without padding.
    pub fn hcl_report_of(chip: &SoftSnp, runtime: &[u8]) -> Vec<u8> {
        Self::hcl_report_around(&chip.report(&report_data(runtime)), runtime)
            .into_iter()
            .take(hcl::HEADER + REPORT_SIZE + hcl::RUNTIME_HEADER + runtime.len())
            .collect()
    }

    /// A paravisor's report over this runtime data, bound by a hardware report.
    pub fn hcl_report(&self, runtime: &[u8]) -> Vec<u8> {
        Self::hcl_report_around(&self.chip.report(&report_data(runtime)), runtime)
    }

    /// A paravisor's report of these two parts, whether or not they match.
    pub fn hcl_report_around(hardware: &[u8], runtime: &[u8]) -> Vec<u8> {
        let data = hcl::RUNTIME_HEADER + runtime.len();
        let total = hcl::HEADER + REPORT_SIZE + data;
        let le = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = hcl::MAGIC.to_vec();
        // Version, size, request type, status, reserved.
        bytes.extend([le(1), le(total), le(2), le(0), le(0), le(0), le(0)].concat());
        bytes.extend(hardware);
        // Size, version, SNP, SHA-256, size of the JSON.
        bytes.extend([le(data), le(1), le(2), le(1), le(runtime.len())].concat());
        bytes.extend(runtime);
        bytes.resize(bytes.len().max(NV_INDEX), 0);
        bytes
    }

    /// Evidence over this report data, in one of its forms.
    pub fn evidence(&self, version: AzSnpEvidenceVersion, report_data: &[u8]) -> AzSnpEvidence {
        let quote = self.tpm.quote(report_data);
        let user_data = match version {
            AzSnpEvidenceVersion::V2 => report_data,
            AzSnpEvidenceVersion::V0 | AzSnpEvidenceVersion::V1 => &[],
        };
        AzSnpEvidence {
            version,
            signature: quote.signature.into_iter().skip(SIGNATURE_HEAD).collect(),
            message: quote.message,
            values: quote.values,
            hcl_report: self.hcl_report(&self.runtime_json(user_data)),
            vcek: self.chip.certificate(),
        }
    }
}

/// What a hardware report binds: SHA-256 of the runtime data, and zeros.
fn report_data(runtime: &[u8]) -> [u8; 64] {
    let mut data = [0; 64];
    for (to, from) in data.iter_mut().zip(Sha256::digest(runtime)) {
        *to = from;
    }
    data
}

/// An attestation key, as runtime data name it.
#[expect(clippy::expect_used, reason = "attestation keys of these machines are RSA")]
fn jwk(ak: &PublicKey) -> serde_json::Value {
    let key = RsaPublicKey::from_public_key_der(ak.as_der()).expect("an RSA key in DER");
    let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    serde_json::json!({"kid": "HCLAkPub", "key_ops": ["sign"], "kty": "RSA",
                       "e": number(&key.e_bytes()), "n": number(&key.n_bytes())})
}

#[async_trait]
impl Attester for SoftAzure {
    fn tee(&self) -> Tee {
        Tee::AzSnpVtpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let evidence = self.evidence(AzSnpEvidenceVersion::V2, report_data);
        Ok(AttestationEvidence::new(Tee::AzSnpVtpm, evidence.to_value()))
    }
}
