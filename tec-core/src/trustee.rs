//! Patching the configuration of a Trustee deployment.

use std::fmt;

/// What the configuration shall say, whatever its generation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrusteeIntent {
    /// Where the KBS listens, for example `0.0.0.0:8080`.
    pub socket: String,
    /// Certificate and private key files; `None` is plain HTTP.
    pub tls: Option<(String, String)>,
    /// Private key and certificate chain that sign attestation tokens.
    pub token_signer: (String, String),
    /// Certificates that attestation tokens must chain to.
    pub trusted_certs: Vec<String>,
    /// Public key that admin tokens are verified with; `None` closes the admin API.
    pub admin_public_key: Option<String>,
    /// Audience that admin tokens must name; any where absent. Read from v0.21 on.
    pub admin_audience: Option<String>,
    /// Directory for what the KBS stores; in the mounted form, the one below which files are
    /// mounted.
    pub storage_dir: String,
    /// Directory of trusted attestation keys; read by the mounted form only.
    pub ak_dir: String,
    /// Most attestation keys that the mounted form loads.
    pub max_aks: u32,
}

/// How a configuration came out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum Patched {
    /// It says what was intended already.
    Unchanged,
    /// The new text.
    Changed(String),
}

/// A configuration cannot be patched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// The text does not parse.
    #[error("the KBS configuration does not parse")]
    Parse(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A key has a type that this generation does not know.
    #[error("the key {key} of the KBS configuration is not a table")]
    Shape {
        /// Dotted name of the key.
        key: String,
    },
}

/// Patches a Trustee configuration so that it says what is intended, and nothing insecure.
///
/// *Contract*: keys that it does not know are kept; patching twice changes nothing; the same input
/// gives the same bytes. *Implemented by* `tec_trustee::config`, one per schema generation.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait TrusteeConfigurator: fmt::Debug + Send + Sync {
    /// Patches `current`; an empty text makes a new configuration.
    fn patch(&self, current: &str, intent: &TrusteeIntent) -> Result<Patched, PatchError>;
}

impl TrusteeIntent {
    /// An intent with the admin API closed and without TLS files.
    pub fn new(
        socket: impl Into<String>,
        token_signer: (String, String),
        trusted_certs: Vec<String>,
        storage_dir: impl Into<String>,
    ) -> Self {
        Self {
            socket: socket.into(),
            tls: None,
            token_signer,
            trusted_certs,
            admin_public_key: None,
            admin_audience: None,
            storage_dir: storage_dir.into(),
            ak_dir: "/etc/tpm/trusted_ak_keys".to_owned(),
            max_aks: 10_000,
        }
    }
}
