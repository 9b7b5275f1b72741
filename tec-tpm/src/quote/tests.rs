//! Every mutation of a quote is refused with its own error.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::testing::{AttestFields, SelectionFields, SoftTpm};

const NONCE: [u8; 32] = [7; 32];

/// Changes a valid quote before it is signed, and returns the verifier's result.
fn changed(change: impl Fn(&mut AttestFields)) -> Result<VerifiedQuote, QuoteError> {
    let tpm = SoftTpm::p256(1);
    let mut fields = tpm.attest_fields(&NONCE);
    change(&mut fields);
    let evidence = tpm.quote_fields(&fields);
    evidence.quote().verify(&tpm.public_key(), &NONCE)
}

fn selection(bank: u16, bitmap: &[u8]) -> SelectionFields {
    SelectionFields { bank, bitmap: bitmap.to_vec() }
}

#[test]
fn a_right_quote_is_read_as_it_was_written() {
    let quote = changed(|fields| {
        fields.clock_ms = 5;
        fields.reset_count = 6;
        fields.restart_count = 7;
        fields.safe = 0;
        fields.firmware_version = 8;
    })
    .unwrap();
    assert_eq!(quote.pcrs(), &SoftTpm::p256(1).pcrs());
    assert_eq!(quote.firmware_version(), 8);
    assert_eq!(
        quote.clock(),
        TpmClock { clock_ms: 5, reset_count: 6, restart_count: 7, safe: false }
    );
}

#[test]
fn rsa_quotes_verify_and_their_mutations_do_not() {
    let tpm = SoftTpm::rsa(1);
    let evidence = tpm.quote(&NONCE);
    let key = tpm.public_key();
    assert!(evidence.quote().verify(&key, &NONCE).is_ok());
    for (offset, wanted) in [
        (0, QuoteError::SignatureScheme { scheme: 0x0114, hash: 0x000b }),
        (20, QuoteError::Signature),
        (261, QuoteError::Signature),
    ] {
        let mut signature = evidence.signature.clone();
        signature[offset] ^= 1;
        let quote = UntrustedQuote::new(&evidence.message, &signature, &evidence.values);
        assert_eq!(quote.verify(&key, &NONCE).unwrap_err(), wanted, "{offset}");
    }
}

#[test]
fn one_changed_byte_of_the_message_breaks_the_signature() {
    let tpm = SoftTpm::p256(1);
    let evidence = tpm.quote(&NONCE);
    for offset in 0..evidence.message.len() {
        let mut message = evidence.message.clone();
        message[offset] ^= 0x40;
        let quote = UntrustedQuote::new(&message, &evidence.signature, &evidence.values);
        assert_eq!(
            quote.verify(&tpm.public_key(), &NONCE).unwrap_err(),
            QuoteError::Signature,
            "{offset}"
        );
    }
}

#[test]
fn another_key_is_refused_whatever_its_kind() {
    let evidence = SoftTpm::p256(1).quote(&NONCE);
    assert_eq!(
        evidence.quote().verify(&SoftTpm::p256(2).public_key(), &NONCE).unwrap_err(),
        QuoteError::Signature
    );
    assert_eq!(
        evidence.quote().verify(&SoftTpm::rsa(1).public_key(), &NONCE).unwrap_err(),
        QuoteError::SignatureScheme { scheme: ALG_ECDSA, hash: ALG_SHA256 }
    );
}

#[test]
fn a_point_off_the_curve_is_no_key() {
    let key = crate::public::p256_key(&[1; 32], &[1; 32]).unwrap();
    let evidence = SoftTpm::p256(1).quote(&NONCE);
    assert_eq!(evidence.quote().verify(&key, &NONCE).unwrap_err(), QuoteError::Key);
}

#[test]
fn what_no_tpm_made_is_refused() {
    assert_eq!(changed(|fields| fields.magic = 0xff54_4348).unwrap_err(), QuoteError::Magic);
    // TPM_ST_ATTEST_CERTIFY
    assert_eq!(changed(|fields| fields.kind = 0x8017).unwrap_err(), QuoteError::Type(0x8017));
}

#[test]
fn a_nonce_must_be_equal_in_content_and_length() {
    for other in [&[8; 32][..], &NONCE[..31], &[7; 33], &[]] {
        assert_eq!(
            changed(|fields| fields.extra_data = other.to_vec()).unwrap_err(),
            QuoteError::Nonce
        );
    }
}

#[test]
fn exactly_one_selection_must_be_there() {
    let all = selection(ALG_SHA256, &ALL_PCRS);
    for count in [0, 2, 3] {
        let error = changed(|fields| fields.selections = vec![all.clone(); count]).unwrap_err();
        let found = u32::try_from(count).unwrap();
        assert_eq!(error, QuoteError::SelectionCount(found));
    }
    // SHA-1 beside SHA-256, in both orders
    let sha1 = selection(4, &ALL_PCRS);
    for pair in [[all.clone(), sha1.clone()], [sha1, all.clone()]] {
        assert_eq!(
            changed(|fields| fields.selections = pair.to_vec()).unwrap_err(),
            QuoteError::SelectionCount(2)
        );
    }
}

