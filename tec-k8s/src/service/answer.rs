//! What callers ask for and get, as values.

use std::collections::BTreeMap;

use tec_core::secret::SecretBytes;
use tec_core::service::nats::{Nonce, PublicKey};
use tec_core::service::tls::{Material, SigningRequest};
use tec_core::time::Timestamp;

/// What a NATS server gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct NatsServer {
    /// JWT of the operator.
    pub operator: String,
    /// Key of the system account.
    pub system_account: PublicKey,
    /// JWTs of accounts, by their key.
    pub accounts: BTreeMap<PublicKey, String>,
    /// The server's certificate.
    pub tls: Material,
}

/// What an OpenSearch node gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenSearchNode {
    /// The node's certificate.
    pub node: Material,
    /// The certificate that may do everything.
    pub admin: Material,
    /// bcrypt hashes, by the name of the user.
    pub hashes: BTreeMap<String, String>,
}

/// What the broker of a component asks for.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "every part is the caller's decision")]
pub struct ComponentCall {
    /// The user's own key; without one the vault keeps a key.
    pub user: Option<PublicKey>,
    /// What the key that the vault keeps shall sign.
    pub nonce: Option<Nonce>,
    /// For the broker's own key of TLS; without it the vault makes one.
    pub certificate: Option<SigningRequest>,
}

/// What the broker of a component gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct Component {
    /// JWT of the user.
    pub user_jwt: String,
    /// Whose JWT it is.
    pub user: PublicKey,
    /// Over the nonce, if there was one.
    pub signature: Option<[u8; 64]>,
    /// When the JWT ends.
    pub expires: Timestamp,
    /// Name of the user.
    pub name: String,
    /// The broker's certificate.
    pub tls: Material,
}

/// Which side of telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are these three")]
pub enum TelemetryKind {
    /// Receives.
    Collector,
    /// Sends.
    Sender,
    /// Reads.
    Viewer,
}

/// What a collector, sender or viewer gets.
#[derive(Debug)]
#[non_exhaustive]
pub struct Telemetry {
    /// Its certificate; none for a viewer.
    pub tls: Option<Material>,
    /// Password of the user `telemetry` for collectors, of the user `viewer` for viewers.
    pub password: Option<SecretBytes>,
}
