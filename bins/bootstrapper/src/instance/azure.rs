//! What vouches for the vTPM of an Azure virtual machine on AMD SNP: the paravisor's report in the TPM, and
//! the certificate of the processor's key.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tec_core::port::{Clock as _, PortError, PortErrorKind, chain};
use tec_core::system::SystemClock;
use tec_core::time::Timestamp;
use tec_node::atls::HclSource;
use tec_node::host::AzureCertificates;
use tec_tpm::direct::Tpm;

/// NV index where the paravisor keeps its report (Azure, guest attestation for confidential VMs).
const REPORT_INDEX: u32 = 0x0140_0001;
/// How long a certificate is kept. It changes only with the processor's firmware, which needs a reboot, but
/// the first answer may have come from a different host.
const FRESH_SECONDS: i64 = 60 * 60;

type Cause = Box<dyn Error + Send + Sync>;

#[derive(Debug)]
struct Cached {
    certificate: Vec<u8>,
    since: Timestamp,
}

/// Reads the report from the TPM each time, and keeps the certificate for an hour.
#[derive(Debug)]
pub struct AzureSource {
    tpm: Arc<Tpm>,
    certificates: AzureCertificates,
    cached: Mutex<Option<Cached>>,
}

impl AzureSource {
    /// Uses this TPM.
    pub fn new(tpm: Arc<Tpm>, certificates: AzureCertificates) -> Self {
        Self { tpm, certificates, cached: Mutex::default() }
    }

    /// Evidence is created on threads that may block, some of them within a runtime that cannot wait here, so
    /// the request gets its own thread and runtime.
    fn fetch(&self) -> Result<Vec<u8>, PortError> {
        let failed = |error: Cause| {
            let operation = "ask for the certificate of the processor's key";
            PortError::new(PortErrorKind::Internal, operation).because(error)
        };
        let asking = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| failed(error.into()))?;
            runtime.block_on(self.certificates.vcek())
        };
        thread::scope(|scope| scope.spawn(asking).join())
            .unwrap_or_else(|_| Err(failed("the thread has died".into())))
    }
}

impl HclSource for AzureSource {
    fn hcl_report(&self) -> Result<Vec<u8>, Cause> {
        let report = self.tpm.nv_read(REPORT_INDEX)?;
        report.ok_or_else(|| "the TPM has no report of a paravisor".into())
    }

    /// One caller sends the request; the others wait for its result.
    fn vcek(&self) -> Result<Vec<u8>, Cause> {
        let mut cached = self.cached.lock();
        let now = SystemClock.now();
        let is_fresh = |one: &&Cached| {
            let age = now.unix_seconds() - one.since.unix_seconds();
            (0..FRESH_SECONDS).contains(&age)
        };
        if let Some(fresh) = cached.as_ref().filter(is_fresh) {
            return Ok(fresh.certificate.clone());
        }
        match (self.fetch(), &*cached) {
            (Ok(certificate), _) => {
                let since = now;
                *cached = Some(Cached { certificate: certificate.clone(), since });
                Ok(certificate)
            }
            (Err(error), Some(stale)) => {
                tracing::warn!(error = chain(&error), "an older certificate is used");
                Ok(stale.certificate.clone())
            }
            (Err(error), None) => Err(error.into()),
        }
    }
}
