//! Public keys in the text form of NATS, and nonces.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;

/// The type of its owner. The prefix determines the first letter of the text: O, A or U.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyKind {
    /// An operator.
    Operator,
    /// An account.
    Account,
    /// A user.
    User,
}

impl KeyKind {
    /// First byte of the raw form: the position of the letter in the alphabet, shifted by three
    /// bits.
    const fn prefix(self) -> u8 {
        match self {
            Self::Operator => 14 << 3,
            Self::Account => 0,
            Self::User => 20 << 3,
        }
    }
}

/// An ed25519 public key with its type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug)]
#[debug("{self}")]
pub struct PublicKey {
    kind: KeyKind,
    bytes: [u8; 32],
}

/// Not a public key of an operator, account or user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublicKeyError {
    /// Not 56 characters of base 32.
    #[error("a NATS public key must have 56 base32 characters")]
    Form,
    /// A key of another type, possibly a seed.
    #[error("the key has a different type")]
    Kind,
    /// The checksum is wrong.
    #[error("the checksum does not match")]
    Checksum,
}

impl PublicKey {
    /// A key of this type.
    pub const fn new(kind: KeyKind, bytes: [u8; 32]) -> Self {
        Self { kind, bytes }
    }

    /// The type of its owner.
    pub const fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The ed25519 key.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut raw = vec![self.kind.prefix()];
        raw.extend(self.bytes);
        let sum = crc16(&raw);
        raw.extend(sum.to_le_bytes());
        f.write_str(&BASE32_NOPAD.encode(&raw))
    }
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, PublicKeyError> {
        let raw = BASE32_NOPAD.decode(text.as_bytes()).map_err(|_| PublicKeyError::Form)?;
        let (body, sum) = raw.split_last_chunk::<2>().ok_or(PublicKeyError::Form)?;
        let (prefix, key) = body.split_first().ok_or(PublicKeyError::Form)?;
        let bytes = key.try_into().map_err(|_| PublicKeyError::Form)?;
        let kinds = [KeyKind::Operator, KeyKind::Account, KeyKind::User];
        let kind =
            kinds.into_iter().find(|kind| kind.prefix() == *prefix).ok_or(PublicKeyError::Kind)?;
        if crc16(body) != u16::from_le_bytes(*sum) {
            return Err(PublicKeyError::Checksum);
        }
        Ok(Self { kind, bytes })
    }
}

/// A nonce that a server asks a client to sign. It cannot be mistaken for the body of a JWT, because it
/// contains no dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce(String);

/// Not a valid server nonce.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a nonce must have 8 to 64 letters, digits, hyphens and underscores")]
#[non_exhaustive]
pub struct NonceError;

impl Nonce {
    /// The bytes to sign.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for Nonce {
    type Err = NonceError;

    fn from_str(text: &str) -> Result<Self, NonceError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if (8..=64).contains(&text.len()) && text.chars().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NonceError)
        }
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value zero.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| match sum & 0x8000 {
            0 => sum << 1,
            _ => (sum << 1) ^ 0x1021,
        })
    })
}
