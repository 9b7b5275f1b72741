use super::super::super::hash::Banks;
use super::super::super::platform::PlatformError;
use super::super::super::sbat::SbatRevocation;
use super::super::super::signature::SignatureError;
use super::super::super::unpredictable::Unpredictable;
use super::*;
use crate::compute::{Measurement, PeFile, PeRequest};
use crate::event_log::Bank;

#[test]
fn keys_that_updates_add_are_measured_and_allow_what_they_signed() {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    let shim = signed(&shim(&vendor, "16.1"), &[&keys.owner.1]);
    let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", shim);
    let machine = platform(SecureBoot::On);
    assert!(matches!(refusal(&image, &machine).1, AuthorityError::Refused));
    let old = siglist::one(siglist::X509, OWNER, &keys.firmware.0);
    let new = siglist::one(siglist::X509, OWNER, &keys.owner.0);
    let updated = machine.clone().with_update("db", Guid::SECURITY_DATABASE, &new).unwrap();
    let updated = updated.with_update("KEK", Guid::GLOBAL, &new).unwrap();
    let prediction = predict(&image, &updated).unwrap();
    let events: Vec<_> = prediction.of_register(PcrIndex::SECURE_BOOT).collect();
    assert_eq!(events[2].digest, variable("KEK", Guid::GLOBAL, &new));
    let both = [old, new].concat();
    assert_eq!(events[3].digest, variable("db", Guid::SECURITY_DATABASE, &both));
    assert!(matches!(
        machine.with_update("KEK", Guid::GLOBAL, b"x"),
        Err(PlatformError::Update { variable: "KEK", .. })
    ));
}

#[test]
fn each_verifier_measures_the_key_that_it_found() {
    let prediction = predict(&chain("2.12"), &platform(SecureBoot::On)).unwrap();
    let authorities: Vec<_> = prediction
        .of_register(PcrIndex::SECURE_BOOT)
        .skip(6)
        .map(|m| (m.component, m.digest))
        .collect();
    let by = |owner: Guid, key: &[u8]| [owner.as_bytes().as_slice(), key].concat();
    let firmware = by(OWNER, &keys().firmware.0);
    let vendor = by(Guid::SHIM, &keys().vendor.0);
    assert_eq!(
        authorities,
        [
            (Component::Pcr7ShimCert, variable("db", Guid::SECURITY_DATABASE, &firmware)),
            (Component::Pcr7SbatLevel, variable("SbatLevel", Guid::SHIM, AUTOMATIC)),
            (Component::Pcr7GrubMokListCert, variable("MokListRT", Guid::SHIM, &vendor)),
        ]
    );
}

#[test]
fn without_variables_only_what_holds_no_keys_is_predicted() {
    let image = chain("2.12");
    for secure_boot in [SecureBoot::On, SecureBoot::Off] {
        let known = predict(&image, &platform(secure_boot)).unwrap();
        let unknown = PlatformState::with_unknown_variables(secure_boot);
        let without = predict(&image, &unknown).unwrap();
        let left: Vec<_> = without.unpredictable().collect();
        assert!(left.contains(&(PcrIndex::SECURE_BOOT, &Unpredictable::Keys)));
        assert!(left.contains(&(PcrIndex::MOK, &Unpredictable::MokLists)));
        for pcr in without.predicted().iter() {
            assert_eq!(known.register(pcr), without.register(pcr), "PCR {pcr}");
        }
        assert!(without.predicted().contains(PcrIndex::BOOT_FILES));

        let with_lists = unknown.with_known_mok_lists();
        let with_lists = predict(&image, &with_lists).unwrap();
        let mok = |prediction: &Prediction| prediction.expected().pcr(PcrIndex::MOK).cloned();
        assert!(mok(&with_lists).is_some() && mok(&with_lists) == mok(&known));
    }
}

