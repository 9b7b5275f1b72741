//! Client for the controllers of the vault's other pods.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_services::shell::client::WrappedKeyRequest;
use tec_services::shell::client::bootstrap_client::BootstrapClient;
use tec_services::shell::{ApiServer, Peers};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// Deadline that a reachable controller meets, including its vault's review of our token.
const DEADLINE: Duration = Duration::from_secs(15);

/// Controllers by the addresses of their pods, never by that of their Service, which could lead back here.
#[derive(Debug)]
pub struct Others {
    /// Host and port of each.
    pub addresses: Vec<String>,
    /// Name in their certificates.
    pub name: String,
    /// File of the controller's own token, for its own audience.
    pub token: PathBuf,
    /// Knows the authorities that the first controller published.
    pub cluster: Arc<ApiServer>,
}

impl Others {
    async fn ask(&self, address: &str, authorities: &str) -> anyhow::Result<Vec<u8>> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authorities))
            .domain_name(&self.name);
        let endpoint = Endpoint::from_shared(format!("https://{address}"))?
            .timeout(DEADLINE)
            .connect_timeout(DEADLINE)
            .tls_config(tls)?;
        let token = std::fs::read(&self.token)
            .with_context(|| format!("cannot read {}", self.token.display()))?;
        let request = WrappedKeyRequest {
            service_account_token: token.trim_ascii().to_vec(),
            request_id: format!("peer-{}", std::process::id()),
        };
        let mut client = BootstrapClient::new(endpoint.connect_lazy());
        let answer = client.get_wrapped_key(request).await?;
        Ok(answer.into_inner().wrapped_key)
    }
}

#[tonic::async_trait]
impl Peers for Others {
    async fn wrapped_keys(&self) -> Vec<Option<Vec<u8>>> {
        let authorities = match self.cluster.authorities().await {
            Ok(Some(authorities)) => authorities,
            Ok(None) => return vec![None; self.addresses.len()],
            Err(error) => {
                tracing::warn!(%error, "cannot read the authorities of the other pods");
                return vec![None; self.addresses.len()];
            }
        };
        let asked = self.addresses.iter().map(async |address| {
            let answer = self.ask(address, &authorities).await;
            let told = |error: &anyhow::Error| {
                let error = format!("{error:#}");
                tracing::info!(address, error, "a pod does not give the wrapped key");
            };
            answer.inspect_err(told).ok()
        });
        futures::future::join_all(asked).await
    }
}
