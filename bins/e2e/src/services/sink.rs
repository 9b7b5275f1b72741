//! Keeps what it receives, for tests of senders: OTLP over HTTP in JSON, with mutual TLS.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;
use tec_services::shell::client::TlsMaterial;
use tec_services::shell::{Http, Target};
use tec_services::telemetry::LOGS;
use tec_support::certificate::Certificate;
use tec_support::serve;
use tec_support::serve::{Shutdown, Transport};
use tokio::task::JoinSet;

const DEADLINE: Duration = Duration::from_secs(10);

type Lines = Arc<Mutex<Vec<String>>>;

/// A running sink. Stopped on drop.
#[derive(Debug)]
pub struct Sink {
    address: String,
    lines: Lines,
    _server: JoinSet<anyhow::Result<()>>,
}

impl Sink {
    /// Serves with the certificate of a collector.
    pub fn start(tls: &TlsMaterial) -> anyhow::Result<Self> {
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots(&tls.authorities)?)).build()?;
        let chain = CertificateDer::pem_slice_iter(tls.certificate_chain.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(&tls.private_key)?;
        let config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.collect::<Result<_, _>>()?, key)?;
        let lines = Lines::default();
        let router = Router::new().route(LOGS, post(take)).with_state(Arc::clone(&lines));
        let listener = serve::bind(([127, 0, 0, 1], 0).into())?;
        let address = listener.local_addr()?.to_string();
        let (shutdown, signals) = Shutdown::on_signals()?;
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _signals = signals;
            serve::serve(listener, Transport::Tls(Arc::new(config)), router, shutdown).await
        });
        Ok(Self { address, lines, _server: server })
    }

    /// Sends a log line as a client that has this certificate and trusts these authorities.
    ///
    /// # Errors
    /// One side refuses the other.
    pub async fn send(
        &self,
        tls: Option<&TlsMaterial>,
        authorities: &str,
        line: &str,
    ) -> anyhow::Result<()> {
        let client = self.client(tls, authorities)?;
        let record = json!({"body": {"stringValue": line}});
        let body = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]});
        let body = SecretBytes::new(body.to_string().into_bytes());
        let post = http::Method::POST;
        let reply = client.call(post, LOGS, &[], Some(&body)).await?;
        anyhow::ensure!(reply.status == 200, "the sink answered {}", reply.status);
        Ok(())
    }

    fn client(&self, tls: Option<&TlsMaterial>, authorities: &str) -> anyhow::Result<Http> {
        let certificate = Arc::new(Certificate::default());
        if let Some(tls) = tls {
            let key = SecretBytes::new(tls.private_key.clone());
            certificate.replace(tls.certificate_chain.as_bytes(), &key)?;
        }
        self.with(certificate.client_config(authorities.as_bytes())?)
    }

    /// A client with this configuration.
    ///
    /// # Errors
    /// Never: the name is valid.
    pub fn with(&self, config: ClientConfig) -> anyhow::Result<Http> {
        Ok(Http::new(Target::tls(&self.address(), Arc::new(config))?, DEADLINE))
    }

    /// Host, as its certificate names it, and port.
    pub fn address(&self) -> String {
        let port = self.address.rsplit(':').next().unwrap_or_default();
        format!("localhost:{port}")
    }

    /// The lines received.
    pub fn received(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn roots(authorities: &str) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.context("cannot read the authorities")?)?;
    }
    Ok(roots)
}

async fn take(State(lines): State<Lines>, Json(logs): Json<Value>) -> Json<Value> {
    let records = logs["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array();
    let texts =
        records.into_iter().flatten().filter_map(|record| record["body"]["stringValue"].as_str());
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.extend(texts.map(str::to_owned));
    drop(lines);
    // Everything was taken (OTLP 1.9, "Full Success").
    Json(json!({}))
}
