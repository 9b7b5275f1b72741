//! Certificates of the processor's keys, as Azure provides them to its instances.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tec_core::port::{PortError, PortErrorKind};

use super::azure::{DEFAULT, HEADER};
use super::{MetadataError, parsed};
use crate::host::http::Ask;

/// Their path (Azure, "Trusted Hardware Identity Management").
const PATH: &str = "/metadata/THIM/amd/certification";
/// Number of attempts, and the first wait, which doubles: the service throttles requests.
const ATTEMPTS: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The VCEK's certificate: from the metadata service, or else from a file, if one is named, in the form that
/// AMD distributes.
#[derive(Clone, Debug)]
pub struct AzureCertificates {
    base: String,
    file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "vcekCert")]
    vcek: String,
}

impl AzureCertificates {
    /// Uses this base URL, or the address that is the same on every instance.
    pub fn new(base: Option<String>, file: Option<PathBuf>) -> Self {
        let base = base.unwrap_or_else(|| DEFAULT.to_owned());
        let base = base.trim_end_matches('/').to_owned();
        Self { base, file }
    }

    /// The certificate, in PEM or DER. It is not verified.
    pub async fn vcek(&self) -> Result<Vec<u8>, PortError> {
        let mut wait = FIRST_WAIT;
        let mut attempt = 1;
        let error = loop {
            match self.ask().await {
                Ok(certificate) => return Ok(certificate),
                Err(error) if attempt == ATTEMPTS => break error,
                Err(error) => tracing::info!(%error, "no certificate of the processor yet"),
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
            attempt += 1;
        };
        let operation = "fetch the certificate of the processor's key";
        match &self.file {
            Some(path) => tokio::fs::read(path).await.map_err(|error| {
                let operation = format!("{operation}, or read {}", path.display());
                PortError::new(PortErrorKind::Unavailable, operation).because(error)
            }),
            None => Err(error.during(operation)),
        }
    }

    async fn ask(&self) -> Result<Vec<u8>, MetadataError> {
        let request = Ask::get(format!("{}{PATH}", self.base));
        let answer = request.header(HEADER, "true").body().await?;
        let document: Document = parsed(&answer)?;
        // Seen on a host that was set up moments before.
        if document.vcek.trim().is_empty() {
            return Err(MetadataError::Member("vcekCert"));
        }
        Ok(document.vcek.into_bytes())
    }
}