#[test]
fn only_the_sha256_bank_is_accepted() {
    assert_eq!(
        changed(|fields| fields.selections = vec![selection(4, &ALL_PCRS)]).unwrap_err(),
        QuoteError::Bank(4)
    );
}

#[test]
fn only_the_full_bitmap_of_three_bytes_is_accepted() {
    for bitmap in [
        &[0xff, 0xff][..],
        &[0xff, 0xff, 0xfe],
        &[0xff, 0xff, 0xff, 0x00],
        &[0xff, 0xff, 0xff, 0xff],
        &[],
    ] {
        assert_eq!(
            changed(|fields| fields.selections = vec![selection(ALG_SHA256, bitmap)]).unwrap_err(),
            QuoteError::Bitmap,
            "{bitmap:?}"
        );
    }
}

#[test]
fn exactly_24_values_must_come_along() {
    let tpm = SoftTpm::p256(1);
    for count in [0, 23, 25] {
        let values = vec![Sha256Digest::ZERO; count];
        // The digest is right for these values: their number alone is wrong.
        let message = AttestFields::quote(&NONCE, &values).marshal();
        let signature = tpm.sign(&message);
        let quote = UntrustedQuote::new(&message, &signature, &values);
        assert_eq!(
            quote.verify(&tpm.public_key(), &NONCE).unwrap_err(),
            QuoteError::ValueCount(count)
        );
    }
}

#[test]
fn other_values_in_another_order_or_a_short_digest_are_refused() {
    let tpm = SoftTpm::p256(1);
    let evidence = tpm.quote(&NONCE);
    let mut swapped = evidence.values.clone();
    swapped.swap(0, 17);
    let quote = UntrustedQuote::new(&evidence.message, &evidence.signature, &swapped);
    assert_eq!(quote.verify(&tpm.public_key(), &NONCE).unwrap_err(), QuoteError::Digest);
    for length in [0, 31] {
        assert_eq!(
            changed(|fields| fields.pcr_digest.truncate(length)).unwrap_err(),
            QuoteError::Digest
        );
    }
}

#[test]
fn trailing_and_missing_bytes_are_refused() {
    assert!(matches!(
        changed(|fields| fields.trailing = vec![0]),
        Err(QuoteError::Message(WireError::Trailing { left: 1, .. }))
    ));
    let tpm = SoftTpm::p256(1);
    let whole = tpm.attest_fields(&NONCE).marshal();
    for cut in 0..whole.len() {
        let signature = tpm.sign(&whole[..cut]);
        let values = [Sha256Digest::ZERO; PCR_COUNT];
        let quote = UntrustedQuote::new(&whole[..cut], &signature, &values);
        assert!(
            matches!(
                quote.verify(&tpm.public_key(), &NONCE),
                Err(QuoteError::Message(WireError::Truncated { .. }))
            ),
            "{cut}"
        );
    }
}

#[test]
fn members_beyond_their_bounds_are_refused() {
    assert!(matches!(
        changed(|fields| fields.qualified_signer = vec![0; 67]),
        Err(QuoteError::Message(WireError::Oversized { limit: 66, .. }))
    ));
    assert!(matches!(
        changed(|fields| fields.selections = vec![selection(ALG_SHA256, &ALL_PCRS); 17]),
        Err(QuoteError::Message(WireError::Value { value: 17, .. }))
    ));
    assert!(matches!(
        changed(|fields| fields.safe = 2),
        Err(QuoteError::Message(WireError::Value { value: 2, .. }))
    ));
    let large = vec![0; MAX_MESSAGE + 1];
    let key = SoftTpm::p256(1).public_key();
    for (message, signature) in [(&large[..], &[][..]), (&[], &large)] {
        assert_eq!(
            UntrustedQuote::new(message, signature, &[]).verify(&key, &NONCE).unwrap_err(),
            QuoteError::TooLarge { length: 1025 }
        );
    }
}

#[test]
fn malformed_signatures_are_refused() {
    let tpm = SoftTpm::p256(1);
    let evidence = tpm.quote(&NONCE);
    let verify = |signature: &[u8]| {
        UntrustedQuote::new(&evidence.message, signature, &evidence.values)
            .verify(&tpm.public_key(), &NONCE)
            .unwrap_err()
    };
    for cut in 0..evidence.signature.len() {
        assert!(
            matches!(
                verify(&evidence.signature[..cut]),
                QuoteError::SignatureFormat(WireError::Truncated { .. })
            ),
            "{cut}"
        );
    }
    let trailing = [&evidence.signature[..], &[0]].concat();
    assert!(matches!(verify(&trailing), QuoteError::SignatureFormat(WireError::Trailing { .. })));
    // r = s = 0
    let zero = [&[0, 0x18, 0, 0x0b, 0, 1, 0, 0, 1, 0][..]].concat();
    assert_eq!(verify(&zero), QuoteError::Signature);
}

