//! The keys of both ends, as text.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use hpke::{Deserializable as _, Kem as _, Serializable as _};
use zeroize::Zeroizing;

use crate::port::Entropy;
use crate::secret::{SecretArray, SecretBytes};
use crate::text::text_form;

pub(super) type Kem = hpke::kem::X25519HkdfSha256;
pub(super) type Kdf = hpke::kdf::HkdfSha256;
pub(super) type Aead = hpke::aead::AesGcm256;
pub(super) type PrivateKey = <Kem as hpke::Kem>::PrivateKey;
pub(super) type PublicKey = <Kem as hpke::Kem>::PublicKey;

const RECIPIENT: &str = "tec-recipient-";
const SIGNER: &str = "tec-signer-";
const IDENTITY: &[u8] = b"TEC-IDENTITY-";
const SIGNING: &[u8] = b"TEC-SIGNING-";

/// The string is not a transfer key.
#[derive(Debug, thiserror::Error)]
#[error("a {kind} must be {prefix} followed by 64 hexadecimal digits")]
#[non_exhaustive]
pub struct ParseKeyError {
    /// What was expected.
    pub kind: &'static str,
    /// Its expected prefix.
    pub prefix: &'static str,
}

/// The public key that a transfer is sealed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

/// The public key that a transfer is signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignerKey([u8; 32]);

macro_rules! key_form {
    ($name:ident, $prefix:ident, $kind:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $prefix, hex::encode(self.0))
            }
        }

        impl FromStr for $name {
            type Err = ParseKeyError;

            fn from_str(text: &str) -> Result<Self, ParseKeyError> {
                let refused = || ParseKeyError { kind: $kind, prefix: $prefix };
                let digits = text.trim().strip_prefix($prefix).ok_or_else(refused)?;
                let mut bytes = [0; 32];
                hex::decode_to_slice(digits, &mut bytes).map_err(|_| refused())?;
                Ok(Self(bytes))
            }
        }

        text_form!($name, ParseKeyError);
    };
}

key_form!(Recipient, RECIPIENT, "recipient of transfers");
key_form!(SignerKey, SIGNER, "signer of transfers");

impl Recipient {
    pub(super) fn key(&self) -> Result<PublicKey, ParseKeyError> {
        PublicKey::from_bytes(&self.0)
            .map_err(|_| ParseKeyError { kind: "recipient of transfers", prefix: RECIPIENT })
    }
}

impl SignerKey {
    /// Whether this key made the signature over the text.
    pub(super) fn verifies(&self, text: &[u8], signature: &[u8; 64]) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(&self.0) else {
            return false;
        };
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        // Strict: one signature has one form.
        key.verify_strict(text, &signature).is_ok()
    }
}

fn seed_text(prefix: &[u8], seed: &SecretArray<32>) -> SecretBytes {
    let digits = Zeroizing::new(hex::encode(seed.expose("keep the key in its file")));
    SecretBytes::new([prefix, digits.as_bytes(), b"\n"].concat())
}

fn seed_of(prefix: &[u8], text: &SecretBytes) -> Option<SecretArray<32>> {
    let text = text.expose("read the key of its file").trim_ascii();
    let digits = text.strip_prefix(prefix)?;
    let mut seed = Zeroizing::new([0; 32]);
    hex::decode_to_slice(digits, seed.as_mut_slice()).ok()?;
    Some(SecretArray::new(*seed))
}

fn draw(entropy: &dyn Entropy) -> SecretArray<32> {
    let mut seed = Zeroizing::new([0; 32]);
    entropy.fill(seed.as_mut_slice());
    SecretArray::new(*seed)
}

/// The private key that opens transfers.
#[derive(Debug)]
pub struct Identity(SecretArray<32>);

impl Identity {
    /// Generates a key.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self(draw(entropy))
    }

    /// Its form in a file: `TEC-IDENTITY-` and 64 hexadecimal digits.
    pub fn to_text(&self) -> SecretBytes {
        seed_text(IDENTITY, &self.0)
    }

    /// Parses the text.
    pub fn from_text(text: &SecretBytes) -> Result<Self, ParseKeyError> {
        seed_of(IDENTITY, text)
            .map(Self)
            .ok_or(ParseKeyError { kind: "identity", prefix: "TEC-IDENTITY-" })
    }

    pub(super) fn key(&self) -> PrivateKey {
        Kem::derive_keypair(self.0.expose("derive the key that opens transfers")).0
    }

    /// The public key to which transfers for this identity are sealed.
    pub fn recipient(&self) -> Recipient {
        let public = Kem::sk_to_pk(&self.key()).to_bytes();
        Recipient(public.into())
    }
}

/// The private key that signs transfers.
#[derive(Debug)]
pub struct Signer(SecretArray<32>);

impl Signer {
    /// Generates a key.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self(draw(entropy))
    }

    /// Its form in a file: `TEC-SIGNING-` and 64 hexadecimal digits.
    pub fn to_text(&self) -> SecretBytes {
        seed_text(SIGNING, &self.0)
    }

    /// Parses the text.
    pub fn from_text(text: &SecretBytes) -> Result<Self, ParseKeyError> {
        seed_of(SIGNING, text)
            .map(Self)
            .ok_or(ParseKeyError { kind: "signing key", prefix: "TEC-SIGNING-" })
    }

    fn key(&self) -> SigningKey {
        SigningKey::from_bytes(self.0.expose("sign a transfer"))
    }

    /// The public key that verifies its signatures.
    pub fn public(&self) -> SignerKey {
        SignerKey(self.key().verifying_key().to_bytes())
    }

    pub(super) fn sign(&self, text: &[u8]) -> [u8; 64] {
        self.key().sign(text).to_bytes()
    }
}
