//! The unavoidable cryptography of an unlock: verifying the quote's signature, signing the token, and
//! encrypting the resource to an agreed key.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use p256::elliptic_curve::Generate as _;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rsa::pkcs1v15;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::signature::Verifier as _;
use sha2::Sha256;

use crate::server::Machine;

/// Scheme, hash and size in front of the signature itself (TPM 2.0 Library Part 2,
/// "TPMT_SIGNATURE").
const SIGNATURE_HEADER: usize = 6;
/// Signed bytes of a token.
const TOKEN: usize = 6000;

pub(crate) struct Crypto {
    key: pkcs1v15::VerifyingKey<Sha256>,
    message: Vec<u8>,
    signature: pkcs1v15::Signature,
    signer: SigningKey,
    node: p256::PublicKey,
}

impl Crypto {
    pub(crate) fn new(machine: &Machine) -> anyhow::Result<Self> {
        let quote = machine.tpm.quote(&[0x5a; 32]);
        let key = rsa::RsaPublicKey::from_public_key_der(quote.ak.as_der())?;
        let signature = quote.signature.get(SIGNATURE_HEADER..);
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        Ok(Self {
            key: pkcs1v15::VerifyingKey::new(key),
            signature: signature.context("the signature is too short")?.try_into()?,
            message: quote.message,
            signer: SigningKey::from(p256::SecretKey::generate_from_rng(&mut rng)),
            node: p256::SecretKey::generate_from_rng(&mut rng).public_key(),
        })
    }

    fn once(&self, rng: &mut ChaCha20Rng) {
        let verified = self.key.verify(&self.message, &self.signature);
        assert!(verified.is_ok(), "the quote verifies");
        let token: p256::ecdsa::Signature = self.signer.sign(&[0x5a; TOKEN]);
        let own = p256::SecretKey::generate_from_rng(rng);
        let agreed = p256::ecdh::diffie_hellman(own.to_nonzero_scalar(), self.node.as_affine());
        std::hint::black_box((token, own.public_key(), agreed));
    }

    pub(crate) fn on_two_cores(&self, times: u64) -> Duration {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for (seed, share) in [(1, times / 2), (2, times - times / 2)] {
                scope.spawn(move || {
                    let mut rng = ChaCha20Rng::seed_from_u64(seed);
                    (0..share).for_each(|_| self.once(&mut rng));
                });
            }
        });
        begin.elapsed()
    }
}
