//! Stateless challenges: any server that has the key can check the answer to a challenge, even if another
//! server issued it, or after a restart.
//!
//! ```text
//!   id     = expiry ‖ salt ‖ machine ‖ endorsement key ‖ attestation key    sent to the node and back
//!   secret = HKDF-Expand(key, label ‖ id)                               sent through the node's TPM
//! ```
//! # Security
//! The ID contains no secret and needs no protection: changing it changes the secret, which the server
//! reveals only to the TPM that the ID names. An answer may be replayed until it expires. That is harmless:
//! registration binds the same key to the same machine by compare-and-swap, and never binds a revoked key.
//! The join service accepts an answer only from the node that attests with that very key.

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::ak::{Fingerprint, PublicKey};
use crate::id::MachineId;
use crate::port::{Entropy, EntropyRng};
use crate::secret::SecretArray;
use crate::time::Timestamp;

/// Label for the derivation of secrets, followed by the ID.
const LABEL: &[u8] = b"tec ek challenge v1\0";
/// Maximum time for an answer, in seconds.
const ANSWER_SECONDS: i64 = 120;
const SALT: usize = 16;

/// The key that the secrets of challenges are derived from. Replicas behind one address share it.
pub struct ChallengeKey(SecretArray<32>);

impl ChallengeKey {
    /// Creates a key from 32 random bytes.
    pub fn new(key: SecretArray<32>) -> Self {
        Self(key)
    }

    /// Creates a new key for one process.
    pub fn random(entropy: &dyn Entropy) -> Self {
        Self(SecretArray::random(&mut EntropyRng::new(entropy)))
    }

    /// Never `None`: HKDF-SHA256 accepts such a key and outputs up to 8160 bytes (RFC 5869, section
    /// 2.3).
    fn secret(&self, id: &[u8]) -> Option<SecretArray<32>> {
        let key = Hkdf::<Sha256>::from_prk(self.0.expose("derive a challenge")).ok()?;
        let mut secret = Zeroizing::new([0; 32]);
        key.expand_multi_info(&[LABEL, id], secret.as_mut_slice()).ok()?;
        Some(SecretArray::new(*secret))
    }
}

impl fmt::Debug for ChallengeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChallengeKey").field(&self.0).finish()
    }
}

/// What a TPM must prove: that both keys are in the same TPM.
#[derive(Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Machine that the challenge is for.
    pub machine: MachineId,
    /// Endorsement key.
    pub ek: Fingerprint,
    /// Attestation key.
    pub public: PublicKey,
}

impl Challenge {
    /// Returns the ID that the node sends back, and the secret for its TPM. Never `None`.
    pub fn issue(
        &self,
        key: &ChallengeKey,
        now: Timestamp,
        entropy: &dyn Entropy,
    ) -> Option<(Vec<u8>, SecretArray<32>)> {
        let mut salt = [0; SALT];
        entropy.fill(&mut salt);
        let id = [
            &now.plus_seconds(ANSWER_SECONDS).unix_seconds().to_be_bytes(),
            salt.as_slice(),
            self.machine.as_uuid().as_bytes(),
            self.ek.as_bytes(),
            self.public.as_der(),
        ]
        .concat();
        let secret = key.secret(&id)?;
        Some((id, secret))
    }

    /// Returns what was proven if the answer is correct and in time.
    pub fn check(
        key: &ChallengeKey,
        id: &[u8],
        answer: &SecretArray<32>,
        now: Timestamp,
    ) -> Option<Self> {
        if !key.secret(id)?.ct_eq(answer) {
            return None;
        }
        let (expiry, rest) = id.split_first_chunk()?;
        let (_, rest) = rest.split_first_chunk::<SALT>()?;
        let (machine, rest) = rest.split_first_chunk()?;
        let (ek, public) = rest.split_first_chunk()?;
        let is_late = Timestamp::from_unix_seconds(i64::from_be_bytes(*expiry)) <= now;
        (!is_late).then_some(Self {
            machine: Uuid::from_bytes(*machine).into(),
            ek: Fingerprint::from_bytes(*ek),
            public: PublicKey::from_der(public).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SeededEntropy, sample};

    fn challenge() -> Challenge {
        Challenge {
            machine: sample::machine_id(1),
            ek: sample::public_key(9).fingerprint(),
            public: sample::public_key(1),
        }
    }

    fn key(byte: u8) -> ChallengeKey {
        ChallengeKey::new(SecretArray::new([byte; 32]))
    }

    #[test]
    fn an_answer_counts_at_every_server_with_the_key_until_it_expires() {
        let now = sample::time(0);
        let (id, secret) = challenge().issue(&key(1), now, &SeededEntropy::new(1)).unwrap();
        let check = |key, seconds| Challenge::check(&key, &id, &secret, now.plus_seconds(seconds));
        assert_eq!(check(key(1), ANSWER_SECONDS - 1), Some(challenge()));
        assert_eq!(check(key(1), ANSWER_SECONDS), None);
        assert_eq!(check(key(2), 0), None);
    }

    #[test]
    fn an_id_that_was_changed_anywhere_has_another_secret() {
        let now = sample::time(0);
        let (id, secret) = challenge().issue(&key(1), now, &SeededEntropy::new(1)).unwrap();
        for place in 0..id.len() {
            let mut changed = id.clone();
            changed[place] ^= 1;
            assert_eq!(Challenge::check(&key(1), &changed, &secret, now), None, "byte {place}");
        }
        for length in 0..id.len() {
            assert_eq!(Challenge::check(&key(1), &id[..length], &secret, now), None, "{length}");
        }
    }

    #[test]
    fn the_derivation_is_the_one_of_its_label() {
        let secret = key(1).secret(b"id").unwrap();
        let expected = "aa7843ca0951b28bbea2517717abcbc504c44dc28f29f9dfdee2975e76a6d4a6";
        assert_eq!(hex::encode(secret.expose("test vector")), expected);
    }
}