#[test]
fn without_variables_somebody_must_have_signed_what_is_started() {
    let unsigned = chain("2.12").with("vmlinuz", kernel("6.12").build());
    let on = PlatformState::with_unknown_variables(SecureBoot::On);
    assert!(matches!(
        predict(&unsigned, &on),
        Err(PredictError::Signature { file, source: SignatureError::Unsigned }) if file == "vmlinuz"
    ));
    let off = PlatformState::with_unknown_variables(SecureBoot::Off);
    assert!(predict(&unsigned, &off).is_ok());
}

#[test]
fn secure_boot_off_asks_nobody() {
    let prediction = predict(&chain("2.12"), &platform(SecureBoot::Off)).unwrap();
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(events[6..], [Component::Pcr7SbatLevel]);
    let level = prediction.of_register(PcrIndex::SECURE_BOOT).last().unwrap();
    let original = variable("SbatLevel", Guid::SHIM, b"sbat,1,2021030218\n");
    assert_eq!(level.digest, original);
}

#[test]
fn an_image_that_no_key_allows_is_refused_by_name() {
    let keys = keys();
    let image = chain("2.12");
    let unsigned = image.clone().with("vmlinuz", kernel("6.12").build());
    let (file, error) = refusal(&unsigned, &platform(SecureBoot::On));
    assert!(file == "vmlinuz" && matches!(error, AuthorityError::Refused));

    let foreign = signed(&grub("2.12", "grub.debian"), &[&keys.owner.1]);
    let foreign = image.clone().with("EFI/BOOT/grubx64.efi", foreign);
    let (file, error) = refusal(&foreign, &platform(SecureBoot::On));
    assert!(file == "EFI/BOOT/grubx64.efi" && matches!(error, AuthorityError::Refused));

    // A signature that names the right digest and signer, but was made by another key.
    let mut forger = Signer::under_ca("forger").1;
    forger.certificate.clone_from(&keys.vendor.1.certificate);
    forger.chain.clone_from(&keys.vendor.1.chain);
    let forged = image.with("vmlinuz", signed(&kernel("6.12"), &[&forger]));
    let (file, error) = refusal(&forged, &platform(SecureBoot::On));
    assert!(file == "vmlinuz" && matches!(error, AuthorityError::Refused));
}

#[test]
fn a_changed_file_is_an_error_with_secure_boot_on_and_off() {
    let mut changed = signed(&kernel("6.12"), &[&keys().vendor.1]);
    changed[900] ^= 1;
    let image = chain("2.12").with("vmlinuz", changed);
    for secure_boot in [SecureBoot::On, SecureBoot::Off] {
        assert!(matches!(
            predict(&image, &platform(secure_boot)),
            Err(PredictError::Signature { file, source: SignatureError::Mismatch { .. } })
                if file == "vmlinuz"
        ));
    }
}

#[test]
fn digests_of_images_allow_and_revoke_them() {
    let vendor = vendor_keys(&keys().vendor.0, &[]);
    let unsigned = shim(&vendor, "16.1");
    let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", unsigned.build());
    let entry = siglist::one(siglist::SHA256, OWNER, &unsigned.digest());
    let listed = |name: &str| {
        platform(SecureBoot::On).with_variable(name, Guid::SECURITY_DATABASE, 0x27, entry.clone())
    };
    let prediction = predict(&image, &listed("db")).unwrap();
    let authority = prediction.of_register(PcrIndex::SECURE_BOOT).nth(6).unwrap();
    assert_eq!(authority.digest, variable("db", Guid::SECURITY_DATABASE, &entry[28..]));

    let (file, error) = refusal(&image, &listed("dbx"));
    assert_eq!(file, "EFI/BOOT/BOOTX64.EFI");
    assert!(matches!(error, AuthorityError::Revoked("dbx")));
    let ca = siglist::one(siglist::X509, OWNER, &keys().firmware.0);
    let revoked = platform(SecureBoot::On).with_variable("dbx", Guid::SECURITY_DATABASE, 0x27, ca);
    let (_, error) = refusal(&chain("2.12"), &revoked);
    assert!(matches!(error, AuthorityError::Revoked("dbx")));
}

