//! How an attestation key names the key that follows it.
//!
//! ```text
//! node    new key in the same TPM ─► TPM2_Certify(new), signed by the bound key
//! server  signature, name, attributes ─► successor: counts only while the bound key is bound
//! node    evidence signed by the new key ─► it is bound, and the old one revoked, in one step
//! ```
//! At every moment the server accepts at least one of the keys that the node has.

use sha2::{Digest as _, Sha256};

use super::{Fingerprint, PublicKey};
use crate::id::MachineId;

/// Separates what is certified for a succession from anything else that a TPM certifies.
const DOMAIN: &[u8] = b"TEC attestation key succession v1\0";

/// A new key, and the statement of the bound key's TPM about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what TPM2_Certify is about and returns")]
pub struct SuccessionOffer {
    /// TPM2B_PUBLIC of the new key.
    pub tpm2b_public: Vec<u8>,
    /// TPMS_ATTEST.
    pub message: Vec<u8>,
    /// TPMT_SIGNATURE of the bound key over the message.
    pub signature: Vec<u8>,
}

/// A key that follows a bound one as soon as it attests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two keys")]
pub struct Successor {
    /// The key.
    pub public: PublicKey,
    /// The bound key that named it.
    pub predecessor: Fingerprint,
}

/// The qualifyingData of a certification: it is for this machine, and for the session with this nonce.
pub fn succession_data(nonce: &str, machine: &MachineId) -> [u8; 32] {
    let hash = Sha256::new().chain_update(DOMAIN).chain_update(machine.to_string());
    hash.chain_update(nonce).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    #[test]
    fn what_is_certified_is_for_one_session_of_one_machine() {
        let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
        // printf 'TEC attestation key succession v1\0…0ae7bm9uY2U=' | sha256sum
        assert_eq!(
            hex::encode(succession_data("bm9uY2U=", &id)),
            "6342b90791f307df891fe17c5e8027b6ce3632eea90b97df7bdca4ca155fc1ee"
        );
        assert_ne!(
            succession_data("bm9uY2U=", &sample::machine_id(2)),
            succession_data("bm9uY2U=", &id)
        );
        assert_ne!(succession_data("bm9uY2V=", &id), succession_data("bm9uY2U=", &id));
    }
}
