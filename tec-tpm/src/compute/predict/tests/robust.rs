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
        file in 0..5_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (image, path) = match file {
            0 => (chain("2.12"), "EFI/BOOT/BOOTX64.EFI"),
            1 => (chain("2.12"), "EFI/BOOT/grubx64.efi"),
            2 => (chain("2.12"), "vmlinuz"),
            3 => (alone("257"), "EFI/BOOT/BOOTX64.EFI"),
            _ => (profiles("257"), "EFI/BOOT/BOOTX64.EFI"),
        };
        let mut content = image.content(path).unwrap().to_vec();
        // Half of the changes hit the headers.
        for (number, (index, byte)) in changes.into_iter().enumerate() {
            let within = if number % 2 == 0 { content.len() } else { 0x300 };
            content[index.index(within)] = byte;
        }
        let image = image.with(path, content);
        for secure_boot in [SecureBoot::On, SecureBoot::Off] {
            let machine = platform(secure_boot);
            let _ = predict(&image, &machine);
            let _ = predict(&image, &with_entry(machine, "\\EFI\\BOOT\\BOOTX64.EFI", "@1 x"));
        }
    }

    #[test]
    fn no_boot_entry_makes_the_predictor_panic(entry in proptest::collection::vec(any::<u8>(), 0..80)) {
        let machine = platform(SecureBoot::Off)
            .with_variable("BootOrder", Guid::GLOBAL, 7, [5, 0, 9])
            .with_variable("Boot0005", Guid::GLOBAL, 7, entry);
        let _ = predict(&alone("257"), &machine);
    }
}
