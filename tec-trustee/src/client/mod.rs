//! The client side of the attestation handshake (KBS attestation protocol 0.4.0).
//!
//! ```text
//! for each server: POST auth ─► Attester ─► POST attest ─► GET resource ─► open the JWE
//!                    ▲── once more, if the session is no longer accepted ─────────┘
//! ```
//! [`RcarClient::token`] stops after `attest`, to show what a server found.
//!
//! A [`RcarClient`] makes one round over its servers; [`RetryPolicy::rounds`] makes several, and needs
//! tokio's timers to wait between them. It selects no TLS provider, and keeps its session cookie itself,
//! ignoring the expiry that the server sets: the clock of a node in its initrd may be wrong.

mod error;
pub(crate) mod http;
mod outcome;
mod retry;
mod sample;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_core::rotation::KeyMark;
use tec_core::secret::SecretBytes;

pub use self::error::{CallError, RcarError, SetupError, Stage};
pub use self::http::tls_code;
use self::http::{Call, Server};
pub use self::outcome::Outcome;
pub use self::retry::RetryPolicy;
pub use self::sample::SampleAttester;
pub use self::tls::tls_config;
use crate::authority;
use crate::authority::{Bundle, Recorded, Trusts};
use crate::jwe::{Curve, EcPrivateKey, Jwe};
use crate::next_boot;
use crate::next_boot::{Answer, Question};
use crate::report_data;
use crate::report_data::HashAlgorithm;
use crate::rotation;
use crate::rotation::{Kept, Report, Which};
use crate::wire::{AttestRequest, AttestResponse, AuthRequest, Challenge, Escrowed, RuntimeData};

/// Deadlines of one HTTP call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlines {
    /// For the connection, including its TLS handshake.
    pub connect: Duration,
    /// For the whole call; the existing client waits this long too (KBS attestation protocol 0.4.0).
    pub call: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), call: Duration::from_mins(1) }
    }
}

impl Deadlines {
    /// Deadlines other than the defaults (10 and 60 seconds).
    pub fn new(connect: Duration, call: Duration) -> Self {
        Self { connect, call }
    }
}

/// Fetches resources from the first server that releases them.
pub struct RcarClient {
    servers: Vec<Server>,
    entropy: Arc<dyn Entropy>,
}

impl fmt::Debug for RcarClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = self.servers.iter().map(|server| &server.url);
        f.debug_list().entries(urls).finish()
    }
}

/// An attested session.
struct Session {
    key: EcPrivateKey,
    cookie: String,
}

