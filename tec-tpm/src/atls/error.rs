//! Why a connection did not come about.

use std::io;
use std::time::Duration;

use rustls::AlertDescription;

use super::{IssueError, PeerCertificateError, ValidateError};

/// A handshake failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtlsError {
    /// TLS itself, or the transport under it.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// It took too long.
    #[error("the handshake took longer than {limit:?}")]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// TLS could not be set up.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    /// A client that judges no server was told to connect.
    #[error("no validator judges the server")]
    NoValidator,
    /// The peer sent no nonce, or more than one.
    #[error("the peer sent no nonce, so that no evidence can be made for it")]
    NoNonce,
    /// The peer sent no certificate.
    #[error("the peer sent no certificate")]
    NoCertificate,
    /// The peer's certificate.
    #[error("the peer's certificate was refused")]
    Certificate(#[source] PeerCertificateError),
    /// Its document.
    #[error("the peer's attestation document was refused")]
    Document(#[source] ValidateError),
    /// The document was made for another key.
    #[error("the attestation document was made for another key than the certificate's")]
    OtherKey,
    /// Our document.
    #[error("our attestation document could not be made")]
    Issue(#[source] IssueError),
    /// More documents are being made than are allowed at once.
    #[error("too many attestation documents are being made")]
    Busy,
    /// A thread that makes documents ended.
    #[error("the thread of the handshake ended early")]
    Thread,
    /// The peer cannot send evidence over the connection, and it is demanded.
    #[error("the peer sends no evidence over this connection")]
    Unbound,
    /// Sending or receiving the documents over this connection.
    #[error("the evidence over this connection could not be exchanged")]
    Exchange(#[source] io::Error),
    /// The peer's document over this connection has a size that none has.
    #[error("the evidence over this connection has {length} bytes")]
    ExchangeSize {
        /// What was announced.
        length: usize,
    },
    /// The peer sent a frame without document.
    #[error("the peer proves nothing")]
    NoEvidence,
    /// No validator is for this sort of document.
    #[error("the peer's attestation document is of no accepted sort; its identifier is {found:?}")]
    OtherVariant {
        /// Identifier of the sort, where it is one.
        found: Option<String>,
    },
    /// The document is over another connection, or for another key or role.
    #[error("the evidence is over another connection: somebody relays it")]
    Relayed,
}

impl AtlsError {
    /// What rustls says by errors of its own is told by ours.
    pub(super) fn handshake(error: io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
        match tls {
            Some(
                rustls::Error::NoApplicationProtocol
                | rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol),
            ) => Self::Unbound,
            Some(rustls::Error::NoCertificatesPresented) => Self::NoCertificate,
            _ => Self::Handshake(error),
        }
    }
}
