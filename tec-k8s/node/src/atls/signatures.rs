//! Signatures by the endpoint's cryptography provider, which is faster than pure Rust.

use p256::ecdsa;
use rustls::SignatureScheme;
use rustls::crypto::CryptoProvider;
use tec_core::ak::PublicKey;
use tec_tpm::quote::{QuoteError, SignatureCheck};
use x509_cert::der::Decode as _;
use x509_cert::spki::SubjectPublicKeyInfoRef;

#[derive(Debug)]
pub(super) struct ByProvider<'a>(pub(super) &'a CryptoProvider);

impl ByProvider<'_> {
    /// Whether `key`, the content of a SubjectPublicKeyInfo's BIT STRING, signed the message.
    pub(super) fn signed(
        &self,
        scheme: SignatureScheme,
        key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let mapping = self.0.signature_verification_algorithms.mapping;
        // Each provider lists the exact curve of a scheme first.
        mapping
            .iter()
            .find(|(one, _)| *one == scheme)
            .and_then(|(_, algorithms)| algorithms.first())
            .is_some_and(|one| one.verify_signature(key, message, signature).is_ok())
    }

    fn signed_by(
        &self,
        scheme: SignatureScheme,
        key: &PublicKey,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), QuoteError> {
        let info = SubjectPublicKeyInfoRef::from_der(key.as_der()).map_err(|_| QuoteError::Key)?;
        let key = info.subject_public_key.raw_bytes();
        self.signed(scheme, key, message, signature).then_some(()).ok_or(QuoteError::Signature)
    }
}

impl SignatureCheck for ByProvider<'_> {
    fn rsa_pkcs1_sha256(
        &self,
        key: &PublicKey,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), QuoteError> {
        self.signed_by(SignatureScheme::RSA_PKCS1_SHA256, key, message, signature)
    }

    fn ecdsa_p256_sha256(
        &self,
        key: &PublicKey,
        message: &[u8],
        r: &[u8; 32],
        s: &[u8; 32],
    ) -> Result<(), QuoteError> {
        let signature =
            ecdsa::Signature::from_scalars(*r, *s).map_err(|_| QuoteError::Signature)?;
        let scheme = SignatureScheme::ECDSA_NISTP256_SHA256;
        self.signed_by(scheme, key, message, signature.to_der().as_bytes())
    }
}
