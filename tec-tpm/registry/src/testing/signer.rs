//! Signatures in the form of cosign, generated on demand.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey};
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use serde_json::{Value, json};

use super::content::{CONFIG, Content, MANIFEST, with};

/// Media type of a claim.
const CLAIM: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// A signer of images.
#[derive(Clone, Debug)]
pub struct Signer(SigningKey);

impl Signer {
    /// Equal seeds give equal keys; 0 is not a valid seed.
    pub fn new(seed: u8) -> io::Result<Self> {
        SigningKey::from_slice(&[seed; 32]).map(Self).map_err(io::Error::other)
    }

    /// The public key, PEM.
    pub fn public_pem(&self) -> io::Result<String> {
        let key = self.0.verifying_key();
        key.to_public_key_pem(LineEnding::LF).map_err(io::Error::other)
    }

    /// A claim, and its signature.
    pub fn sign(&self, claim: &Value) -> (Vec<u8>, String) {
        let bytes = claim.to_string().into_bytes();
        let signature: Signature = self.0.sign(&bytes);
        (bytes, STANDARD.encode(signature.to_der()))
    }
}

/// The claim about the image with this digest.
pub fn claim(digest: &str) -> Value {
    json!({
        "critical": {
            "identity": { "docker-reference": "registry.example/os" },
            "image": { "docker-manifest-digest": digest },
            "type": "cosign container image signature",
        },
        "optional": null,
    })
}

impl Content {
    /// Adds claims with their signatures next to the image with this digest.
    pub fn signatures(&mut self, digest: &str, claims: &[(Vec<u8>, String)]) {
        let layers: Vec<Value> = claims
            .iter()
            .map(|(bytes, signature)| {
                let annotations = json!({ "dev.cosignproject.cosign/signature": signature });
                let more = [("mediaType", CLAIM.into()), ("annotations", annotations)];
                with(self.blob(bytes), &more)
            })
            .collect();
        let config = with(self.blob(b"{}"), &[("mediaType", CONFIG.into())]);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        let tag = format!("{}.sig", digest.replace(':', "-"));
        self.manifests.insert(tag, (MANIFEST.to_owned(), manifest.to_string().into_bytes()));
    }
}
