use super::super::super::cpio;
use super::super::super::prediction::Register;
use super::super::super::stub::StubError;
use super::super::super::unpredictable::Unpredictable;
use super::*;

#[test]
fn the_generations_of_the_stub_measure_their_own_sections_in_their_order() {
    let sections = |stub, secure_boot| {
        let prediction = predict(&alone(stub), &platform(secure_boot)).unwrap();
        let names = prediction.of_register(PcrIndex::KERNEL_BOOT);
        let names: Vec<_> = names.step_by(2).filter_map(|m| m.subject.clone()).collect();
        let started = prediction.of_register(PcrIndex::BOOT_MANAGER).count();
        (names.concat(), started)
    };
    let old = ".linux.osrel.cmdline.initrd.splash.pcrpkey".to_owned();
    let new = ".linux.osrel.cmdline.initrd.splash.uname.sbat.pcrpkey".to_owned();
    assert_eq!(sections("252.1-x", SecureBoot::On), (old.clone(), 3));
    assert_eq!(sections("252.1-x", SecureBoot::Off), (old, 4));
    assert_eq!(sections("257.13", SecureBoot::On), (new.clone(), 3));
    assert_eq!(sections("257.13", SecureBoot::Off), (new.clone(), 4));
    assert_eq!(sections("262~rc1", SecureBoot::On), (new.clone(), 3));
    assert_eq!(sections("262~rc1", SecureBoot::Off), (new.clone(), 3));
    assert_eq!(sections("263", SecureBoot::Off), (new.clone(), 3));
    // Since 258, the kernel is not loaded through the firmware.
    assert_eq!(sections("258", SecureBoot::Off), (new.clone(), 3));
    assert_eq!(sections("261.2", SecureBoot::On), (new, 3));
}

#[test]
fn a_version_between_observed_ones_is_predicted_where_both_agree() {
    let image = |stub: &str, more: &[&str]| {
        let builder = PeBuilder::new()
            .section(".sdmagic", format!("#### LoaderInfo: systemd-stub {stub} ####"))
            .section(".cmdline", "quiet")
            .section(".initrd", "12345")
            .section(".linux", kernel("6.12").build());
        let builder = more.iter().fold(builder, |builder, name| builder.section(name, "x"));
        MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", signed(&builder, &[&keys().firmware.1]))
    };
    let left_out = |image: &MemoryImage| {
        let prediction = predict(image, &platform(SecureBoot::Off)).unwrap();
        let unknown = prediction.unpredictable();
        let unknown = unknown.filter(|(_, why)| matches!(why, Unpredictable::Version(_)));
        let registers = unknown.map(|(pcr, _)| u8::from(pcr)).collect::<Vec<_>>();
        let unpinned = tec_core::boot::Pins::Predicted.unpinned(&prediction.expected());
        (registers, unpinned.to_string())
    };
    let open = "initramfs is NOT checked".to_owned();
    assert_eq!(left_out(&image("255.4", &[])), (vec![], String::new()));
    // PCR 9 still covers the initramfs, unless both pack something else after it.
    assert_eq!(left_out(&image("255.4", &[".uname"])), (vec![11], String::new()));
    assert_eq!(left_out(&image("253", &[".osrel", ".sbat"])), (vec![9, 11], open));
    assert_eq!(left_out(&image("259", &[".osrel", ".sbat"])), (vec![9], String::new()));
    // An add-on is a program that only the newer one starts, and there is no version before 252.
    let addon = signed(&PeBuilder::new().section(".cmdline", "a"), &[&keys().firmware.1]);
    let beside = image("253", &[]).with("loader/addons/a.addon.efi", addon);
    for image in [beside, image("251", &[])] {
        assert!(matches!(
            predict(&image, &platform(SecureBoot::Off)),
            Err(PredictError::Stub { source: StubError::UnknownVersion(_), .. })
        ));
    }
}