#[test]
fn the_first_signature_that_is_allowed_decides_whatever_the_order_of_db() {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    let twice = signed(&shim(&vendor, "16.1"), &[&keys.owner.1, &keys.firmware.1]);
    let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", twice);
    let one = |key: &[u8]| siglist::one(siglist::X509, OWNER, key);
    let first = |db: Vec<u8>| {
        let platform =
            platform(SecureBoot::On).with_variable("db", Guid::SECURITY_DATABASE, 0x27, db);
        let prediction = predict(&image, &platform).unwrap();
        prediction.of_register(PcrIndex::SECURE_BOOT).nth(6).unwrap().digest
    };
    let measured = |key: &[u8]| variable("db", Guid::SECURITY_DATABASE, &one(key)[28..]);
    let (firmware, owner) = (&keys.firmware.0, &keys.owner.0);
    assert_eq!(first([one(firmware), one(owner)].concat()), measured(owner));
    assert_eq!(first([one(owner), one(firmware)].concat()), measured(owner));
    assert_eq!(first(one(firmware)), measured(firmware));
}

#[test]
fn a_vendor_database_is_measured_by_its_own_name() {
    let keys = keys();
    let lists = siglist::one(siglist::X509, OWNER, &keys.vendor.0);
    let vendor = vendor_keys(&lists, b"revocations");
    let image = chain("2.12")
        .with("EFI/BOOT/BOOTX64.EFI", signed(&shim(&vendor, "15.8"), &[&keys.firmware.1]));
    // Revocations that are no lists cannot be judged.
    let (_, error) = refusal(&image, &platform(SecureBoot::On));
    assert!(matches!(error, AuthorityError::List { variable: "vendor_dbx", .. }));

    let revoked = siglist::one(siglist::SHA256, OWNER, &[1; 32]);
    let vendor = vendor_keys(&lists, &revoked);
    let image =
        image.with("EFI/BOOT/BOOTX64.EFI", signed(&shim(&vendor, "15.8"), &[&keys.firmware.1]));
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    let last = prediction.of_register(PcrIndex::SECURE_BOOT).last().unwrap();
    assert_eq!(last.component, Component::Pcr7GrubVendorDbCert);
    let expected = variable("vendor_db", Guid::SECURITY_DATABASE, &lists[28..]);
    assert_eq!(last.digest, expected);
    let mok: Vec<_> = prediction.of_register(PcrIndex::MOK).map(|m| m.digest).collect();
    assert_eq!(mok[..2], [Sha256Digest::of(&lists), Sha256Digest::of(&revoked)]);
}

#[test]
fn the_keys_of_kernel_and_grub_have_names_of_their_own() {
    let keys = keys();
    let image =
        chain("2.12").with("vmlinuz", signed(&kernel("6.12"), &[&keys.owner.1, &keys.firmware.1]));
    let owner = siglist::one(siglist::X509, OWNER, &keys.owner.0);
    let machine = platform(SecureBoot::On).with_variable("MokList", Guid::SHIM, NV_BS, owner);
    let prediction = predict(&image, &machine).unwrap();
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(
        events[8..],
        [
            Component::Pcr7GrubMokListCert,
            Component::Pcr7KernelMokListCert,
            Component::Pcr7KernelDbCert
        ]
    );
}