impl RcarClient {
    /// A client for `servers`, tried in this order. An HTTPS server is verified against its CA bundle alone
    /// or, without one, against the platform's roots.
    ///
    /// # Security
    /// Plain HTTP is used if a server's address says so, with a warning. The resource is still encrypted to a
    /// key that the evidence binds, but anyone on the network path can answer.
    pub fn new(
        servers: &[Endpoint],
        deadlines: Deadlines,
        provider: &Arc<CryptoProvider>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, SetupError> {
        if servers.is_empty() {
            return Err(SetupError::NoServer);
        }
        let servers = servers
            .iter()
            .map(|endpoint| Server::new(endpoint, deadlines, provider))
            .collect::<Result<_, _>>()?;
        Ok(Self { servers, entropy })
    }

    /// Attests and fetches a resource; one round over all servers.
    ///
    /// # Errors
    /// The most informative error of all servers: a denial ranks before a malformed answer, which ranks
    /// before an unreachable server.
    ///
    /// # Cancel safety
    /// Nothing changes on this side; the server drops the session by itself.
    pub async fn fetch(
        &self,
        path: &ResourcePath,
        attester: &dyn Attester,
    ) -> Result<SecretBytes, RcarError> {
        self.round(|server| self.fetch_from(server, path, attester)).await
    }

    /// Attests, and returns the attestation token of the first server that issues one.
    /// [`token_claims`](crate::wire::token_claims) shows its claims.
    ///
    /// # Security
    /// Anyone who holds both the token and the session key, which never leaves this client, obtains what the
    /// session may obtain.
    pub async fn token(&self, attester: &dyn Attester) -> Result<String, RcarError> {
        self.round(|server| async {
            let (_, token) = self.handshake(server, attester).await?;
            Ok(token)
        })
        .await
    }

    /// Attests, and deposits a recovery key with the first server that accepts it; returns its number there.
    /// Trustee itself accepts none.
    ///
    /// # Cancel safety
    /// A server may have kept the key. Depositing another one is fine.
    pub async fn escrow(&self, sealed: &Jwe, attester: &dyn Attester) -> Result<u32, RcarError> {
        let kept: Escrowed = self.put("escrow", sealed, attester).await?;
        Ok(kept.number)
    }

    /// Attests, and fetches one of the disk keys whose current one is at `path`. A server that rotates no keys
    /// returns the current one. After the initramfs, a machine shows the mark of a key that it has.
    pub async fn fetch_key(
        &self,
        path: &ResourcePath,
        (which, shown): (Which, Option<KeyMark>),
        attester: &dyn Attester,
    ) -> Result<SecretBytes, RcarError> {
        self.round(|server| async {
            let (session, _) = self.handshake(server, attester).await?;
            let place = format!("resource/{path}{}", which.query());
            let call = Call::get(&place, &session.cookie).with_shown(shown);
            opened(server, &session, call).await
        })
        .await
    }

    /// Attests, and asks the first server that answers which disk keys of this machine it keeps.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch). A server that rotates no keys denies it, as Trustee does.
    pub async fn rotation(&self, attester: &dyn Attester) -> Result<Kept, RcarError> {
        self.round(|server| async {
            let (session, _) = self.handshake(server, attester).await?;
            let (kept, _): (Kept, _) =
                server.call(Call::get(rotation::PLACE, &session.cookie)).await?;
            Ok(kept)
        })
        .await
    }

    /// Attests, and confirms a step of a rotation. Returns what the server keeps afterwards.
    ///
    /// # Cancel safety
    /// The server may have taken it. Confirming again is fine.
    pub async fn confirm_rotation(
        &self,
        report: &Report,
        attester: &dyn Attester,
    ) -> Result<Kept, RcarError> {
        self.put(rotation::PLACE, report, attester).await
    }

    /// Attests, and asks whether a predicted boot would be accepted. Nothing changes at the server.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch). A server that judges no boots in advance denies it, as Trustee does.
    pub async fn next_boot(
        &self,
        question: &Question,
        attester: &dyn Attester,
    ) -> Result<Answer, RcarError> {
        self.put(next_boot::PLACE, question, attester).await
    }

    /// The CA certificates (PEM) that nodes should trust for the first server that answers; `None` if it
    /// provides none, as Trustee does.
    ///
    /// # Security
    /// The answer is only as trustworthy as the server that the trusted CA vouches for.
    pub async fn authorities(&self) -> Result<Option<String>, RcarError> {
        let asked = self.round(|server| async {
            let (bundle, _): (Bundle, _) = server.call(Call::open(authority::PLACE)).await?;
            Ok(bundle.certificates)
        });
        match asked.await {
            Ok(certificates) => Ok(Some(certificates)),
            Err(RcarError::Denied { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Attests, and reports to the first server that records it which CAs this machine's pin trusts.
    ///
    /// # Cancel safety
    /// The server may have recorded it. Reporting again is fine.
    pub async fn report_trust(
        &self,
        sha256: &BTreeSet<Sha256Digest>,
        attester: &dyn Attester,
    ) -> Result<(), RcarError> {
        let trusts = Trusts { sha256: sha256.clone() };
        let Recorded {} = self.put(authority::PLACE, &trusts, attester).await?;
        Ok(())
    }

    /// Attests, and sends `body` to the first server that takes it.
    async fn put<T: DeserializeOwned>(
        &self,
        place: &str,
        body: &(impl Serialize + Sync),
        attester: &dyn Attester,
    ) -> Result<T, RcarError> {
        self.round(|server| async {
            let (session, _) = self.handshake(server, attester).await?;
            let (answer, _) = server.call(Call::put(place, body, &session.cookie)).await?;
            Ok(answer)
        })
        .await
    }

    /// Asks each server in order until one answers the request.
    async fn round<'a, T, F>(&'a self, ask: impl Fn(&'a Server) -> F) -> Result<T, RcarError>
    where
        F: Future<Output = Result<T, RcarError>>,
    {
        let mut worst: Option<RcarError> = None;
        for server in &self.servers {
            let error = match ask(server).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tracing::warn!(
                server = %server.url,
                code = %error.code(),
                error = tec_core::port::chain(&error),
                "this server gave no key"
            );
            // A failing attester would fail for the next server as well.
            let done = matches!(error, RcarError::Attester(_));
            if worst.as_ref().is_none_or(|worst| error.weight() > worst.weight()) {
                worst = Some(error);
            }
            if done {
                break;
            }
        }
        Err(worst.unwrap_or(RcarError::NoServer))
    }

    /// A session that is no longer accepted is renewed once; a denial is final.
    async fn fetch_from(
        &self,
        server: &Server,
        path: &ResourcePath,
        attester: &dyn Attester,
    ) -> Result<SecretBytes, RcarError> {
        let (session, _) = self.handshake(server, attester).await?;
        match resource(server, &session, path).await {
            Err(error) if error.is_stale_session() => {
                tracing::info!(server = %server.url, "attesting once more");
                let (session, _) = self.handshake(server, attester).await?;
                resource(server, &session, path).await
            }
            other => other,
        }
    }

    /// The session, and the token that vouches for it.
    async fn handshake(
        &self,
        server: &Server,
        attester: &dyn Attester,
    ) -> Result<(Session, String), RcarError> {
        let algorithms = HashAlgorithm::ALL.map(HashAlgorithm::as_str);
        let extra = serde_json::json!({"supported-hash-algorithms": algorithms});
        let auth = AuthRequest::new(attester.tee().as_str(), extra);
        let (challenge, cookie): (Challenge, _) =
            server.call(Call::post("auth", &auth, None)).await?;
        let cookie = cookie.ok_or_else(|| server.malformed("the session cookie"))?;

        let key = EcPrivateKey::generate(Curve::P256, &mut EntropyRng::new(&*self.entropy));
        let tee_pubkey =
            serde_json::to_value(key.public()).map_err(|_| server.malformed("the session key"))?;
        let algorithm = selected_algorithm(&challenge.extra_params)
            .ok_or_else(|| server.malformed("selected-hash-algorithm"))?;
        let report_data = report_data::primary(&challenge.nonce, &tee_pubkey, "", algorithm)
            .map_err(|_| server.malformed("the nonce"))?;
        let evidence = attester.attest(&report_data).await.map_err(RcarError::Attester)?;

        let runtime_data = RuntimeData::new(challenge.nonce, tee_pubkey);
        let request = AttestRequest::new(runtime_data, evidence.evidence);
        let (answer, renewed): (AttestResponse, _) =
            server.call(Call::post("attest", &request, Some(&cookie))).await?;
        let cookie = renewed.unwrap_or(cookie);
        Ok((Session { key, cookie }, answer.token))
    }
}

async fn resource(
    server: &Server,
    session: &Session,
    path: &ResourcePath,
) -> Result<SecretBytes, RcarError> {
    let place = format!("resource/{path}");
    opened(server, session, Call::get(&place, &session.cookie)).await
}

/// What a call returns for this session alone.
async fn opened(
    server: &Server,
    session: &Session,
    call: Call<'_>,
) -> Result<SecretBytes, RcarError> {
    let (jwe, _): (Jwe, _) = server.call(call).await?;
    session
        .key
        .decrypt(&jwe)
        .map_err(|source| RcarError::Jwe { server: server.url.clone(), source })
}

/// SHA-384 unless the server selects another algorithm; `None` if that one is unknown.
fn selected_algorithm(extra_params: &Value) -> Option<HashAlgorithm> {
    match extra_params.get("selected-hash-algorithm") {
        None | Some(Value::Null) => Some(HashAlgorithm::Sha384),
        Some(name) => HashAlgorithm::by_name(name.as_str()?),
    }
}
