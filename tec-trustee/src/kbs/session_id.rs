//! The name of a session.

use serde::{Deserialize, Serialize};
use tec_core::port::Entropy;

/// ID of a session: 32 lowercase hexadecimal digits, the simple form of a UUID (KBS attestation
/// protocol 0.4.0).
// As sensitive as a password: it is not printed.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    derive_more::Debug,
    derive_more::Display,
)]
#[debug("SessionId([redacted])")]
#[display("{}", hex::encode(_0))]
pub(crate) struct SessionId([u8; 16]);

impl SessionId {
    pub(crate) fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0_u8; 16];
        entropy.fill(&mut bytes);
        // Version 4, variant 1 (RFC 9562, section 5.4).
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let lower = text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        lower.then_some(Self(bytes))
    }
}