#[test]
fn a_revoked_signature_refuses_an_image_at_the_firmware_but_not_at_shim() {
    let keys = keys();
    let both = [&keys.owner.1, &keys.vendor.1];
    let grub = signed(&grub("2.12", "grub.debian"), &both);
    let image = chain("2.12").with("EFI/BOOT/grubx64.efi", grub);
    let owner = siglist::one(siglist::X509, OWNER, &keys.owner.0);
    let revoked = |machine: PlatformState| {
        machine.with_variable("dbx", Guid::SECURITY_DATABASE, 0x27, owner.clone())
    };
    let machine = revoked(platform(SecureBoot::On));
    assert!(predict(&image, &machine).is_ok());

    let only = signed(&super::grub("2.12", "grub.debian"), &[&keys.owner.1]);
    let (file, error) = refusal(&image.clone().with("EFI/BOOT/grubx64.efi", only), &machine);
    assert!(file == "EFI/BOOT/grubx64.efi" && error.is_refusal());
    assert!(matches!(error, AuthorityError::Revoked("dbx")));

    let vendor = vendor_keys(&keys.vendor.0, &[]);
    let shim = signed(&shim(&vendor, "16.1"), &[&keys.firmware.1, &keys.owner.1]);
    let (file, error) = refusal(&image.with("EFI/BOOT/BOOTX64.EFI", shim), &machine);
    assert!(file == "EFI/BOOT/BOOTX64.EFI" && error.is_refusal());
}

#[test]
fn the_digest_of_a_signers_certificate_revokes_it_at_the_firmware() {
    use sha2::Sha384;
    let tbs = Certificate::parse(&keys().firmware.1.certificate).unwrap().tbs;
    for (kind, mut value) in [
        (siglist::X509_SHA256, Sha256::digest(tbs).to_vec()),
        (siglist::X509_SHA384, Sha384::digest(tbs).to_vec()),
    ] {
        value.extend([0; 16]); // time of revocation
        let list = siglist::one(kind, OWNER, &value);
        let machine = platform(SecureBoot::On);
        let machine = machine.with_variable("dbx", Guid::SECURITY_DATABASE, 0x27, list);
        let (_, error) = refusal(&chain("2.12"), &machine);
        assert!(matches!(error, AuthorityError::Revoked("dbx")));
    }
}

/// A file whose only signature is over its digest of this bank.
fn signed_over(bank: Bank, builder: &PeBuilder, signer: &Signer) -> Vec<u8> {
    let plain = builder.build();
    let file = PeFile::read_as(plain.as_slice(), &PeRequest::new(Banks::ALL)).unwrap();
    let digest = file.authenticode_digests().get(bank).unwrap().to_vec();
    builder.clone().signature(signer.sign(&digest)).build()
}

#[test]
fn firmware_compares_larger_digests_and_shim_does_not() {
    let (keys, machine) = (keys(), platform(SecureBoot::On));
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    for bank in [Bank::Sha384, Bank::Sha512] {
        let shim = signed_over(bank, &shim(&vendor, "16.1"), &keys.firmware.1);
        let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", shim.clone());
        let prediction = predict(&image, &machine).unwrap();
        let usual = predict(&chain("2.12"), &machine).unwrap();
        for pcr in [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT] {
            assert_eq!(
                prediction.register(pcr),
                usual.register(pcr),
                "signatures are not measured"
            );
        }
        let grub = signed_over(bank, &grub("2.12", "grub.debian"), &keys.vendor.1);
        let grub = chain("2.12").with("EFI/BOOT/grubx64.efi", grub);
        let (file, error) = refusal(&grub, &machine);
        assert!(file == "EFI/BOOT/grubx64.efi" && matches!(error, AuthorityError::Refused));
        // Without the variables of the machine either.
        let unknown = PlatformState::with_unknown_variables(SecureBoot::On);
        assert!(predict(&image, &unknown).is_ok());
        assert!(matches!(
            predict(&grub, &unknown),
            Err(PredictError::Signature { file, source: SignatureError::Unsigned })
                if file == "EFI/BOOT/grubx64.efi"
        ));

        let mut other = shim;
        other[0x3f0] ^= 1;
        let other = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", other);
        assert!(matches!(
            predict(&other, &machine),
            Err(PredictError::Signature { source: SignatureError::Mismatch { .. }, .. })
        ));
    }
}

