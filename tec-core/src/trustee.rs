//! Patching the configuration of a Trustee deployment.

use std::fmt;

/// Settings that the configuration must contain, whatever its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrusteeIntent {
    /// Listening address of the KBS, for example `0.0.0.0:8080`.
    pub socket: String,
    /// Certificate and private key files; `None` means plain HTTP.
    pub tls: Option<(String, String)>,
    /// Private key and certificate chain that sign attestation tokens.
    pub token_signer: (String, String),
    /// Certificates that attestation tokens must chain to.
    pub trusted_certs: Vec<String>,
    /// Public key that verifies admin tokens; `None` disables the admin API.
    pub admin_public_key: Option<String>,
    /// Audience that admin tokens must name; any audience if absent.
    pub admin_audience: Option<String>,
    /// Directory where the KBS stores its data; in the mounted form, the directory below which its files are
    /// mounted.
    pub storage_dir: String,
}

/// Result of patching a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patched {
    /// It already contained the intended settings.
    Unchanged,
    /// The new text.
    Changed(String),
}

/// A configuration cannot be patched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// The text does not parse.
    #[error("the KBS configuration is malformed")]
    Parse(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A key has a type that the schema does not know.
    #[error("the key {0} of the KBS configuration is not a table")]
    Shape(String),
}

/// Patches a Trustee configuration so that it contains the intended settings and nothing insecure.
///
/// *Contract*: unknown keys are kept; patching twice changes nothing; the same input gives the same
/// bytes. *Implemented by* `tec_trustee::config::Schema`.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait TrusteeConfigurator: fmt::Debug + Send + Sync {
    /// Patches `current`; an empty text creates a new configuration.
    fn patch(&self, current: &str, intent: &TrusteeIntent) -> Result<Patched, PatchError>;
}

impl TrusteeIntent {
    /// An intent with the admin API disabled and without TLS files.
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
        }
    }
}
