use super::super::super::prediction::Register;
use super::super::super::shim::Shim;
use super::super::super::{RunningShim, RunningShimError, ShimError, ShimProfile};
use super::*;

#[test]
fn owner_keys_are_asked_after_the_vendor_and_measured_with_it() {
    let keys = keys();
    let image = chain("2.12")
        .with("EFI/BOOT/grubx64.efi", signed(&grub("2.12", "grub.debian"), &[&keys.owner.1]));
    let list = siglist::one(siglist::X509, OWNER, &keys.owner.0);
    let platform =
        platform(SecureBoot::On).with_variable("MokList", Guid::SHIM, NV_BS, list.clone());
    let prediction = predict(&image, &platform).unwrap();
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(events[8..], [Component::Pcr7GrubMokListCert, Component::Pcr7KernelMokListCert]);
    let mut mok = siglist::one(siglist::X509, Guid::SHIM, &keys.vendor.0);
    mok.extend(&list);
    let measured = prediction.of_register(PcrIndex::MOK).next().unwrap();
    assert_eq!(measured.digest, Sha256Digest::of(&mok));

    // The same machine, seen from the running system.
    let running = platform_with_mirror(&mok);
    let again = predict(&image, &running).unwrap();
    assert_eq!(again.expected(), prediction.expected());
    let foreign = platform_with_mirror(&list);
    assert!(matches!(
        predict(&image, &foreign),
        Err(PredictError::Shim { source: ShimError::ForeignMirror, .. })
    ));
    // A list that the running system could have written is deleted by shim.
    let writable = platform.with_variable("MokList", Guid::SHIM, 7, list);
    let (_, error) = refusal(&image, &writable);
    assert!(matches!(error, AuthorityError::Refused));
}

/// The running shim, and a machine as it shows itself: both of another vendor than the next shim.
fn updated() -> (RunningShim, PlatformState, Vec<u8>) {
    let old_vendor = Signer::under_ca("old vendor").0;
    let list = siglist::one(siglist::X509, OWNER, &keys().owner.0);
    let mut mirror = siglist::one(siglist::X509, Guid::SHIM, &old_vendor);
    mirror.extend(&list);
    let old = shim(&vendor_keys(&old_vendor, b""), "15.8").build();
    (RunningShim::read(old.as_slice()).unwrap(), platform_with_mirror(&mirror), list)
}

#[test]
fn owner_keys_follow_an_update_of_shim() {
    let keys = keys();
    let image = chain("2.12")
        .with("EFI/BOOT/grubx64.efi", signed(&grub("2.12", "grub.debian"), &[&keys.owner.1]));
    let (old, machine, list) = updated();
    assert!(matches!(
        predict(&image, &machine),
        Err(PredictError::Shim { source: ShimError::ForeignMirror, .. })
    ));
    let prediction = predict(&image, &machine.with_running_shim(old)).unwrap();
    let whole = platform(SecureBoot::On).with_variable("MokList", Guid::SHIM, NV_BS, list);
    assert_eq!(prediction.expected(), predict(&image, &whole).unwrap().expected());
}

#[test]
fn mirrors_that_the_running_shim_did_not_write_are_refused() {
    let (_, machine, _) = updated();
    let other = shim(&vendor_keys(&keys().vendor.0, &[]), "15.8").build();
    let machine = machine.with_running_shim(RunningShim::read(other.as_slice()).unwrap());
    assert!(matches!(
        predict(&chain("2.12"), &machine),
        Err(PredictError::Shim { source: ShimError::ForeignMirror, .. })
    ));
    assert!(matches!(
        RunningShim::read(kernel("6.12").build().as_slice()),
        Err(RunningShimError::Keys(ShimError::NoVendorKeys))
    ));
}

fn platform_with_mirror(mok: &[u8]) -> PlatformState {
    platform(SecureBoot::On)
        .with_variable("MokListRT", Guid::SHIM, 6, mok)
        .with_variable("MokListTrustedRT", Guid::SHIM, 6, [1])
        .with_variable("SbatLevelRT", Guid::SHIM, 6, AUTOMATIC)
}

#[test]
fn switching_shims_verification_off_is_measured_and_lets_everything_start() {
    let platform = platform(SecureBoot::On)
        .with_variable("MokSBState", Guid::SHIM, NV_BS, [1])
        .with_variable("MokListTrusted", Guid::SHIM, NV_BS, [1]);
    let unsigned = chain("2.12").with("vmlinuz", kernel("6.12").build());
    let prediction = predict(&unsigned, &platform).unwrap();
    let mok = [Component::Pcr14MokList, Component::Pcr14MokListX, Component::Pcr14MokSbState];
    assert_eq!(components(&prediction, PcrIndex::MOK), mok);
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(events[7..], [Component::Pcr7MokSbState, Component::Pcr7SbatLevel]);
    // GRUB then loads the kernel as with Secure Boot off.
    let of = |version: &str| {
        let image = chain(version).with("vmlinuz", kernel("6.12").build());
        let prediction = predict(&image, &platform).unwrap();
        assert!(matches!(prediction.register(PcrIndex::BOOT_MANAGER), Register::Predicted(_)));
        prediction.of_register(PcrIndex::BOOT_MANAGER).count()
    };
    assert_eq!([of("2.06"), of("2.12"), of("2.14")], [4, 4, 5]);
    // Any other value but 0 counts, too.
    let other = platform.clone();
    let other = other.with_variable("MokSBState", Guid::SHIM, NV_BS, [2]);
    assert!(predict(&unsigned, &other).is_ok());
    let verifying = platform.with_variable("MokSBState", Guid::SHIM, NV_BS, [0]);
    assert!(refusal(&unsigned, &verifying).1.is_refusal());
}