#[test]
fn ecdsa_numbers_without_leading_zeros_verify() {
    // Some nonce gives an r with a leading zero byte; a TPM may send 31 bytes then.
    let tpm = SoftTpm::p256(1);
    let (nonce, evidence) = (0..100_000_u32)
        .map(u32::to_be_bytes)
        .map(|nonce| (nonce, tpm.quote(&nonce)))
        .find(|(_, evidence)| evidence.signature[6] == 0)
        .unwrap();
    let mut signature = evidence.signature.clone();
    signature[5] = 31;
    signature.remove(6);
    let quote = UntrustedQuote::new(&evidence.message, &signature, &evidence.values);
    assert!(quote.verify(&tpm.public_key(), &nonce).is_ok());
}

/// Folders with quotes of real boots.
fn fixture_quotes() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boots");
    let mut quotes: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .map(|case| case.unwrap().path().join("quote"))
        .filter(|quote| quote.is_dir())
        .collect();
    quotes.sort();
    assert!(!quotes.is_empty(), "{} is empty", root.display());
    quotes
}

#[test]
fn quotes_of_real_boots_verify_up_to_their_selection_of_16_registers() {
    for folder in fixture_quotes() {
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        let nonce = read("nonce.bin");
        for kind in ["rsa", "ecc"] {
            let area =
                crate::ak::AttestationKey::from_tpm2b(&read(&format!("ak-{kind}.pub.tpm2b")));
            let ak = area.unwrap().public().clone();
            let pem = fs::read_to_string(folder.join(format!("ak-{kind}.pem"))).unwrap();
            assert_eq!(ak, PublicKey::from_pem(&pem).unwrap());

            let message = read(&format!("quote-{kind}.msg"));
            let signature = read(&format!("quote-{kind}.sig"));
            let quote = UntrustedQuote::new(&message, &signature, &[]);
            let verify = |key, nonce: &[u8]| quote.verify(key, nonce).unwrap_err();
            assert_eq!(verify(&ak, &nonce), QuoteError::Bitmap, "{folder:?}");
            assert_eq!(verify(&ak, &nonce[1..]), QuoteError::Nonce);
            let mut altered = message.clone();
            altered[100] ^= 1;
            let altered = UntrustedQuote::new(&altered, &signature, &[]);
            assert_eq!(altered.verify(&ak, &nonce).unwrap_err(), QuoteError::Signature);
        }
    }
}

/// Registers, bitmap and values as the closure changes them; what is proven then.
fn partly(
    change: impl Fn(&mut AttestFields, &mut Vec<Sha256Digest>),
) -> Result<PartialQuote, QuoteError> {
    let tpm = SoftTpm::p256(1);
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    let sent = tpm.quote_of([4, 14].map(|pcr| PcrIndex::new(pcr).unwrap()), &NONCE);
    let mut fields = tpm.attest_fields(&NONCE);
    fields.selections = vec![selection(ALG_SHA256, &[0x10, 0x40, 0])];
    fields.pcr_digest = AttestFields::digest(&sent.values);
    let mut values = sent.values;
    change(&mut fields, &mut values);
    let message = fields.marshal();
    let signature = tpm.sign(&message);
    let quote = UntrustedQuote::new(&message, &signature, &values);
    assert!(quote.verify(&tpm.public_key(), &NONCE).is_err(), "no key for some registers");
    quote.verify_selection(&tpm.public_key(), &NONCE)
}

#[test]
fn a_quote_over_some_registers_proves_those_and_no_others() {
    let some = partly(|_, _| ()).unwrap();
    let tpm = SoftTpm::p256(1);
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    let proven: Vec<u8> = some.proven().iter().map(u8::from).collect();
    assert_eq!(proven, [4, 14]);
    for pcr in PcrIndex::all() {
        let value = tpm.pcrs().value(pcr).to_owned();
        let expected = some.proven().contains(pcr).then_some(&value);
        assert_eq!(some.value(pcr), expected, "{pcr}");
    }
    // Two bytes are enough for these.
    partly(|fields, _| fields.selections[0].bitmap = vec![0x10, 0x40]).unwrap();
}

#[test]
fn what_some_registers_do_not_prove_is_refused() {
    type Change = fn(&mut AttestFields, &mut Vec<Sha256Digest>);
    let cases: [(Change, QuoteError); 9] = [
        (|fields, _| fields.extra_data = vec![8; 32], QuoteError::Nonce),
        (|fields, _| fields.selections[0].bank = 4, QuoteError::Bank(4)),
        (|fields, _| fields.selections[0].bitmap = vec![0; 3], QuoteError::Bitmap),
        (|fields, _| fields.selections[0].bitmap = Vec::new(), QuoteError::Bitmap),
        (|fields, _| fields.selections[0].bitmap = vec![0, 0, 0, 1], QuoteError::Bitmap),
        (|fields, _| fields.selections[0].bitmap = vec![0xff; 40], QuoteError::Bitmap),
        (
            |fields, _| fields.selections.push(fields.selections[0].clone()),
            QuoteError::SelectionCount(2),
        ),
        (|_, values| values.truncate(1), QuoteError::ValueCount(1)),
        (|_, values| values.swap(0, 1), QuoteError::Digest),
    ];
    for (change, wanted) in cases {
        assert_eq!(partly(change).unwrap_err(), wanted);
    }
}
