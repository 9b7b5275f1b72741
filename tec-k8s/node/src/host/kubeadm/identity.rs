//! The kubelet's key, and the CA that signs for it.

use std::fmt;
use std::path::Path;

use tec_core::port::PortError;
use tec_core::secret::SecretBytes;

use crate::ticket::CaPin;

/// The kubelet's key, and the request for its certificate.
#[derive(Debug)]
pub struct KubeletKey {
    /// Private key, PEM.
    pub private: SecretBytes,
    /// PKCS #10, DER: `O=system:nodes, CN=system:node:<name>`.
    pub request: Vec<u8>,
}

/// Signs this node's own request with a CA that it just created.
pub trait KubeletIdentity: fmt::Debug + Send + Sync {
    /// Key and request.
    fn key(&self) -> &KubeletKey;

    /// Whether a certificate, PEM, is for exactly this key.
    fn is_of(&self, certificate: &str) -> bool;

    /// Whether a PEM file is exactly one certificate, with the pinned key.
    fn is_pinned(&self, ca: &[u8], pin: &CaPin) -> bool;

    /// Certificate for the request, PEM, signed with `ca.crt` and `ca.key` in this directory.
    fn certify(&self, pki: &Path) -> Result<String, PortError>;
}
