//! The signatures of quotes.

use std::fmt;

use p256::ecdsa;
use rsa::pkcs1v15;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::signature::Verifier as _;
use sha2::Sha256;
use tec_core::ak::{KeyKind, PublicKey};

use super::{ALG_ECDSA, ALG_RSASSA, ALG_SHA256, QuoteError};
use crate::wire::{WireError, WireReader};

/// RSA-4096 signature.
const MAX_RSA: usize = 512;
/// Coordinate of P-256 (FIPS 186-5).
const P256_SCALAR: usize = 32;

/// Verifies what attestation keys signed: [`PureRust`], or a faster implementation that a program
/// already has.
///
/// *Contract*: `key` is of the type that the method's name states; everything else is untrusted.
pub trait SignatureCheck: fmt::Debug + Send + Sync {
    /// RSASSA-PKCS1-v1_5 over SHA-256 (RFC 8017, section 8.2).
    ///
    /// # Errors
    /// [`QuoteError::Signature`], or [`QuoteError::Key`] when the key cannot be used.
    fn rsa_pkcs1_sha256(
        &self,
        key: &PublicKey,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), QuoteError>;

    /// ECDSA on P-256 over SHA-256 (FIPS 186-5); `r` and `s` have 32 bytes, most significant first.
    fn ecdsa_p256_sha256(
        &self,
        key: &PublicKey,
        message: &[u8],
        r: &[u8; 32],
        s: &[u8; 32],
    ) -> Result<(), QuoteError>;
}

/// Pure Rust, without code in C or assembly.
#[derive(Clone, Copy, Debug, Default)]
pub struct PureRust;

impl SignatureCheck for PureRust {
    fn rsa_pkcs1_sha256(
        &self,
        key: &PublicKey,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), QuoteError> {
        let key =
            rsa::RsaPublicKey::from_public_key_der(key.as_der()).map_err(|_| QuoteError::Key)?;
        let signature =
            pkcs1v15::Signature::try_from(signature).map_err(|_| QuoteError::Signature)?;
        pkcs1v15::VerifyingKey::<Sha256>::new(key)
            .verify(message, &signature)
            .map_err(|_| QuoteError::Signature)
    }

    fn ecdsa_p256_sha256(
        &self,
        key: &PublicKey,
        message: &[u8],
        r: &[u8; P256_SCALAR],
        s: &[u8; P256_SCALAR],
    ) -> Result<(), QuoteError> {
        let key =
            ecdsa::VerifyingKey::from_public_key_der(key.as_der()).map_err(|_| QuoteError::Key)?;
        let signature =
            ecdsa::Signature::from_scalars(*r, *s).map_err(|_| QuoteError::Signature)?;
        key.verify(message, &signature).map_err(|_| QuoteError::Signature)
    }
}

/// TPMT_SIGNATURE of the schemes that are known (Part 2, "TPMU_SIGNATURE").
pub(super) enum Signature<'a> {
    Rsassa(&'a [u8]),
    Ecdsa { r: [u8; P256_SCALAR], s: [u8; P256_SCALAR] },
    Other { scheme: u16, hash: u16 },
}

impl<'a> Signature<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = WireReader::new(bytes);
        let scheme = reader.u16()?;
        let hash = reader.u16()?;
        let signature = match (scheme, hash) {
            (ALG_RSASSA, ALG_SHA256) => Self::Rsassa(reader.sized(MAX_RSA)?),
            (ALG_ECDSA, ALG_SHA256) => {
                Self::Ecdsa { r: scalar(&mut reader)?, s: scalar(&mut reader)? }
            }
            _ => return Ok(Self::Other { scheme, hash }),
        };
        reader.finish()?;
        Ok(signature)
    }

    pub(super) fn verify(
        &self,
        message: &[u8],
        key: &PublicKey,
        by: &dyn SignatureCheck,
    ) -> Result<(), QuoteError> {
        match self {
            Self::Rsassa(bytes) if matches!(key.kind(), KeyKind::Rsa { .. }) => {
                by.rsa_pkcs1_sha256(key, message, bytes)
            }
            Self::Ecdsa { r, s } if key.kind() == KeyKind::EcP256 => {
                by.ecdsa_p256_sha256(key, message, r, s)
            }
            other => {
                let (scheme, hash) = other.algorithms();
                Err(QuoteError::SignatureScheme { scheme, hash })
            }
        }
    }

    fn algorithms(&self) -> (u16, u16) {
        match self {
            Self::Rsassa(_) => (ALG_RSASSA, ALG_SHA256),
            Self::Ecdsa { .. } => (ALG_ECDSA, ALG_SHA256),
            Self::Other { scheme, hash } => (*scheme, *hash),
        }
    }
}

/// A number as TPM2B_ECC_PARAMETER; TPMs may leave out leading zeros.
fn scalar(reader: &mut WireReader<'_>) -> Result<[u8; P256_SCALAR], WireError> {
    let bytes = reader.sized(P256_SCALAR)?;
    let mut padded = [0; P256_SCALAR];
    for (to, from) in padded.iter_mut().rev().zip(bytes.iter().rev()) {
        *to = *from;
    }
    Ok(padded)
}
