//! A TLS key that its owner generates and keeps: only the certificate request leaves the pod.

use anyhow::Context as _;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tec_core::secret::SecretBytes;
use tec_services::shell::client::TlsMaterial;

/// A key, and its certificate request.
#[derive(Debug)]
pub struct OwnKey {
    key: SecretBytes,
    request: String,
}

impl OwnKey {
    /// A new key on P-256, the curve that the vault certifies.
    pub fn generate() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        // The controller sets all names.
        params.distinguished_name = DistinguishedName::new();
        let pair = KeyPair::generate().context("cannot create a key")?;
        let request = params.serialize_request(&pair).context("cannot create a request")?;
        Ok(Self {
            request: request.pem().context("cannot create a request")?,
            key: SecretBytes::new(pair.serialize_pem().into_bytes()),
        })
    }

    /// The request for a certificate, in PEM.
    pub fn request(&self) -> String {
        self.request.clone()
    }

    /// The key as PKCS#8 PEM.
    pub fn into_key(self) -> SecretBytes {
        self.key
    }

    /// Puts the key where the controller would have put one from the vault.
    /// Errors: there is no certificate, or the controller sent a key although none was requested.
    pub fn complete(self, tls: Option<TlsMaterial>) -> anyhow::Result<TlsMaterial> {
        let mut tls = tls.context("the controller sent no certificate")?;
        anyhow::ensure!(
            tls.private_key.is_empty(),
            "the controller sent a key that was not requested"
        );
        tls.private_key = self.key.expose("its service reads it").to_vec();
        Ok(tls)
    }
}

#[cfg(test)]
mod tests {
    use tec_services::tls::SigningRequest;

    use super::*;

    #[test]
    fn what_is_sent_is_a_request_and_holds_no_key() {
        let own = OwnKey::generate().unwrap();
        assert!(own.request().parse::<SigningRequest>().is_ok());
        assert!(!own.request().contains("PRIVATE"));
        let sent = TlsMaterial { certificate_chain: "chain".to_owned(), ..TlsMaterial::default() };
        let complete = own.complete(Some(sent.clone())).unwrap();
        assert!(complete.private_key.starts_with(b"-----BEGIN PRIVATE KEY-----"));
        let foreign = TlsMaterial { private_key: b"key".to_vec(), ..sent };
        assert!(OwnKey::generate().unwrap().complete(Some(foreign)).is_err());
    }
}