#[test]
fn the_revocation_level_only_rises_while_secure_boot_is_on() {
    use ShimProfile::{V15_6, V15_7};
    let level_of = |profile, secure_boot, stored: &[u8], policy: Option<u8>| {
        let mut platform =
            platform(secure_boot).with_variable("SbatLevel", Guid::SHIM, NV_BS, stored);
        if let Some(policy) = policy {
            platform = platform.with_variable("SbatPolicy", Guid::SHIM, NV_BS, [policy]);
        }
        let file = super::super::super::pe::PeFile::read(
            shim(&vendor_keys(&[], &[]), "16.1").build().as_slice(),
            &[".vendor_cert", ".sbatlevel"],
        )
        .unwrap();
        Shim::new(&file, &platform, secure_boot, profile).unwrap().sbat_level().to_vec()
    };
    let level = |secure_boot, stored: &[u8], policy| {
        level_of(ShimProfile::V16_1, secure_boot, stored, policy)
    };
    let (newer, older) = (&b"sbat,1,2025000000\n"[..], &b"sbat,1,2023000000\n"[..]);
    let latest = b"sbat,1,2026000000\n";
    let original = b"sbat,1,2021030218\n";
    assert_eq!(level(SecureBoot::On, newer, None), newer);
    assert_eq!(level(SecureBoot::On, older, None), AUTOMATIC);
    assert_eq!(level(SecureBoot::On, b"sbat,10,2023000000\n", None), b"sbat,10,2023000000\n");
    assert_eq!(level(SecureBoot::On, b"garbage of some length", None), AUTOMATIC);
    assert_eq!(level(SecureBoot::On, newer, Some(1)), latest);
    assert_eq!(level(SecureBoot::On, older, Some(3)), AUTOMATIC);
    assert_eq!(level(SecureBoot::Off, newer, None), original);
    assert_eq!(level(SecureBoot::Off, newer, Some(3)), original);
    assert_eq!(level(SecureBoot::Off, older, Some(2)), AUTOMATIC);
    // Up to 15.7, it is restored without Secure Boot only if that was asked for.
    for (secure_boot, stored, policy, [by_15_6, by_15_7]) in [
        (SecureBoot::Off, newer, None, [newer, newer]),
        (SecureBoot::Off, newer, Some(3), [original, original]),
        (SecureBoot::Off, b"", None, [original, AUTOMATIC]),
        (SecureBoot::On, b"", None, [original, AUTOMATIC]),
        (SecureBoot::On, newer, Some(3), [newer, newer]),
        (SecureBoot::On, b"", Some(1), [b"sbat,1,2022052400\nshim,2\ngrub,2\n", latest]),
    ] {
        let old = [V15_6, V15_7].map(|profile| level_of(profile, secure_boot, stored, policy));
        assert_eq!(old, [by_15_6, by_15_7], "{secure_boot:?} {policy:?}");
    }
}

#[test]
fn vendor_keys_and_levels_that_are_cut_off_are_refused_at_every_length() {
    let whole = vendor_keys(&keys().vendor.0, b"list");
    for end in 1..whole.len() {
        let file = signed(&shim(&whole[..end], "16.1"), &[&keys().firmware.1]);
        let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", file);
        assert!(matches!(
            predict(&image, &platform(SecureBoot::On)),
            Err(PredictError::Shim { source: ShimError::VendorKeys { .. }, .. })
        ));
    }
}

#[test]
fn the_mirrors_of_a_running_system_say_the_same_as_what_they_mirror() {
    let vendor = siglist::one(siglist::X509, Guid::SHIM, &keys().vendor.0);
    let machine = |names: [&str; 2], attributes| {
        let machine = platform(SecureBoot::On);
        let switched = machine.with_variable(names[0], Guid::SHIM, attributes, [1]);
        switched.with_variable(names[1], Guid::SHIM, attributes, [2])
    };
    let before = machine(["MokSBState", "MokPolicy"], NV_BS);
    let before = before.with_variable("MokListTrusted", Guid::SHIM, NV_BS, [1]);
    let after = machine(["MokSBStateRT", "MokPolicyRT"], 6)
        .with_variable("MokListRT", Guid::SHIM, 6, vendor)
        .with_variable("SbatLevelRT", Guid::SHIM, 6, AUTOMATIC);
    let expected = |machine| predict(&chain("2.12"), machine).unwrap().expected();
    assert_eq!(expected(&after), expected(&before));
}

