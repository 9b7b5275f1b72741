//! Requests of callers, and their answers, as values.

use std::collections::BTreeMap;

use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use crate::nats::{Nonce, PublicKey};
use crate::tls::{Material, SigningRequest};

/// What a NATS server receives.
#[derive(Debug)]
#[non_exhaustive]
pub struct NatsServer {
    /// JWT of the operator.
    pub operator: String,
    /// Key of the system account.
    pub system_account: PublicKey,
    /// JWTs of accounts, by their key.
    pub accounts: BTreeMap<PublicKey, String>,
    /// What an OpenSearch node receives.
    pub tls: Material,
}

/// The files that an OpenSearch node gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenSearchNode {
    /// The node's certificate.
    pub node: Material,
    /// The certificate with full access.
    pub admin: Material,
    /// bcrypt hashes, by name of the user.
    pub hashes: BTreeMap<String, String>,
}

/// What a component's broker requests.
#[derive(Clone, Debug, Default)]
pub struct ComponentCall {
    /// The user's own key; without one the vault keeps a key.
    pub user: Option<PublicKey>,
    /// The nonce that the key in the vault must sign.
    pub nonce: Option<Nonce>,
    /// Certificate request for the broker's own TLS key; without it, the vault generates a key.
    pub certificate: Option<SigningRequest>,
}

/// What a component's broker receives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Component {
    /// JWT of the user.
    pub user_jwt: String,
    /// The user that the JWT is for.
    pub user: PublicKey,
    /// Signature of the nonce, if there was one.
    pub signature: Option<[u8; 64]>,
    /// When the JWT expires.
    pub expires: Timestamp,
    /// Name of the user.
    pub name: String,
    /// The broker's certificate.
    pub tls: Material,
}

/// A role in telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelemetryKind {
    /// Receives.
    Collector,
    /// Sends.
    Sender,
    /// Reads.
    Viewer,
}

/// What a collector, sender or viewer receives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Telemetry {
    /// Its certificate; none for a viewer.
    pub tls: Option<Material>,
    /// Password of the user `telemetry` for collectors, of the user `viewer` for viewers.
    pub password: Option<SecretBytes>,
}
