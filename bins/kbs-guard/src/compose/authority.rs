//! The CAs of this server, read from a mounted file, and reports of machines, sent to the API server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::digest::Sha256Digest;
use tec_core::id::MachineId;
use tec_core::port::{PortError, PortErrorKind};
use tec_k8s::client::AttemptRecords;
use tec_support::input;
use tec_trustee::authority::MAX_BODY;
use tec_trustee::kbs::Authorities;

use super::ApiServer;

/// A CA bundle that is read for each request, so that a new one takes effect without a restart.
#[derive(Debug)]
struct Mounted {
    file: PathBuf,
    records: AttemptRecords,
}

/// The CAs in this file.
pub fn authorities(file: &Path, api: &ApiServer) -> Arc<dyn Authorities> {
    Arc::new(Mounted { file: file.to_owned(), records: api.records.clone() })
}

#[async_trait]
impl Authorities for Mounted {
    fn bundle(&self) -> Result<String, PortError> {
        if !self.file.exists() {
            let why = format!("read {}", self.file.display());
            return Err(PortError::new(PortErrorKind::NotFound, why));
        }
        // Its JSON form is a little longer.
        input::text(&self.file, MAX_BODY as u64 / 2).map_err(|error| {
            let why = format!("read the CAs that nodes should trust: {error:#}");
            PortError::new(PortErrorKind::Internal, why)
        })
    }

    async fn trusted_by(
        &self,
        machine: &MachineId,
        authorities: &BTreeSet<Sha256Digest>,
    ) -> Result<(), PortError> {
        self.records.trusted_by(machine, authorities).await
    }
}
