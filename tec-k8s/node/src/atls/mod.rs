//! Attested TLS: connections whose sides prove with evidence what they are (feature `atls`).
//!
//! ```text
//!  client                                               server
//!  ClientHello, ALPN tec-atls-bind/1 ──────────────────►
//!                     ◄── certificates that carry keys ──►
//!  ◄──────────────────── a document over the exporter of this very connection
//!  judged; ours, over the same ────────────────────────►  judged
//! ```
//!
//! The document has the format of a [`Variant`]; an [`Issuer`] creates it and a [`Validator`]
//! verifies it. The document binds the role, the key of the certificate and a value that only this connection
//! has, so someone who stole a key cannot relay a document created for it.
//!
//! *Peers without support for this binding* are accepted with [`ChannelBinding::WherePeerCan`]. For them,
//! documents are in an extension of certificates that are created for one handshake, and bind nonces:
//!
//! ```text
//!  ClientHello, ALPN atls:v1:nonce:<64 hex>, h2 ──────►
//!                                       certificate: P-256 key, document in an extension
//!  document binds that key and our nonce ◄────────────  CertificateRequest, authority CN=<nonce>
//!  certificate with our document ─────────────────────►  binds our key and the server's nonce
//! ```
//! The user data of such a document is SHA-256 over the SubjectPublicKeyInfo.
//!
//! *What it is not*: it picks no cryptography provider, starts no task, and opens no socket. It
//! only speaks TLS 1.3.
//!
//! # Example
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(feature = "test-util")] {
//! use std::sync::Arc;
//! use tec_core::testing::{ManualClock, SeededEntropy};
//! use tec_core::time::Timestamp;
//! use tec_node::atls::{AnyAk, Endpoint, LiveMeasurements, Measurements, Variant};
//! use tec_node::atls::{VtpmIssuer, VtpmValidator};
//! use tec_tpm::testing::SoftTpm;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let provider = Arc::new(rustls::crypto::ring::default_provider());
//! let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_767_225_600)));
//! let builder = |seed| Endpoint::builder(
//!     Arc::clone(&provider), clock.clone(), Arc::new(SeededEntropy::new(seed)));
//!
//! let tpm = Arc::new(SoftTpm::p256(7));
//! let server = builder(1).with_issuer(Arc::new(VtpmIssuer::new(Variant::QemuVtpm, tpm))).build()?;
//! let good = Arc::new(LiveMeasurements::new(Measurements::from_json(br#"{
//!     "15": {"expected": "0000000000000000000000000000000000000000000000000000000000000000"}
//! }"#)?));
//! let validator = VtpmValidator::new(Variant::QemuVtpm, Arc::new(AnyAk), good);
//! let client = builder(2).with_validator(Arc::new(validator)).build()?;
//!
//! let (near, far) = tokio::io::duplex(64 * 1024);
//! let (server, client) = tokio::join!(server.accept(near), client.connect(far));
//! assert_eq!(client?.peer().ok_or("no peer")?.variant(), Variant::QemuVtpm);
//! assert!(server?.peer().is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # }
//! # Ok(())
//! # }
//! ```

mod accept;
mod azure;
mod bind;
mod certificate;
mod challenge;
mod config;
mod connect;
mod der;
mod document;
mod endpoint;
mod error;
mod identity;
mod inner;
mod issue;
mod measurement;
mod nonce;
mod peer;
mod quoter;
mod service;
mod signatures;
mod stream;
mod validate;
mod variant;
mod verify;

pub use self::azure::{AzureSnpAk, HclSource};
pub use self::bind::ChannelBinding;
pub use self::certificate::PeerCertificateError;
pub use self::endpoint::{Endpoint, EndpointBuilder, EndpointError};
pub use self::error::AtlsError;
pub use self::issue::{IssueError, Issuer, Quoter, VtpmIssuer};
pub use self::measurement::{
    Expectation, LiveMeasurements, MeasurementError, Measurements, Mismatch, Mismatches, Severity,
};
pub use self::nonce::Nonce;
pub use self::peer::AttestedPeer;
pub use self::service::{ConnectError, Connector};
pub use self::stream::AtlsStream;
pub use self::validate::{
    AkTrust, AnyAk, EveryTrust, PinnedAks, ValidateError, Validated, Validator, VtpmValidator,
};
pub use self::variant::Variant;

/// Maximum size of an attestation document in bytes. rustls accepts no handshake message above
/// 65535 bytes, and the certificate around the document needs less than 1 KiB.
pub const MAX_DOCUMENT: usize = 60 * 1024;

#[cfg(test)]
mod tests;
