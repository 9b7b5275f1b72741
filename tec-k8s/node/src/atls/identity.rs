//! The key of our certificates.

use std::sync::Arc;

use p256::elliptic_curve::Generate as _;
use p256::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use tec_core::digest::Sha256Digest;
use tec_core::port::{Entropy, EntropyRng};
use tec_core::time::Timestamp;

use super::challenge::key_hash;
use super::{Variant, certificate};

/// A P-256 key that exists only in memory, for as long as its endpoint.
#[derive(derive_more::Debug)]
#[debug("LeafKey {{ key_hash: {key_hash:?}, .. }}")]
pub(super) struct LeafKey {
    signing: Arc<dyn SigningKey>,
    spki: Vec<u8>,
    pub(super) key_hash: Sha256Digest,
}

impl LeafKey {
    pub(super) fn generate(
        entropy: &dyn Entropy,
        provider: &CryptoProvider,
    ) -> Result<Self, rustls::Error> {
        let unusable = |_| rustls::Error::General("a new P-256 key cannot be encoded".to_owned());
        let key = p256::SecretKey::generate_from_rng(&mut EntropyRng::new(entropy));
        let spki = key
            .public_key()
            .to_public_key_der()
            .map_err(|_| rustls::Error::General("a new P-256 key cannot be encoded".to_owned()))?;
        let pkcs8 = key.to_pkcs8_der().map_err(unusable)?;
        // The provider copies the key; ours is wiped when `pkcs8` is dropped, and rustls wipes this
        // copy.
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_bytes().to_vec()));
        Ok(Self {
            signing: provider.key_provider.load_private_key(der)?,
            key_hash: key_hash(spki.as_bytes()),
            spki: spki.into_vec(),
        })
    }

    /// A new certificate for the key, with the key.
    pub(super) fn certified(
        &self,
        entropy: &dyn Entropy,
        validity: [Timestamp; 2],
        document: Option<(Variant, &[u8])>,
    ) -> Result<CertifiedKey, rustls::Error> {
        let mut serial = [0; 16];
        entropy.fill(&mut serial);
        let made = certificate::make(&*self.signing, &self.spki, serial, validity, document)?;
        let key = Arc::clone(&self.signing);
        Ok(CertifiedKey::new(vec![CertificateDer::from(made)], key))
    }
}
