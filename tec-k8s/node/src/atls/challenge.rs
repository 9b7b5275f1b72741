//! The data that evidence binds: user data and the peer's nonce.

use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;

use super::Nonce;

/// User data of the certificate: SHA-256 over its SubjectPublicKeyInfo.
pub(super) fn key_hash(spki: &[u8]) -> Sha256Digest {
    Sha256Digest::of(spki)
}

/// The nonce of a quote: SHA-256(instance info ‖ SHA-256(user data ‖ nonce)). If the instance info can bind
/// data, it binds only the inner hash.
pub(super) fn quote_nonce(instance_info: &[u8], inner: &[u8; 32]) -> [u8; 32] {
    Sha256::new().chain_update(instance_info).chain_update(inner).finalize().into()
}

/// The inner hash of [`quote_nonce`].
pub(super) fn inner_nonce(user_data: &[u8], nonce: &Nonce) -> [u8; 32] {
    Sha256::new().chain_update(user_data).chain_update(nonce.as_bytes()).finalize().into()
}