#[test]
fn a_larger_digest_in_a_database_counts_for_who_signed_it() {
    let (keys, machine) = (keys(), platform(SecureBoot::On));
    let builder = shim(&vendor_keys(&keys.vendor.0, &[]), "16.1");
    let file = PeFile::read_as(builder.build().as_slice(), &PeRequest::new(Banks::ALL)).unwrap();
    let digest = file.authenticode_digests().get(Bank::Sha384).unwrap().to_vec();
    let list = siglist::one(siglist::SHA384, OWNER, &digest);
    let listed = |variable| {
        machine.clone().with_variable(variable, Guid::SECURITY_DATABASE, 0x27, list.clone())
    };
    // By a key that the machine does not have.
    let foreign = signed_over(Bank::Sha384, &builder, &keys.owner.1);
    let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", foreign);
    assert!(matches!(refusal(&image, &machine).1, AuthorityError::Refused));
    let prediction = predict(&image, &listed("db")).unwrap();
    let of = |event: &&Measurement| event.component == Component::Pcr7ShimCert;
    let authority = prediction.of_register(PcrIndex::SECURE_BOOT).find(of).unwrap();
    let entry = [OWNER.as_bytes().as_slice(), &digest].concat();
    assert_eq!(authority.digest, variable("db", Guid::SECURITY_DATABASE, &entry));
    let own = signed_over(Bank::Sha384, &builder, &keys.firmware.1);
    let own = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", own);
    assert!(predict(&own, &machine).is_ok());
    assert!(matches!(refusal(&own, &listed("dbx")).1, AuthorityError::Revoked("dbx")));
}

#[test]
fn sha_1_digests_are_compared_where_that_bank_is_computed() {
    let list = siglist::one(siglist::SHA1, OWNER, &[1; 20]);
    let machine = platform(SecureBoot::On);
    let machine = machine.with_variable("dbx", Guid::SECURITY_DATABASE, 0x27, list);
    let (file, error) = refusal(&chain("2.12"), &machine);
    assert!(file == "EFI/BOOT/grubx64.efi" && !error.is_refusal());
    assert!(matches!(error, AuthorityError::Sha1Entries("dbx")));
    let all = BootPredictor::new().with_banks(Banks::ALL);
    assert!(all.predict(&chain("2.12"), &machine).is_ok());
}

#[test]
fn the_stored_level_refuses_what_is_below_it() {
    let stored = |level: &[u8]| {
        platform(SecureBoot::On).with_variable("SbatLevel", Guid::SHIM, NV_BS, level)
    };
    assert!(predict(&chain("2.12"), &stored(b"sbat,1,2027000000\nshim,4\ngrub,5\n")).is_ok());
    let level = stored(b"sbat,1,2027000000\nshim,4\ngrub,6\n");
    let (file, error) = refusal(&chain("2.12"), &level);
    let AuthorityError::SbatRevoked(revocation) = &error else {
        panic!("{error:?}");
    };
    assert!(error.is_refusal() && file == "EFI/BOOT/grubx64.efi");
    let SbatRevocation { component, generation, minimum } = revocation;
    assert_eq!((component.as_str(), *generation, *minimum), ("grub", 5, 6));
    // With Secure Boot off nobody asks.
    let off = level.with_secure_boot(SecureBoot::Off);
    assert!(predict(&chain("2.12"), &off).is_ok());
}

#[test]
fn shim_starts_nothing_without_a_generation_but_grub_does() {
    let bare = PeBuilder::new().section(".text", b"GRUB".repeat(100));
    let bare = signed(&bare, &[&keys().vendor.1]);
    let image = chain("2.12").with("EFI/BOOT/grubx64.efi", bare);
    let (_, error) = refusal(&image, &platform(SecureBoot::On));
    assert!(matches!(error, AuthorityError::NoSbat));
    // The kernel of the chain has none either.
    assert!(predict(&chain("2.12"), &platform(SecureBoot::On)).is_ok());
}
