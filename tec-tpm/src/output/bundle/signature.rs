//! The detached signature: ECDSA on P-256 with SHA-256.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _, EncodePublicKey as _};
use serde::{Deserialize, Serialize};
use tec_core::ak::{Fingerprint, KeyKind, PublicKey};

use super::super::{OutputError, to_json};
use super::BundleError;

const FORM: &str = "the signature of a bundle";
/// The only algorithm (FIPS 186-5, 6.4), with the signature in DER (RFC 3279, 2.2.3).
const ALGORITHM: &str = "ecdsa-p256-sha256";
/// Largest signature file; a real one has 250 bytes.
const MAX_SIGNATURE: usize = 4096;

/// The key that vouches for reference values.
pub struct BundleSigner(SigningKey);

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DetachedSignature {
    key: Fingerprint,
    algorithm: String,
    /// Base64.
    signature: String,
}

impl BundleSigner {
    /// Reads a private key on P-256, PEM with the label `PRIVATE KEY` (PKCS #8).
    pub fn from_pem(pem: &str) -> Result<Self, BundleError> {
        let key = SigningKey::from_pkcs8_pem(pem);
        key.map(Self).map_err(|_| BundleError::PrivateKey)
    }

    /// The public key that verifies what it signs.
    ///
    /// # Errors
    /// [`BundleError::PrivateKey`], in practice never.
    pub fn public_key(&self) -> Result<PublicKey, BundleError> {
        let der = self.0.verifying_key().to_public_key_der();
        let der = der.map_err(|_| BundleError::PrivateKey)?;
        PublicKey::from_der(der.as_bytes()).map_err(|_| BundleError::PrivateKey)
    }

    /// Signs the bytes of a bundle. The same key and bytes give the same signature (RFC 6979).
    ///
    /// # Errors
    /// [`BundleError::PrivateKey`] and [`BundleError::SignatureForm`], in practice never.
    pub fn sign(&self, bundle: &str) -> Result<String, BundleError> {
        let signature = self.0.try_sign(bundle.as_bytes());
        let signature: Signature = signature.map_err(|_| BundleError::PrivateKey)?;
        let detached = DetachedSignature {
            key: self.public_key()?.fingerprint(),
            algorithm: ALGORITHM.to_owned(),
            signature: STANDARD.encode(signature.to_der().as_bytes()),
        };
        let text = to_json(&detached, FORM).map_err(BundleError::SignatureForm)?;
        Ok(text + "\n")
    }
}

impl fmt::Debug for BundleSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BundleSigner").finish_non_exhaustive()
    }
}

impl DetachedSignature {
    pub(super) fn read(text: &str) -> Result<Self, BundleError> {
        if text.len() > MAX_SIGNATURE {
            return Err(BundleError::SignatureForm(OutputError::TooLarge {
                size: text.len(),
                limit: MAX_SIGNATURE,
            }));
        }
        let json = |source| BundleError::SignatureForm(OutputError::Json { form: FORM, source });
        let read: Self = serde_json::from_str(text).map_err(json)?;
        if read.algorithm != ALGORITHM {
            return Err(BundleError::Algorithm {
                algorithm: read.algorithm.chars().take(32).collect(),
                taken: ALGORITHM,
            });
        }
        Ok(read)
    }

    /// Which of `keys` signed `bundle`.
    pub(super) fn verify(
        &self,
        bundle: &[u8],
        keys: &[PublicKey],
    ) -> Result<Fingerprint, BundleError> {
        let key = self.key;
        let known = keys.iter().find(|known| known.fingerprint() == key);
        let known = known.ok_or(BundleError::UnknownKey(key))?;
        if known.kind() != KeyKind::EcP256 {
            return Err(BundleError::Key(key));
        }
        let verifier = VerifyingKey::from_public_key_der(known.as_der());
        let verifier = verifier.map_err(|_| BundleError::Key(key))?;
        let der = STANDARD.decode(&self.signature);
        let der = der.map_err(|_| BundleError::Signature(key))?;
        let verified =
            Signature::from_der(&der).and_then(|signature| verifier.verify(bundle, &signature));
        verified.map(|()| key).map_err(|_| BundleError::Signature(key))
    }
}
