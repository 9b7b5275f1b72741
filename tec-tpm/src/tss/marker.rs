//! PCR 15 as the marker that says which cluster a node belongs to.

use std::sync::Arc;

use async_trait::async_trait;
use sha2::Digest as _;
use tec_core::node::derive::ClusterId;
use tec_core::node::lock::BootstrapMarker;
use tec_core::node::lock::MarkerState;
use tec_core::pcr::PcrIndex;
use tec_core::port::PortError;

use super::AuthSession;
use super::CapabilityData;
use super::CapabilityType;
use super::Digest;
use super::DigestValues;
use super::HashingAlgorithm;
use super::PcrHandle;
use super::Tpm;
use super::TpmError;
use super::TssError;
use super::WrapperErrorKind;
use super::failed;

/// The marker of a TPM.
///
/// # Security
/// The register begins at zero with each boot, and every process that may use the TPM can extend
/// it: it proves membership together with a quote, and nothing by itself.
#[derive(Clone, Debug)]
pub struct TpmMarker(Arc<Tpm>);

impl TpmMarker {
    /// Of this TPM.
    pub fn new(tpm: Arc<Tpm>) -> Self {
        Self(tpm)
    }
}

#[async_trait]
impl BootstrapMarker for TpmMarker {
    async fn read(&self) -> Result<MarkerState, PortError> {
        let values = self.0.pcr_read()?;
        Ok(MarkerState::of(*values.value(PcrIndex::CLUSTER)))
    }

    async fn set(&self, cluster: &ClusterId) -> Result<(), PortError> {
        Ok(self.0.pcr_event(PcrIndex::CLUSTER, cluster.as_bytes())?)
    }
}

impl Tpm {
    /// Extends a register of every bank by the bank's own digest of `data`, as TPM2_PCR_Event does
    /// (TPM 2.0 Library Part 3, "TPM2_PCR_Event"), which libtss2's wrapper does not have.
    ///
    /// # Errors
    /// [`TpmError::Command`], for example when the locality may not extend this register.
    pub fn pcr_event(&self, index: PcrIndex, data: &[u8]) -> Result<(), TpmError> {
        let operation = failed("measure an event");
        let handle = PcrHandle::try_from(u32::from(u8::from(index))).map_err(&operation)?;
        let mut context = self.context();
        let (banks, _) = context
            .execute_without_session(|context| {
                context.get_capability(CapabilityType::AssignedPcr, 0, 1)
            })
            .map_err(&operation)?;
        let mut values = DigestValues::new();
        if let CapabilityData::AssignedPcr(banks) = banks {
            for bank in banks.get_selections().iter().filter(|one| !one.is_empty()) {
                let algorithm = bank.hashing_algorithm();
                let digest = bank_digest(algorithm, data).map_err(&operation)?;
                values.set(algorithm, digest);
            }
        }
        context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.pcr_extend(handle, values)
            })
            .map_err(&operation)
    }
}

/// A bank of an unknown algorithm must not stay as it was in silence: it is an error.
fn bank_digest(algorithm: HashingAlgorithm, data: &[u8]) -> Result<Digest, TssError> {
    let bytes = match algorithm {
        HashingAlgorithm::Sha1 => sha1::Sha1::digest(data).to_vec(),
        HashingAlgorithm::Sha256 => sha2::Sha256::digest(data).to_vec(),
        HashingAlgorithm::Sha384 => sha2::Sha384::digest(data).to_vec(),
        HashingAlgorithm::Sha512 => sha2::Sha512::digest(data).to_vec(),
        _ => {
            let unsupported = WrapperErrorKind::UnsupportedParam;
            return Err(TssError::WrapperError(unsupported));
        }
    };
    Digest::try_from(bytes)
}
