//! Quotes: whatever is signed, only a correct quote over the given values passes.

use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};
use tec_core::ak::PublicKey;
use tec_core::digest::Sha256Digest;
use tec_tpm::quote::{QuoteError, UntrustedQuote, VerifiedQuote};
use tec_tpm::testing::{AttestFields, SoftTpm};

use crate::Seed;
use crate::sample::{p256_tpm, rsa_tpm};

const NONCE: [u8; 32] = [0x5a; 32];
/// Meaning of the first byte of an input: the rest is a message, which is then signed …
const MESSAGE: u8 = b'm';
/// … or a signature over a correct message, to be verified with the ECC key …
const ECC_SIGNATURE: u8 = b'e';
/// … or with the RSA key.
const RSA_SIGNATURE: u8 = b'r';

/// A message that verifies has one encoding, namely that of its fields, and quotes exactly the values and the
/// nonce. A signature that verifies is the TPM's own: the same bytes with RSA, the same number or its mirror
/// image with ECDSA.
pub(crate) fn quote(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    match *mode {
        MESSAGE => check_message(rest),
        ECC_SIGNATURE => check_ecc_signature(rest),
        RSA_SIGNATURE => check_rsa_signature(rest),
        _ => check_anything(rest),
    }
}

/// The key of another TPM.
fn stranger() -> &'static PublicKey {
    static STRANGER: OnceLock<PublicKey> = OnceLock::new();
    STRANGER.get_or_init(|| SoftTpm::p256(2).public_key())
}

fn values(tpm: &SoftTpm) -> Vec<Sha256Digest> {
    tpm.pcrs().iter().map(|(_, value)| *value).collect()
}

fn check_message(message: &[u8]) {
    let tpm = p256_tpm();
    let (signature, values) = (tpm.sign(message), values(tpm));
    let quote = UntrustedQuote::new(message, &signature, &values);
    let verified = match quote.verify(&tpm.public_key(), &NONCE) {
        Ok(verified) => verified,
        Err(error) => {
            // The TPM signed the message, so only the message can be wrong.
            assert!(!matches!(
                error,
                QuoteError::Signature | QuoteError::SignatureFormat(_) | QuoteError::Key
            ));
            return;
        }
    };
    assert_eq!(encode(&verified, &values), message);
    assert_eq!(verified.pcrs(), &tpm.pcrs());
    let digest = values
        .iter()
        .fold(Sha256::new(), |hash, value| hash.chain_update(value.as_bytes()))
        .finalize();
    assert!(message.ends_with(&digest));
    let other_nonce = quote.verify(&tpm.public_key(), &[0; 32]);
    assert_eq!(other_nonce.err(), Some(QuoteError::Nonce));
    let other_key = quote.verify(stranger(), &NONCE);
    assert_eq!(other_key.err(), Some(QuoteError::Signature));
}

/// Encodes again what the verifier accepted.
fn encode(verified: &VerifiedQuote, values: &[Sha256Digest]) -> Vec<u8> {
    let clock = verified.clock();
    AttestFields {
        qualified_signer: verified.qualified_signer().to_vec(),
        clock_ms: clock.clock_ms,
        reset_count: clock.reset_count,
        restart_count: clock.restart_count,
        safe: clock.safe.into(),
        firmware_version: verified.firmware_version(),
        ..AttestFields::quote(&NONCE, values)
    }
    .marshal()
}

fn check_ecc_signature(signature: &[u8]) {
    let tpm = p256_tpm();
    let message = tpm.attest_fields(&NONCE).marshal();
    let quote =
        UntrustedQuote::new(&message, signature, &values(tpm)).verify(&tpm.public_key(), &NONCE);
    if quote.is_ok() {
        // r is the same for either sign of s; it follows scheme, hash and size.
        let own = tpm.sign(&message);
        let r = |signature: &[u8]| significant(&sized(signature, 4)).to_vec();
        assert_eq!(r(signature), r(&own));
    }
}

fn check_rsa_signature(signature: &[u8]) {
    let tpm = rsa_tpm();
    let message = tpm.attest_fields(&NONCE).marshal();
    let quote =
        UntrustedQuote::new(&message, signature, &values(tpm)).verify(&tpm.public_key(), &NONCE);
    if quote.is_ok() {
        assert_eq!(sized(signature, 4), sized(&tpm.sign(&message), 4));
    }
}

/// The TPM2B at an offset.
fn sized(bytes: &[u8], at: usize) -> Vec<u8> {
    let (size, rest) = bytes
        .get(at..)
        .and_then(<[u8]>::split_first_chunk)
        .expect("a sized buffer of an accepted signature");
    let size = usize::from(u16::from_be_bytes(*size));
    rest.get(..size).expect("its content").to_vec()
}

fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// Size of the signature in two bytes, the signature, the message: an arbitrary, unsigned input.
fn check_anything(data: &[u8]) {
    let Some((size, rest)) = data.split_first_chunk() else {
        return;
    };
    let size = usize::from(u16::from_be_bytes(*size));
    let (signature, message) = rest.split_at_checked(size).unwrap_or((rest, &[]));
    for tpm in [p256_tpm(), rsa_tpm()] {
        let (key, values): (PublicKey, _) = (tpm.public_key(), values(tpm));
        let quote = UntrustedQuote::new(message, signature, &values);
        if quote.verify(&key, &NONCE).is_ok() {
            let verified = quote.verify(&key, &NONCE).expect("verified a moment ago");
            assert_eq!(encode(&verified, &values), message);
        }
        for cut in [0, 1, 23] {
            let fewer = values.get(..cut).unwrap_or_default();
            assert!(UntrustedQuote::new(message, signature, fewer).verify(&key, &NONCE).is_err());
        }
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let seed = |name: &str, mode: u8, rest: &[u8]| Seed::new(name, [&[mode], rest].concat());
    let (ecc, rsa) = (p256_tpm(), rsa_tpm());
    let right = ecc.attest_fields(&NONCE);
    let message = right.marshal();
    let with = |change: fn(&mut AttestFields)| {
        let mut fields = right.clone();
        change(&mut fields);
        fields.marshal()
    };
    let rsa_signature = rsa.sign(&rsa.attest_fields(&NONCE).marshal());
    let ecc_signature = ecc.sign(&message);
    let size = u16::try_from(ecc_signature.len()).unwrap_or(0).to_be_bytes();
    let whole = [&size[..], &ecc_signature, &message].concat();
    vec![
        seed("message", MESSAGE, &message),
        seed("message_certify", MESSAGE, &with(|f| f.kind = 0x8017)),
        seed(
            "message_two_banks",
            MESSAGE,
            &with(|f| {
                let mut second = f.selections.clone();
                f.selections.append(&mut second);
            }),
        ),
        seed("message_trailing", MESSAGE, &with(|f| f.trailing = vec![0])),
        seed("message_short_name", MESSAGE, &with(|f| f.qualified_signer.clear())),
        seed("signature_ecc", ECC_SIGNATURE, &ecc_signature),
        seed("signature_rsa", RSA_SIGNATURE, &rsa_signature),
        seed("whole", b'w', &whole),
    ]
}
