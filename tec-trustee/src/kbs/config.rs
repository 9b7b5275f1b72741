//! Configuration of a KBS.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tec_core::attest::Tee;
use tec_core::port::{Clock, Entropy, Verifier};
use tec_core::secret::SecretArray;

use super::intake::BODY_TIMEOUT;
use super::sample::SampleVerifier;
use super::{AdminAuth, Authorities, Backend};
use crate::token::TokenSigner;

/// Lifetime of a session in seconds (KBS attestation protocol 0.4.0).
pub const DEFAULT_SESSION_SECONDS: u32 = 300;
/// Lifetime of an attestation token in seconds (EAR, draft-ietf-rats-ear).
pub const DEFAULT_TOKEN_SECONDS: u32 = 300;
/// Maximum number of sessions at a time; an unfinished one takes about 300 bytes.
pub const DEFAULT_MAX_SESSIONS: usize = 65_536;
/// Largest request body in bytes (Trustee, KBS configuration, `payload_request_size`).
pub const DEFAULT_MAX_PAYLOAD: usize = 2 * 1024 * 1024;

/// Configuration of a [`Kbs`](super::Kbs).
#[derive(Debug)]
pub struct KbsConfig {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) verifier: Arc<dyn Verifier>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) signer: TokenSigner,
    pub(super) tees: BTreeSet<Tee>,
    pub(super) admin: Option<AdminAuth>,
    pub(super) session_seconds: u32,
    pub(super) token_seconds: u32,
    pub(super) max_sessions: usize,
    pub(super) max_payload: usize,
    pub(super) body_timeout: Duration,
    pub(super) shared: Option<SecretArray<32>>,
    pub(super) authorities: Option<Arc<dyn Authorities>>,
}

impl KbsConfig {
    /// Accepts TPM evidence, has no admin API, and accepts the tokens of its own signer.
    pub fn new(
        backend: Arc<dyn Backend>,
        verifier: Arc<dyn Verifier>,
        signer: TokenSigner,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            backend,
            verifier,
            clock,
            entropy,
            signer,
            tees: BTreeSet::from([Tee::Tpm]),
            admin: None,
            session_seconds: DEFAULT_SESSION_SECONDS,
            token_seconds: DEFAULT_TOKEN_SECONDS,
            max_sessions: DEFAULT_MAX_SESSIONS,
            max_payload: DEFAULT_MAX_PAYLOAD,
            body_timeout: BODY_TIMEOUT,
            shared: None,
            authorities: None,
        }
    }

    /// Accepts evidence of these types. `Sample` is ignored here; see
    /// [`dangerous_accept_sample`](Self::dangerous_accept_sample).
    pub fn with_tees(mut self, tees: impl IntoIterator<Item = Tee>) -> Self {
        self.tees = tees.into_iter().filter(|tee| *tee != Tee::Sample).collect();
        self
    }

    /// Opens the admin API to tokens that `auth` accepts.
    pub fn with_admin(mut self, auth: AdminAuth) -> Self {
        self.admin = Some(auth);
        self
    }

    /// Lifetimes of sessions and tokens.
    pub fn with_lifetimes(mut self, session_seconds: u32, token_seconds: u32) -> Self {
        self.session_seconds = session_seconds;
        self.token_seconds = token_seconds;
        self
    }

    /// Bounds on sessions and on bytes per request. If the server reports the address of a client
    /// ([`ConnectInfo`](axum::extract::ConnectInfo)), one address, or one IPv6 /64 network, gets at most a
    /// quarter of the sessions.
    pub fn with_limits(mut self, max_sessions: usize, max_payload: usize) -> Self {
        self.max_sessions = max_sessions;
        self.max_payload = max_payload;
        self
    }

    /// Time limit for receiving a request's body (default 10 seconds).
    pub fn with_body_timeout(mut self, body_timeout: Duration) -> Self {
        self.body_timeout = body_timeout;
        self
    }

    /// Continues sessions that other replicas opened, and lets them continue ours. All replicas must have the
    /// same `key`, the same [`TokenSigner`], the same lifetimes, and the same backend behind them. Clocks may
    /// differ by up to a minute.
    ///
    /// Session cookies are then up to 4 KiB long instead of 32 hexadecimal digits.
    ///
    /// # Security
    /// Anyone who has `key` or the signer can obtain any disk key: keep both where the disk keys are. A nonce
    /// is single-use at each replica, but no longer across all of them. That does not give anyone a key: a
    /// replay yields a JWE for the session key that the evidence binds, which only its client has. To change
    /// the key, restart the replicas with a new one; clients then attest again.
    pub fn with_shared_sessions(mut self, key: SecretArray<32>) -> Self {
        self.shared = Some(key);
        self
    }

    /// Reports to nodes which CAs to trust for this server, and accepts their reports.
    pub fn with_authorities(mut self, authorities: Arc<dyn Authorities>) -> Self {
        self.authorities = Some(authorities);
        self
    }

    /// Accepts evidence that anyone can create.
    ///
    /// # Security
    /// For tests of the protocol only: the policies decide whether it obtains anything.
    pub fn dangerous_accept_sample(mut self) -> Self {
        tracing::warn!("sample evidence is accepted, which anybody can make");
        self.tees.insert(Tee::Sample);
        self.verifier = Arc::new(SampleVerifier { inner: self.verifier });
        self
    }
}
