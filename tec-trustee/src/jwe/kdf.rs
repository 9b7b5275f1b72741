//! Concat KDF (NIST SP 800-56A, section 5.8.1) as RFC 7518, section 4.6.2 uses it.

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Derives a key of `N` ≤ 32 bytes from the agreed secret `z` in one round of SHA-256.
///
/// `algorithm` is the content of AlgorithmID: `enc` for direct agreement, `alg` with key wrapping.
/// SuppPubInfo is the length in bits, SuppPrivInfo is empty.
///
/// # Panics
/// Never: it does not compile for `N` above 32.
pub fn concat_kdf<const N: usize>(
    z: &[u8],
    algorithm: &[u8],
    party_u: &[u8],
    party_v: &[u8],
) -> Zeroizing<[u8; N]> {
    const { assert!(N <= 32, "one round of SHA-256 gives 32 bytes") };
    let mut hash = Sha256::new();
    // Counter of the first and only round.
    hash.update(1_u32.to_be_bytes());
    hash.update(z);
    for part in [algorithm, party_u, party_v] {
        hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(part);
    }
    let bits = u32::try_from(N).unwrap_or(u32::MAX).saturating_mul(8);
    hash.update(bits.to_be_bytes());
    let full = Zeroizing::new(<[u8; 32]>::from(hash.finalize()));
    let mut key = Zeroizing::new([0; N]);
    for (to, from) in key.iter_mut().zip(full.iter()) {
        *to = *from;
    }
    key
}
