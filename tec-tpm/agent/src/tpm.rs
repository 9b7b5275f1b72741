//! The TPM of this node.

use std::path::PathBuf;
use std::sync::Arc;

use tec_core::ak::{Credential, PublicKey};
use tec_core::code::Code;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;
use tec_tpm::ak::{AkAlgorithm, AkHandle, AkOrigin, AttestationKey};
use tec_tpm::direct::Tpm;
use tec_tpm::tpm::{AnyTpm as _, EventLogSource, TpmAttester, TpmError};

use crate::failure::Failure;
use crate::register::{ActivateError, Activator, AkIdentity};
use crate::settings::{Settings, read_systemd_log};

/// An open TPM, with the handle of the attestation key.
#[derive(Clone, Debug)]
pub struct NodeTpm {
    tpm: Arc<Tpm>,
    handle: AkHandle,
    systemd_log: PathBuf,
}

fn failed(operation: &'static str) -> impl FnOnce(TpmError) -> Failure {
    move |error| {
        let error = PortError::from(error);
        Failure::Tpm {
            operation,
            code: error.code().unwrap_or(Code::NodeTpm),
            source: error.into(),
        }
    }
}

impl NodeTpm {
    /// Opens the TPM named in the settings.
    pub fn open(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self {
            tpm: Arc::new(Tpm::open(&settings.tcti).map_err(failed("open the TPM"))?),
            handle: settings.ak_handle,
            systemd_log: settings.systemd_log.clone(),
        })
    }

    /// The attestation key, created now if there is none, with what vouches for it. A TPM without a visible
    /// endorsement key is fine: whether one is needed is the server's decision.
    pub fn ensure_ak(&self) -> Result<AkIdentity, Failure> {
        // The one type that every verifier of TPM evidence accepts.
        let stored = self
            .tpm
            .ensure_ak(self.handle, AkAlgorithm::Rsa2048)
            .map_err(failed("find or create the attestation key"))?;
        if stored.origin == AkOrigin::Created {
            tracing::info!(handle = %self.handle, "attestation key created");
        }
        let ek = self.tpm.read_ek().inspect_err(|error| {
            tracing::info!(%error, "the TPM shows no endorsement key");
        });
        let mut identity = AkIdentity::new(stored.key.public().clone());
        identity.tpm_public = Some(stored.tpm2b_public);
        identity.ek = ek.ok();
        Ok(identity)
    }

    /// The attestation key, if there is one.
    pub fn find_ak(&self) -> Result<Option<PublicKey>, Failure> {
        let handle = self.handle;
        let failed = failed("find the attestation key");
        match self.tpm.ak_public_area(handle) {
            Ok(area) => match AttestationKey::from_tpm2b(&area) {
                Ok(key) => Ok(Some(key.public().clone())),
                Err(error) => Err(failed(TpmError::HandleOccupied { handle, source: Some(error) })),
            },
            Err(TpmError::NoAk(_)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The current registers of the SHA-256 bank.
    pub fn pcrs(&self) -> Result<PcrValues, Failure> {
        self.tpm.pcr_read().map_err(failed("read the registers"))
    }

    /// Measures a phase of the boot into PCR 11 of all banks, in a word of systemd-pcrphase.service(8).
    pub(crate) fn measure_phase(&self, word: &[u8]) -> Result<(), Failure> {
        let measured = self.tpm.pcr_event(PcrIndex::KERNEL_BOOT, word);
        measured.map_err(failed("measure the phase of the boot"))
    }

    /// Produces evidence with the attestation key, and includes the event log, and then that of systemd.
    pub fn attester(&self, event_log: Option<Vec<u8>>) -> TpmAttester {
        let attester = TpmAttester::new(Arc::clone(&self.tpm), self.handle);
        let Some(log) = event_log else {
            return attester;
        };
        let (log, path): (EventLogSource, _) =
            (Arc::new(move || Some(log.clone())), self.systemd_log.clone());
        let attester = attester.with_event_log(log);
        attester.with_systemd_log(Arc::new(move || read_systemd_log(&path)))
    }
}

impl Activator for NodeTpm {
    fn activate(&self, credential: &Credential) -> Result<SecretBytes, ActivateError> {
        self.tpm.activate_credential(self.handle, credential).map_err(ActivateError::new)
    }
}