#[test]
fn shim_15_6_measures_whether_its_list_is_trusted_into_pcr_7_too() {
    let of = |version: &str| {
        let shim = shim(&vendor_keys(&keys().vendor.0, &[]), version);
        let shim = signed(&shim, &[&keys().firmware.1]);
        let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", shim);
        let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
        components(&prediction, PcrIndex::SECURE_BOOT)
    };
    let [before, trusted, after] =
        [Component::Pcr7SbatLevel, Component::Pcr7MokListTrusted, Component::Pcr7GrubMokListCert];
    assert_eq!(of("15.6")[7..10], [before, trusted, after]);
    assert_eq!(of("15.7")[7..9], [before, after]);
    assert_eq!(of("15.7"), of("15.8"));
}

fn shim_error(image: &MemoryImage, machine: &PlatformState) -> ShimError {
    match predict(image, machine) {
        Err(PredictError::Shim { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_users_revocations_are_measured_and_refuse() {
    let builder = grub("2.12", "grub.debian");
    let list = |digest: &[u8]| siglist::one(siglist::SHA256, OWNER, digest);
    let machine = |digest: &[u8]| {
        platform(SecureBoot::On).with_variable("MokListX", Guid::SHIM, NV_BS, list(digest))
    };
    let prediction = predict(&chain("2.12"), &machine(&[9; 32])).unwrap();
    let measured = prediction.of_register(PcrIndex::MOK).nth(1).unwrap();
    assert_eq!(measured.digest, Sha256Digest::of(list(&[9; 32])));
    let (file, error) = refusal(&chain("2.12"), &machine(&builder.digest()));
    assert!(file == "EFI/BOOT/grubx64.efi" && error.is_refusal());
    assert!(matches!(error, AuthorityError::Revoked("MokListX")));
}

#[test]
fn shim_stops_for_the_user_for_nx_and_for_its_own_revocation() {
    let with = |name: &str, data: &[u8]| {
        platform(SecureBoot::On).with_variable(name, Guid::SHIM, NV_BS, data)
    };
    let error = |name: &str, data: &[u8]| shim_error(&chain("2.12"), &with(name, data));
    let asked = error("MokNew", b"list");
    assert!(matches!(asked, ShimError::PendingRequest { variable: "MokNew" }));
    assert_eq!(error("MokPolicy", &[1]), ShimError::NxPolicy);
    assert!(predict(&chain("2.12"), &with("MokPolicy", &[2])).is_ok());
    let level = b"sbat,1,2027000000\nshim,5\n";
    assert!(matches!(
        error("SbatLevel", level),
        ShimError::Revoked(revocation) if revocation.minimum == 5
    ));
}

#[test]
fn a_shim_that_makes_boot_entries_is_not_the_one_that_boots() {
    let image = chain("2.12");
    let file = |path: &str| image.content(path).unwrap().to_vec();
    let (shim, grub) = (file("EFI/BOOT/BOOTX64.EFI"), file("EFI/BOOT/grubx64.efi"));
    let only = image.clone().with("EFI/BOOT/fbx64.efi", b"x".to_vec());
    assert!(matches!(
        predict(&only, &platform(SecureBoot::On)),
        Err(PredictError::Fallback(file)) if file == "EFI/BOOT/fbx64.efi"
    ));
    let installed = only.with("EFI/debian/shimx64.efi", shim).with("EFI/debian/grubx64.efi", grub);
    let prediction = predict(&installed, &platform(SecureBoot::On)).unwrap();
    let started = prediction.of_register(PcrIndex::BOOT_MANAGER).nth(2);
    let started = started.and_then(|m| m.file.as_deref());
    assert_eq!(started, Some("EFI/debian/shimx64.efi"));
}

#[test]
fn the_first_boot_entry_whose_file_is_there_says_what_starts() {
    let image = chain("2.12");
    let file = |path: &str| image.content(path).unwrap().to_vec();
    let two = image
        .clone()
        .with("EFI/x/shimx64.efi", file("EFI/BOOT/BOOTX64.EFI"))
        .with("EFI/x/grubx64.efi", chain("2.14").content("EFI/BOOT/grubx64.efi").unwrap());
    let machine = platform(SecureBoot::On);
    assert!(matches!(predict(&two, &machine), Err(PredictError::Find(_))));
    let entry = |path, options| with_entry(machine.clone(), path, options);
    let prediction = predict(&two, &entry("\\EFI\\X\\shimx64.efi", "")).unwrap();
    let files = prediction.of_register(PcrIndex::BOOT_MANAGER);
    let files: Vec<_> = files.filter_map(|m| m.file.as_deref()).collect();
    assert_eq!(files[..2], ["EFI/x/shimx64.efi", "EFI/x/grubx64.efi"]);
    // Options may name another file that shim is to start.
    assert!(matches!(
        predict(&two, &entry("\\EFI\\x\\shimx64.efi", "\\other.efi")),
        Err(PredictError::LoadOptions(file)) if file == "EFI/x/shimx64.efi"
    ));
    // An entry for a file that is not there is passed over.
    let gone = entry("\\EFI\\gone\\shimx64.efi", "");
    assert!(predict(&image, &gone).is_ok());
}
