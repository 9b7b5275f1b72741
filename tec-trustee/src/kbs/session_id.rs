//! The name of a session.

use std::fmt;

use serde::{Deserialize, Serialize};
use tec_core::port::Entropy;

/// ID of a session: 32 lowercase hexadecimal digits, the simple form of a UUID (KBS attestation
/// protocol 0.4.0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Session IDs are as sensitive as passwords: they are not printed.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId([redacted])")
    }
}
