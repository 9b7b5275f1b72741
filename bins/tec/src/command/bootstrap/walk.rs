//! Follows a node through its first boot, as far as possible without a TPM.

use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::{Value, json};
use tec_core::endpoint::Endpoint;
use tec_core::id::MachineId;
use tec_core::ignition::{AkRegistration, PinConfig};

use crate::output::Check;

/// Timeout of a request. A node waits longer; an admin who sets up a server need not.
const DEADLINE: Duration = Duration::from_secs(10);
/// Largest response to read; an Ignition config with a few CA bundles.
const MAX_ANSWER: usize = 1 << 20;
/// Prefix of a CA within a config (RFC 2397), as written by `render_merge`.
const DATA: &str = "data:;base64,";

/// The results of the checks so far.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) checks: Vec<Check>,
    /// The machine that was registered for the check.
    pub(super) machine: Option<MachineId>,
}

/// Goes from the installer's config to every server that a node would contact.
pub(super) async fn walk(config: &Value) -> Seen {
    // Fails only if a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let registered = register(config).await;
    let said = |pin: &PinConfig| format!("a pin for {}", pin.path);
    let (pin, found) = match registered {
        Ok(pin) => (Some(pin.clone()), Ok(said(&pin))),
        Err(error) => (None, Err(error)),
    };
    let mut checks = vec![Check::of("registration", found)];
    let Some(pin) = pin else {
        return Seen { checks, machine: None };
    };
    if let Some(key) = &pin.attestation_key {
        let found = ask_for_keys(&key.registration).await;
        let what = format!("attestation keys at {}", key.registration.url);
        checks.push(Check::of(what, found));
    } else {
        let found = Err(anyhow::anyhow!(
            "nodes do not receive the address for registering an attestation key"
        ));
        checks.push(Check::of("attestation keys", found));
    }
    for (number, server) in pin.servers.iter().enumerate() {
        let what = format!("key broker {}", server.url);
        // Servers after the first may come up later; but any that answers must be acceptable to nodes.
        let found = if number > 0 && !is_there(server).await {
            Ok("nobody answers there yet".to_owned())
        } else {
            open_session(server).await
        };
        checks.push(Check::of(what, found));
    }
    Seen { checks, machine: pin.path.machine() }
}

/// The part of the config that a node follows.
struct Merge<'a> {
    url: &'a str,
    ca: String,
    token: Option<&'a str>,
}

fn merge(config: &Value) -> anyhow::Result<Merge<'_>> {
    let merge = config.pointer("/ignition/config/merge/0");
    let merge = merge.context("the config has no merge directive")?;
    let url = merge.get("source").and_then(Value::as_str);
    let ca = config.pointer("/ignition/security/tls/certificateAuthorities/0/source");
    let ca = match ca.and_then(Value::as_str) {
        Some(text) => {
            let body = text.strip_prefix(DATA).context("the CA is not a data URL")?;
            String::from_utf8(STANDARD.decode(body)?).context("the CA is not PEM")?
        }
        None => String::new(),
    };
    let token = merge.pointer("/httpHeaders/0/value");
    Ok(Merge {
        url: url.context("the merge directive has no source")?,
        ca,
        token: token.and_then(Value::as_str),
    })
}

/// A client that trusts exactly what the node trusts.
fn client(ca: &str) -> anyhow::Result<reqwest::Client> {
    let mut builder = reqwest::Client::builder()
        .timeout(DEADLINE)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none());
    if !ca.is_empty() {
        let roots = reqwest::Certificate::from_pem_bundle(ca.as_bytes());
        builder = builder.tls_certs_only(roots.context("cannot use the CA")?);
    }
    Ok(builder.build()?)
}

/// Status and body, if the server answered and its certificate was accepted.
async fn send(request: reqwest::RequestBuilder) -> anyhow::Result<(u16, String)> {
    let mut answer = request.send().await.map_err(|error| unreachable(&error))?;
    let status = answer.status().as_u16();
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        body.extend(part);
        anyhow::ensure!(body.len() <= MAX_ANSWER, "the answer is too long");
    }
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// The innermost cause, which an admin can act on.
fn unreachable(error: &reqwest::Error) -> anyhow::Error {
    let url = error.url().map_or("the server", reqwest::Url::as_str);
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    anyhow::anyhow!("cannot reach {url}: {cause}")
}

async fn register(config: &Value) -> anyhow::Result<PinConfig> {
    let merge = merge(config)?;
    let mut request = client(&merge.ca)?.get(merge.url);
    if let Some(token) = merge.token {
        request = request.header(AUTHORIZATION, token);
    }
    let (status, body) = send(request).await?;
    if status != 200 {
        bail!("{} returned HTTP status {status}: {body}", merge.url);
    }
    let config: Value = serde_json::from_str(&body).context("cannot parse the node's config")?;
    let pin = config.pointer("/storage/luks/0/clevis/custom/config");
    let pin = pin.and_then(Value::as_str);
    PinConfig::parse(pin.context("the node's config has no pin")?).context("cannot parse the pin")
}

/// Sends an invalid request, which is refused as malformed and changes nothing.
async fn ask_for_keys(registration: &AkRegistration) -> anyhow::Result<String> {
    let request = client(&registration.cert)?.put(&registration.url);
    let request = request.header(CONTENT_TYPE, "application/json").body("{}");
    match send(request).await? {
        (400 | 422, _) => Ok("answers".to_owned()),
        (status, body) => bail!("answers a malformed request with {status}: {body}"),
    }
}

/// Whether anything listens at the server's address.
async fn is_there(server: &Endpoint) -> bool {
    let Ok(url) = reqwest::Url::parse(server.url.as_str()) else {
        return true;
    };
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return true;
    };
    let host = host.trim_matches(['[', ']']);
    let connected = tokio::net::TcpStream::connect((host, port));
    matches!(tokio::time::timeout(DEADLINE, connected).await, Ok(Ok(_)))
}

/// Sends the first request of an attestation; the session that it opens expires by itself.
async fn open_session(server: &Endpoint) -> anyhow::Result<String> {
    let request = client(&server.cert)?.post(format!("{}/kbs/v0/auth", server.url));
    let body = json!({"version": "0.4.0", "tee": "tpm", "extra-params": {}});
    let request = request.header(CONTENT_TYPE, "application/json");
    let (status, body) = send(request.body(body.to_string())).await?;
    let challenge: Value = serde_json::from_str(&body).unwrap_or_default();
    if status != 200 || challenge.get("nonce").is_none() {
        bail!("returned HTTP status {status}: {body}");
    }
    Ok("gives a challenge".to_owned())
}

#[cfg(test)]
mod tests {
    use tec_core::ignition::{MergeSource, render_merge};

    use super::*;

    #[test]
    fn the_config_of_the_installer_is_read_back() {
        let url = "https://anchor.example:8000".parse().unwrap();
        let mut source = MergeSource::new(Endpoint::new(url, "-----BEGIN"));
        source.token = Some("secret-token-of-nodes".to_owned());
        let config = render_merge(&source).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let merge = merge(&config).unwrap();
        assert_eq!(merge.ca, "-----BEGIN");
        assert_eq!(merge.token, Some("Bearer secret-token-of-nodes"));
        assert!(merge.url.ends_with("/ignition-clevis-pin-trustee"));
    }

    #[test]
    fn a_config_without_a_merge_directive_is_refused() {
        assert!(merge(&json!({"ignition": {"version": "3.6.0"}})).is_err());
    }
}