#[test]
fn an_image_of_another_stub_is_named() {
    let image = |builder: &PeBuilder| {
        let builder = builder.clone().section(".linux", kernel("6.12").build());
        MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", signed(&builder, &[&keys().firmware.1]))
    };
    let named = |builder: &PeBuilder| match predict(&image(builder), &platform(SecureBoot::On)) {
        Err(PredictError::Stub { source: StubError::Foreign { what }, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert!(named(&PeBuilder::new().section(".linuxh", "x")).contains("lanzaboote"));
    assert!(named(&PeBuilder::new()).contains(".sdmagic"));
    assert_eq!(named(&PeBuilder::new().section(".sdmagic", "#### my-stub 1 ####")), "my-stub 1");
}

#[test]
fn names_and_contents_of_sections_are_hashed_as_they_lie_in_memory() {
    let prediction = predict(&alone("257"), &platform(SecureBoot::On)).unwrap();
    let events: Vec<_> = prediction.of_register(PcrIndex::KERNEL_BOOT).map(|m| m.digest).collect();
    assert_eq!(events[2], Sha256Digest::of(b".osrel\0"));
    assert_eq!(events[3], Sha256Digest::of(b"ID=x\n"));
}

#[test]
fn the_kernel_finds_the_archives_that_the_stub_appends() {
    let extra_file = |name, content| cpio::one(cpio::META, name, content);
    let of = |stub| {
        let prediction = predict(&alone(stub), &platform(SecureBoot::On)).unwrap();
        let events = prediction.of_register(PcrIndex::BOOT_FILES);
        let events: Vec<_> = events.map(|m| m.digest).collect();
        (prediction, events)
    };
    let key = extra_file("tpm2-pcr-public-key.pem", b"key");
    let release = extra_file("os-release", b"ID=x\n");
    let of_252 = [b"12345\0\0\0".as_slice(), &key].concat();
    let initrd = [&of_252[..], &release].concat();
    let options: Vec<u8> = "quiet\0".bytes().flat_map(|byte| [byte, 0]).collect();
    let (_, events) = of("257");
    assert_eq!(events, [Sha256Digest::of(&options), Sha256Digest::of(initrd)]);
    let (_, events) = of("252");
    assert_eq!(events, [Sha256Digest::of(&options), Sha256Digest::of(of_252)]);
    let (prediction, _) = of("262");
    let secret = Register::Unpredictable(&Unpredictable::BootSecret);
    assert_eq!(prediction.register(PcrIndex::BOOT_FILES), secret);
}

#[test]
fn add_ons_are_started_in_order_and_their_command_lines_measured_once() {
    let keys = keys();
    let addon = |line: &str, uname: &str| {
        let file = PeBuilder::new().section(".cmdline", line).section(".uname", uname);
        signed(&file, &[&keys.firmware.1])
    };
    let image = alone("257")
        .with("EFI/BOOT/BOOTX64.EFI.extra.d/b.addon.efi", addon("b=1", "6.12"))
        .with("EFI/BOOT/BOOTX64.EFI.extra.d/a.addon.efi", addon(" a=1\n", "6.12"))
        .with("EFI/BOOT/BOOTX64.EFI.extra.d/c.addon.efi", addon("c=1", "other"))
        .with("loader/addons/z.addon.efi", addon("z=1", "6.12"));
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    let started = prediction.of_register(PcrIndex::BOOT_MANAGER).skip(3);
    let started: Vec<_> = started.filter_map(|m| m.file.clone()).collect();
    let own = |name: &str| format!("EFI/BOOT/BOOTX64.EFI.extra.d/{name}.addon.efi");
    assert_eq!(started, ["loader/addons/z.addon.efi".to_owned(), own("a"), own("b"), own("c")]);
    let measured: Vec<_> = prediction.of_register(PcrIndex::KERNEL_CONFIG).collect();
    assert_eq!(measured.len(), 1);
    assert_eq!(measured[0].subject.as_deref(), Some("z=1 a=1 b=1"));
    let found = prediction.of_register(PcrIndex::BOOT_FILES).next().unwrap();
    assert_eq!(found.subject.as_deref(), Some("quiet z=1 a=1 b=1"));
}

#[test]
fn sections_that_depend_on_the_hardware_are_not_claimed() {
    for section in [".dtbauto", ".efifw"] {
        let file = signed(&uki("257").section(section, "x"), &[&keys().firmware.1]);
        let image = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", file);
        let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
        assert!(!prediction.predicted().contains(PcrIndex::KERNEL_BOOT));
        assert!(prediction.predicted().contains(PcrIndex::BOOT_MANAGER));
    }
}

const OWN: &str = "EFI/BOOT/BOOTX64.EFI.extra.d";

#[test]
fn what_add_ons_bring_along_is_measured_and_found_in_its_order() {
    let keys = keys();
    let addon = |ucode: &str, initrd: &str| {
        let file = PeBuilder::new().section(".ucode", ucode).section(".initrd", initrd);
        signed(&file, &[&keys.firmware.1])
    };
    let image = alone("257")
        .with(format!("{OWN}/a.addon.efi"), addon("u1", "initrd1"))
        .with("loader/addons/g.addon.efi", addon("u0", "initrd0"));
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    let measured = prediction.of_register(PcrIndex::KERNEL_CONFIG);
    let measured: Vec<_> = measured.map(|m| m.digest).collect();
    let expected = ["u1", "u0", "initrd0", "initrd1"].map(Sha256Digest::of);
    assert_eq!(measured, expected);
    let archive = |name, content| cpio::one(cpio::META, name, content);
    let key = archive("tpm2-pcr-public-key.pem", b"key");
    let release = archive("os-release", b"ID=x\n");
    let found = [
        b"u1\x00\x00u0\x00\x0012345\x00\x00\x00".as_slice(),
        &key,
        &release,
        b"initrd0\0initrd1\0",
    ];
    let initrd = prediction.of_register(PcrIndex::BOOT_FILES).last().unwrap();
    assert_eq!(initrd.digest, Sha256Digest::of(found.concat()));
}

#[test]
fn credentials_are_measured_as_the_archives_that_the_stub_packs() {
    let image = alone("257")
        .with(format!("{OWN}/b.CRED"), b"two".to_vec())
        .with(format!("{OWN}/a.cred"), b"one".to_vec())
        .with(format!("{OWN}/.c.cred"), b"hidden".to_vec())
        .with("loader/credentials/g.cred", b"global".to_vec());
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    let measured = prediction.of_register(PcrIndex::KERNEL_CONFIG);
    let measured: Vec<_> = measured.map(|m| m.digest).collect();
    let target = |folder| cpio::Target { folder, folder_mode: 0o500, file_mode: 0o400 };
    let file = |name: &str, content: &str| (name.to_owned(), content.as_bytes().to_vec());
    let own = [file("a.cred", "one"), file("b.CRED", "two")];
    let own = cpio::pack(target(".extra/credentials"), &own);
    let global = [file("g.cred", "global")];
    let global = cpio::pack(target(".extra/global_credentials"), &global);
    assert_eq!(measured, [own, global].map(Sha256Digest::of));

    // What is too large to be packed here is said to be so.
    let image = image.with(format!("{OWN}/z.cred"), vec![0; 5 << 20]);
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    for pcr in [PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES] {
        assert!(!prediction.predicted().contains(pcr));
    }
}

#[test]
fn a_profile_takes_the_place_of_the_base_and_its_number_is_measured() {
    let machine = platform(SecureBoot::On);
    let contents = |machine: &PlatformState| {
        let prediction = predict(&profiles("257"), machine).unwrap();
        let config = prediction.of_register(PcrIndex::KERNEL_CONFIG);
        let config: Vec<_> = config.map(|m| m.digest).collect();
        let content = |section: &str| {
            let events = prediction.of_register(PcrIndex::KERNEL_BOOT);
            let about = events.filter(|m| m.subject.as_deref() == Some(section));
            about.last().unwrap().digest
        };
        ([content(".cmdline"), content(".uname"), content(".profile")], config)
    };
    let (first, config) = contents(&machine);
    assert_eq!(first, ["zero", "6.12", "ID=0"].map(Sha256Digest::of));
    assert!(config.is_empty());

    let entry = |options| with_entry(machine.clone(), "\\EFI\\BOOT\\BOOTX64.EFI", options);
    let (second, config) = contents(&entry("@1 x"));
    assert_eq!(second, ["quiet ", "one", "ID=1"].map(Sha256Digest::of));
    assert_eq!(config, [Sha256Digest::of(b"1\0\0\0")]);
    assert!(matches!(
        predict(&profiles("257"), &entry("@2")),
        Err(PredictError::Stub { source: StubError::NoProfile(2), .. })
    ));
    assert!(matches!(
        predict(&profiles("252"), &machine),
        Err(PredictError::Stub { source: StubError::Repeated, .. })
    ));
}

#[test]
fn options_of_a_boot_entry_count_unless_secure_boot_guards_a_command_line() {
    let entry = |secure_boot, options| {
        with_entry(platform(secure_boot), "\\EFI\\BOOT\\BOOTX64.EFI", options)
    };
    let lines = |stub, machine: &PlatformState| {
        let prediction = predict(&alone(stub), machine).unwrap();
        let line = |pcr| {
            let first = prediction.of_register(pcr).next();
            first.and_then(|m| m.subject.clone())
        };
        (line(PcrIndex::KERNEL_CONFIG), line(PcrIndex::BOOT_FILES))
    };
    let some = |text: &str| Some(text.to_owned());
    let off = entry(SecureBoot::Off, "@0  mine \0");
    assert_eq!(lines("257", &off), (some("mine"), some("mine")));
    let old = entry(SecureBoot::Off, "@0 mine \0");
    assert_eq!(lines("252", &old), (some("@0 mine"), some("@0 mine")));
    let on = entry(SecureBoot::On, "mine");
    assert_eq!(lines("257", &on), (None, some("quiet")));
}
