//! Signatures of images, as cosign makes them with a key (sigstore/cosign, "Cosign Signature
//! Specification").
//!
//! ```text
//! os@sha256:<hex> ─► tag sha256-<hex>.sig ─► layers, each a claim ─► key, digest ─► signer
//! ```
//! The registry is not trusted: a claim counts only if one of the given keys signed its bytes and it names
//! the digest.

use std::collections::BTreeMap;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::{Signature, VerifyingKey};
use p256::pkcs8::DecodePublicKey as _;
use serde::Deserialize;
use tec_core::digest::Sha256Digest;

use crate::error::RegistryError;
use crate::reference::ImageReference;
use crate::registry::{MAX_MANIFEST, Registry, malformed, parsed, small};
use crate::transport::Ask;

/// Annotation of a layer: the signature of its bytes, ASN.1 DER in Base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// The type that the claim states.
const KIND: &str = "cosign container image signature";
/// Maximum size of a claim in bytes; a claim of cosign has a few hundred.
const MAX_CLAIM: u64 = 64 << 10;
/// Maximum number of signatures of an image that are tried.
const MAX_SIGNATURES: usize = 32;

/// Public key of an image signer: ECDSA on P-256, the only type that `cosign generate-key-pair` generates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerKey(VerifyingKey);

/// The text is not such a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a P-256 public key in PEM (`-----BEGIN PUBLIC KEY-----`)")]
#[non_exhaustive]
pub struct SignerKeyError;

impl FromStr for SignerKey {
    type Err = SignerKeyError;

    fn from_str(pem: &str) -> Result<Self, SignerKeyError> {
        VerifyingKey::from_public_key_pem(pem.trim()).map(Self).map_err(|_| SignerKeyError)
    }
}

#[derive(Deserialize)]
struct Signatures {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The claim (containers/image, "atomic-signature").
#[derive(Deserialize)]
struct Claim {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    r#type: String,
    image: ClaimedImage,
}

#[derive(Deserialize)]
struct ClaimedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl Registry {
    /// The first of these keys that signed the image.
    ///
    /// # Errors
    /// [`RegistryError::Unsigned`] if none of them did; other errors if the registry or its answer fails.
    ///
    /// # Security
    /// A signature names the digest of the reference: a manifest, or the index that lists it. It
    /// says nothing about time, so an old image keeps its signature.
    pub async fn signer<'k>(
        &self,
        reference: &ImageReference,
        keys: &'k [SignerKey],
    ) -> Result<&'k SignerKey, RegistryError> {
        let tag = format!("sha256-{}.sig", reference.digest());
        let unsigned = |found| RegistryError::Unsigned { reference: reference.to_string(), found };
        let answer = self.answer(reference.place(), &Ask::Manifest(tag.clone())).await;
        let response = match answer {
            Err(RegistryError::Absent(_)) => return Err(unsigned(0)),
            answer => answer?,
        };
        let text = small(response, MAX_MANIFEST).await?;
        let signatures: Signatures = serde_json::from_slice(&text)
            .map_err(|error| malformed("the manifest of signatures", &tag, error.to_string()))?;
        for layer in signatures.layers.iter().take(MAX_SIGNATURES) {
            if let Some(key) = self.signer_of(reference, layer, keys).await? {
                return Ok(key);
            }
        }
        Err(unsigned(signatures.layers.len()))
    }

    async fn signer_of<'k>(
        &self,
        reference: &ImageReference,
        layer: &Layer,
        keys: &'k [SignerKey],
    ) -> Result<Option<&'k SignerKey>, RegistryError> {
        let Some(signature) = layer.annotations.get(SIGNATURE).and_then(|text| decoded(text))
        else {
            return Ok(None);
        };
        let digest = parsed("the digest of a signature's claim", &layer.digest)?;
        let ask = Ask::Blob(layer.digest.clone(), 0..layer.size.min(MAX_CLAIM + 1));
        let claim = self.document(reference, &ask, digest, MAX_CLAIM).await?;
        let signer = keys.iter().find(|key| key.0.verify(&claim, &signature).is_ok());
        Ok(signer.filter(|_| names(&claim, reference.digest())))
    }
}

fn decoded(text: &str) -> Option<Signature> {
    Signature::from_der(&STANDARD.decode(text.trim()).ok()?).ok()
}

/// Whether the claim is about this digest. Where the image was stored when it was signed does not
/// matter, as it may have been copied.
fn names(claim: &[u8], digest: Sha256Digest) -> bool {
    let claim: Result<Claim, _> = serde_json::from_slice(claim);
    claim.is_ok_and(|Claim { critical }| {
        critical.r#type == KIND && critical.image.digest == format!("sha256:{digest}")
    })
}
