//! PCR 15 as the marker of the cluster that a node belongs to.

use std::sync::Arc;

use crate::derive::ClusterId;
use crate::lock::{BootstrapMarker, MarkerState};
use async_trait::async_trait;
use tec_core::pcr::PcrIndex;
use tec_core::port::PortError;
use tec_tpm::tpm::AnyTpm;

/// The marker of a TPM.
///
/// # Security
/// The register starts at zero at each boot, and every process that may use the TPM can extend it:
/// together with a quote, it proves membership; by itself, it proves nothing.
#[derive(Clone, Debug)]
pub struct TpmMarker(Arc<dyn AnyTpm>);

impl TpmMarker {
    /// Of this TPM.
    pub fn new(tpm: Arc<impl AnyTpm + 'static>) -> Self {
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
