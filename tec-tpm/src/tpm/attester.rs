//! The attester port over a TPM.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::attest::Tee;
use tec_core::port::{AttestationEvidence, Attester, PortError};

use super::{AnyTpm, TpmError};
use crate::ak::AkHandle;
use crate::evidence::TpmEvidence;
use crate::verifier;

/// Where an attester finds a log of this boot.
pub type EventLogSource = Arc<dyn Fn() -> Option<Vec<u8>> + Send + Sync>;

/// The node's side of attestation: a TPM, the handle of its attestation key, and the event log.
///
/// # Security
/// Blocks while the TPM works; see [`AnyTpm`].
#[derive(Clone)]
pub struct TpmAttester {
    tpm: Arc<dyn AnyTpm>,
    handle: AkHandle,
    event_log: Option<EventLogSource>,
    systemd_log: Option<EventLogSource>,
}

impl fmt::Debug for TpmAttester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpmAttester").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl TpmAttester {
    /// Attests with the key at `handle`, without an event log.
    pub fn new(tpm: Arc<impl AnyTpm + 'static>, handle: AkHandle) -> Self {
        Self { tpm, handle, event_log: None, systemd_log: None }
    }

    /// Adds the log that `source` returns to the evidence of each attestation.
    pub fn with_event_log(mut self, source: EventLogSource) -> Self {
        self.event_log = Some(source);
        self
    }

    /// Adds systemd's log of what it measured, read after the quote: it grows while the system starts.
    pub fn with_systemd_log(mut self, source: EventLogSource) -> Self {
        self.systemd_log = Some(source);
        self
    }

    /// TPM2B_PUBLIC of the attestation key.
    pub fn ak_public_area(&self) -> Result<Vec<u8>, TpmError> {
        self.tpm.ak_public_area(self.handle)
    }

    /// A quote over `nonce` itself, without an event log, for protocols with their own nonces.
    pub fn evidence_for(&self, nonce: &[u8; 32]) -> Result<TpmEvidence, TpmError> {
        self.tpm.quote(self.handle, nonce)
    }
}

#[async_trait]
impl Attester for TpmAttester {
    fn tee(&self) -> Tee {
        Tee::Tpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let mut evidence = self.tpm.quote(self.handle, &verifier::nonce(report_data))?;
        if let Some(log) = self.event_log.as_ref().and_then(|source| source()) {
            evidence = evidence.with_event_log(log);
        }
        if let Some(log) = self.systemd_log.as_ref().and_then(|source| source()) {
            evidence = evidence.with_systemd_log(log);
        }
        Ok(AttestationEvidence::new(Tee::Tpm, evidence.to_value()))
    }
}
