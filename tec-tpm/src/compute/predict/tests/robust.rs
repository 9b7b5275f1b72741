use proptest::prelude::*;

use super::super::super::authenticode::Signature;
use super::*;

#[test]
fn signatures_and_certificates_that_are_cut_off_are_refused_at_every_length() {
    let signer = &keys().firmware.1;
    let signature = signer.sign(&[1; 32]);
    assert!(Signature::parse(&signature).is_ok());
    for end in 0..signature.len() {
        assert!(Signature::parse(&signature[..end]).is_err());
    }
    for end in 0..signer.certificate.len() {
        assert!(Certificate::parse(&signer.certificate[..end]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_change_of_a_signature_makes_the_verifier_panic_or_trust_it(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4),
    ) {
        let (ca, signer) = &keys().firmware;
        let original = signer.sign(&[1; 32]);
        let trusted = Certificate::parse(ca).unwrap();
        let mut signature = original.clone();
        for (index, byte) in changes {
            let at = index.index(signature.len());
            signature[at] ^= byte;
        }
        if let Ok(parsed) = Signature::parse(&signature) {
            let _ = parsed.is_trusted_by(&trusted, &[1; 32]);
            prop_assert!(!parsed.is_trusted_by(&trusted, &[2; 32]).unwrap_or(false));
        }
    }

    #[test]
    fn no_change_of_a_file_makes_the_predictor_panic(
        file in 0..3_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let path = ["EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/grubx64.efi", "vmlinuz"][file];
        let image = chain("2.12");
        let mut content = image.content(path).unwrap().to_vec();
        for (index, byte) in changes {
            let at = index.index(content.len());
            content[at] = byte;
        }
        let image = image.with(path, content);
        let _ = predict(&image, &platform(SecureBoot::On));
        let _ = predict(&image, &platform(SecureBoot::Off));
    }
}
