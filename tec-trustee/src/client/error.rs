//! Errors, in classes that a node can act on.

use std::error::Error;

use tec_core::code::Code;
use tec_core::endpoint::BaseUrl;
use tec_core::id::AttemptId;
use tec_core::port::PortError;

use super::http::tls_code;
use crate::jwe::JweError;
use crate::wire::ErrorKind;

/// A client cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The list is empty.
    #[error("no server was given")]
    NoServer,
    /// The CA bundle of a server cannot be used.
    #[error("the CA bundle of {server} holds no usable certificate")]
    Ca {
        /// The server.
        server: BaseUrl,
        /// The cause, if there is more to report.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// TLS or the HTTP client cannot be set up.
    #[error("cannot set up the connection to {server}")]
    Client {
        /// The server.
        server: BaseUrl,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// A call got no usable answer: neither yes nor no.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server answered that it cannot serve now.
    #[error("{server} cannot serve at the moment (status {status})")]
    Unavailable {
        /// The server.
        server: BaseUrl,
        /// HTTP status.
        status: u16,
    },
    /// No connection, or no answer in time.
    #[error("{server} cannot be reached")]
    Unreachable {
        /// The server.
        server: BaseUrl,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The TLS handshake failed.
    #[error("cannot establish a TLS session with {server}")]
    Tls {
        /// The server.
        server: BaseUrl,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The answer does not come from a KBS.
    #[error("the answer of {server} is malformed at {at}")]
    Malformed {
        /// The server.
        server: BaseUrl,
        /// What is wrong with it.
        at: &'static str,
    },
}

impl CallError {
    fn code(&self) -> Code {
        match self {
            Self::Unavailable { .. } | Self::Unreachable { .. } => Code::ServerUnreachable,
            Self::Tls { source, .. } => tls_code(&**source).unwrap_or(Code::TlsFailed),
            Self::Malformed { .. } => Code::EvidenceMalformed,
        }
    }

    /// How informative the error is, as in [`RcarError::weight`].
    fn weight(&self) -> u8 {
        match self {
            Self::Unreachable { .. } => 1,
            Self::Tls { .. } => 2,
            Self::Unavailable { .. } => 3,
            Self::Malformed { .. } => 4,
        }
    }
}

/// A resource was not obtained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RcarError {
    /// The list of servers is empty.
    #[error("no server was given")]
    NoServer,
    /// The server refused.
    #[error("{server} refuses: {kind}{}", code.map(|code| format!(", {code}")).unwrap_or_default())]
    Denied {
        /// The server.
        server: BaseUrl,
        /// Type of refusal.
        kind: ErrorKind,
        /// The server's message, at most 512 characters.
        detail: String,
        /// The code, if the server is one of this project's.
        code: Option<Code>,
        /// The attempt, if the server is one of this project's; `tec explain` looks it up.
        attempt: Option<AttemptId>,
        /// Whether the server refused the resource or a step of the handshake.
        stage: Stage,
    },
    /// The server gave no usable answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The resource cannot be decrypted.
    #[error("the response of {server} cannot be decrypted")]
    Jwe {
        /// The server.
        server: BaseUrl,
        /// The cause.
        #[source]
        source: JweError,
    },
    /// The attester could not create evidence.
    #[error("cannot create evidence")]
    Attester(#[source] PortError),
}

/// Where a server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// During the handshake.
    Handshake,
    /// When the resource was requested.
    Resource,
}

impl RcarError {
    /// The code that tells users what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Denied { code: Some(code), .. } => *code,
            Self::Denied { kind, .. } => match kind {
                ErrorKind::PluginInternalError => Code::KeyMissing,
                ErrorKind::AttestationError => Code::QuoteInvalid,
                ErrorKind::PluginNotFound | ErrorKind::InvalidRequestPath => {
                    Code::EvidenceMalformed
                }
                _ => Code::ReleaseDenied,
            },
            Self::NoServer => Code::ServerUnreachable,
            Self::Call(error) => error.code(),
            Self::Jwe { .. } => Code::EvidenceMalformed,
            Self::Attester(error) => error.code().unwrap_or(Code::NodeTpm),
        }
    }

    /// Whether another round may succeed. It will not if a server denied for a reason that waiting does not
    /// change. A key that waits for approval and a store that is down are worth waiting for.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Denied { kind, code, .. } => match code {
                Some(code) => {
                    matches!(code, Code::AkNotBound | Code::StoreUnavailable | Code::StoreFull)
                }
                None => !matches!(kind, ErrorKind::PolicyDeny | ErrorKind::PluginInternalError),
            },
            Self::NoServer => false,
            Self::Attester(error) => error.is_retryable(),
            _ => true,
        }
    }

    /// A refusal of the resource that a new session may overcome (guest-components, KBS client).
    pub(super) fn is_stale_session(&self) -> bool {
        matches!(
            self,
            Self::Denied {
                kind: ErrorKind::TokenNotFound
                    | ErrorKind::TokenVerifierError
                    | ErrorKind::AttestationError,
                stage: Stage::Resource,
                ..
            }
        )
    }

    /// How informative the error is, compared with those of other servers.
    pub(super) fn weight(&self) -> u8 {
        match self {
            Self::NoServer => 0,
            Self::Call(error) => error.weight(),
            Self::Jwe { .. } => 4,
            Self::Denied { .. } => 5,
            Self::Attester(_) => 6,
        }
    }
}
