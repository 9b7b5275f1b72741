//! Errors of connections.

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
    /// The handshake took too long.
    #[error("the handshake took longer than {0:?}")]
    TimedOut(Duration),
    /// TLS could not be set up.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
    /// A client without a validator was asked to connect.
    #[error("there is no validator for the server")]
    NoValidator,
    /// The peer sent no nonce, or more than one.
    #[error("the peer sent no nonce, so no evidence can be created for it")]
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
    /// The document was created for another key.
    #[error("the attestation document is for a key other than the certificate's")]
    OtherKey,
    /// Our document.
    #[error("cannot create this end's attestation document")]
    Issue(#[source] IssueError),
    /// Too many documents are being created at the same time.
    #[error("too many attestation documents are being created")]
    Busy,
    /// A thread that creates documents terminated.
    #[error("attested TLS failed: an internal task panicked or was canceled")]
    Thread,
    /// The peer cannot send evidence over the connection, which is required.
    #[error("the peer sends no evidence over this connection")]
    Unbound,
    /// Sending or receiving the documents over this connection.
    #[error("cannot exchange evidence over this connection")]
    Exchange(#[source] io::Error),
    /// The peer's document over this connection has an impossible size.
    #[error("the evidence over this connection has an invalid length of {0} bytes")]
    ExchangeSize(usize),
    /// The peer sent a frame without a document.
    #[error("the peer sent an empty attestation document")]
    NoEvidence,
    /// No validator handles this type of document.
    #[error("the peer's attestation document has a type that is not accepted, {found:?}")]
    OtherVariant {
        /// Identifier of the type, if it is one.
        found: Option<String>,
    },
    /// The document belongs to another connection, key or role.
    #[error("the evidence is for another connection: it was relayed")]
    Relayed,
}

impl AtlsError {
    /// Replaces rustls errors with our own if we have a better one.
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
