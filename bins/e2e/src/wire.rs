//! Requests that no honest node sends: a manually driven attestation, for attack scenes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use rustls::crypto::CryptoProvider;
use serde_json::{Value, json};
use tec_core::endpoint::Endpoint;
use tec_core::port::Attester;
use tec_trustee::report_data;
use tec_trustee::report_data::HashAlgorithm;

/// The provider of TLS.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A client that trusts only the pinned CA.
pub fn client(ca: &str) -> anyhow::Result<reqwest::Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder().timeout(Duration::from_secs(20));
    if !ca.is_empty() {
        builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(ca.as_bytes())?);
    }
    Ok(builder.build()?)
}

/// Status and JSON of a response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body; null if it is not JSON.
    pub body: Value,
}

impl Reply {
    /// The code in any member of the response.
    pub fn code(&self) -> String {
        let text = self.body.to_string();
        let Some(start) = text.find("TEC-") else {
            return format!("HTTP {}", self.status);
        };
        let code = text.get(start..).unwrap_or_default();
        code.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
    }
}

async fn reply(response: reqwest::Response) -> anyhow::Result<Reply> {
    let status = response.status().as_u16();
    let text = response.text().await?;
    Ok(Reply { status, body: serde_json::from_str(&text).unwrap_or(Value::Null) })
}

/// GET of a URL.
pub async fn get(ca: &str, url: &str) -> anyhow::Result<Reply> {
    get_with(&client(ca)?, url).await
}

/// Same as [`get`], with a client that keeps its connections.
pub async fn get_with(client: &reqwest::Client, url: &str) -> anyhow::Result<Reply> {
    reply(client.get(url).send().await?).await
}

/// PUT of JSON.
pub async fn put(ca: &str, url: &str, body: &Value) -> anyhow::Result<Reply> {
    put_with(&client(ca)?, url, body).await
}

/// Same as [`put`], with a client that keeps its connections.
pub async fn put_with(client: &reqwest::Client, url: &str, body: &Value) -> anyhow::Result<Reply> {
    let request = client.put(url).header(CONTENT_TYPE, "application/json");
    reply(request.body(body.to_string()).send().await?).await
}

/// A key for encrypting answers; no one has its private half, and no one needs it.
pub fn some_pubkey() -> Value {
    // The generator of P-256 (SEC 2, section 2.4.2): a point on the curve.
    json!({
        "kty": "EC", "crv": "P-256", "alg": "ECDH-ES+A256KW",
        "x": "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY",
        "y": "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU",
    })
}

/// An open session with a key broker.
#[derive(Debug)]
pub struct Session {
    client: reqwest::Client,
    base: String,
    cookie: String,
    nonce: String,
}

/// The evidence that a node sends, and a key for the answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// The key that answers are encrypted to.
    pub tee_pubkey: Value,
    /// The evidence.
    pub evidence: Value,
}

impl Session {
    /// Opens a session.
    pub async fn open(kbs: &Endpoint) -> anyhow::Result<Self> {
        Self::open_with(client(&kbs.cert)?, kbs).await
    }

    /// Same as [`open`](Self::open), with a client that keeps its connections.
    pub async fn open_with(client: reqwest::Client, kbs: &Endpoint) -> anyhow::Result<Self> {
        let base = format!("{}/kbs/v0", kbs.url);
        let body = json!({ "version": "0.4.0", "tee": "tpm", "extra-params": {} });
        let response = client
            .post(format!("{base}/auth"))
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string())
            .send()
            .await?;
        let cookie = response.headers().get(SET_COOKIE).context("no session cookie")?;
        let cookie = cookie.to_str()?.split(';').next().unwrap_or_default().to_owned();
        let challenge: Value = serde_json::from_str(&response.text().await?)?;
        let nonce = challenge["nonce"].as_str().context("no nonce")?.to_owned();
        Ok(Self { client, base, cookie, nonce })
    }

    /// Produces honest evidence for this session.
    pub async fn prove(&self, attester: &dyn Attester, tee_pubkey: Value) -> anyhow::Result<Proof> {
        let report_data =
            report_data::primary(&self.nonce, &tee_pubkey, "", HashAlgorithm::Sha384)?;
        let made = attester.attest(&report_data).await?;
        Ok(Proof { tee_pubkey, evidence: made.evidence })
    }

    /// Sends evidence, honest or not.
    pub async fn attest(&self, proof: &Proof) -> anyhow::Result<Reply> {
        let body = json!({
            "init-data": null,
            "runtime-data": { "nonce": self.nonce, "tee-pubkey": proof.tee_pubkey },
            "tee-evidence": { "primary_evidence": proof.evidence, "additional_evidence": "" },
        });
        let request = self
            .client
            .post(format!("{}/attest", self.base))
            .header(COOKIE, &self.cookie)
            .header(CONTENT_TYPE, "application/json");
        reply(request.body(body.to_string()).send().await?).await
    }

    /// Requests a resource.
    pub async fn resource(&self, path: &str) -> anyhow::Result<Reply> {
        let url = format!("{}/resource/{path}", self.base);
        reply(self.client.get(url).header(COOKIE, &self.cookie).send().await?).await
    }
}
