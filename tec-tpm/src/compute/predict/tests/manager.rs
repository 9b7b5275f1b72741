use super::super::super::unpredictable::Unpredictable;
use super::*;

/// systemd-boot of this version.
fn manager(version: &str) -> MemoryImage {
    let manager = PeBuilder::new()
        .section(".sdmagic", format!("#### LoaderInfo: systemd-boot {version} ####"));
    MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", sign(&manager))
}

fn sign(builder: &PeBuilder) -> Vec<u8> {
    signed(builder, &[&keys().firmware.1])
}

/// systemd-boot of this version with one unified kernel image.
fn managed(version: &str) -> MemoryImage {
    manager(version).with("EFI/Linux/a.efi", sign(&uki("257.1")))
}

fn refused(image: &MemoryImage, machine: &PlatformState) -> String {
    match predict(image, machine) {
        Err(PredictError::UnknownLoader { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

fn with_variable(name: &str, text: &str) -> PlatformState {
    let vendor = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f".parse().unwrap();
    platform(SecureBoot::On).with_variable(name, vendor, 7, wide(text))
}

/// The file of an image that starts.
fn started(image: &MemoryImage, machine: &PlatformState) -> String {
    let prediction = predict(image, machine).unwrap();
    let last = prediction.of_register(PcrIndex::BOOT_MANAGER).nth(3).unwrap();
    last.file.clone().unwrap()
}

#[test]
fn systemd_boot_starts_the_one_image_that_there_is() {
    let prediction = predict(&managed("257.1"), &platform(SecureBoot::On)).unwrap();
    assert_eq!(
        components(&prediction, PcrIndex::BOOT_MANAGER)[2..],
        [Component::Pcr4Manager, Component::Pcr4Uki]
    );
    // Both are allowed by one key, which is measured once.
    assert_eq!(prediction.of_register(PcrIndex::SECURE_BOOT).count(), 7);
    assert_eq!(prediction.of_register(PcrIndex::KERNEL_CONFIG).count(), 0);
}

#[test]
fn what_does_not_choose_another_image_changes_nothing() {
    let machine = platform(SecureBoot::On);
    let plain = predict(&managed("257.1"), &machine).unwrap();
    let same = |image: &MemoryImage, machine: &PlatformState, chosen: Option<&str>| {
        let predictor =
            chosen.map_or_else(BootPredictor::new, |path| BootPredictor::new().with_kernel(path));
        let prediction = predictor.predict(image, machine).unwrap();
        assert_eq!(prediction.expected(), plain.expected());
    };
    // `bootctl install` writes one.
    let with_conf = managed("257.1").with("loader/loader.conf", b"timeout 3\n".to_vec());
    same(&with_conf, &machine, None);
    let second = managed("257.1").with("EFI/Linux/b.efi", sign(&uki("257.1")));
    same(&second, &with_variable("LoaderEntryDefault", "b.efi"), Some("EFI/Linux/a.efi"));
    // What it could start only if someone chooses it, and what is none of its entries.
    for file in ["EFI/Microsoft/Boot/bootmgfw.efi", "shellx64.efi", "EFI/Linux/no.efi"] {
        same(&managed("257.1").with(file, b"x".to_vec()), &machine, None);
    }
    let keys = managed("257.1").with("loader/keys/auto/db.auth", b"x".to_vec());
    same(&keys, &machine, None);
    let named = |name: &str| manager("257.1").with(name, sign(&uki("257.1")));
    for name in ["EFI/Linux/a+3.efi", "EFI/Linux/a+2-1.efi"] {
        let counted = predict(&named(name), &machine).unwrap().expected();
        let value = |pcr| counted.pcr(pcr).map(|pcr| pcr.value);
        let plain = plain.expected();
        assert_eq!(
            plain.pcrs.iter().map(|pcr| Some(pcr.value)).collect::<Vec<_>>(),
            plain.pcrs.iter().map(|pcr| value(pcr.id)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn of_several_images_the_one_that_systemd_boot_would_start_is_predicted() {
    let release = |text: &str| {
        let builder = PeBuilder::new().section(".osrel", text);
        let magic = "#### LoaderInfo: systemd-stub 257 ####";
        sign(&builder.section(".sdmagic", magic).section(".linux", kernel("6.12").build()))
    };
    let machine = platform(SecureBoot::On);
    let with = |files: &[(&str, &str)]| {
        files.iter().fold(manager("257"), |image, (name, text)| {
            image.with(format!("EFI/Linux/{name}.efi"), release(text))
        })
    };
    let first = |files: &[(&str, &str)]| started(&with(files), &machine);
    let (old, new) = ("ID=debian\nVERSION_ID=\"9\"\n", "ID=debian\nVERSION_ID=10\n");
    // Equal releases: by name.
    assert_eq!(first(&[("debian-a", old), ("debian-b", old)]), "EFI/Linux/debian-b.efi");
    assert_eq!(first(&[("a-9", old), ("a-10", old)]), "EFI/Linux/a-10.efi");
    assert_eq!(first(&[("a", new), ("b", old)]), "EFI/Linux/a.efi");
    assert_eq!(first(&[("a+0-3", new), ("b", old)]), "EFI/Linux/b.efi", "no tries are left");
    assert_eq!(first(&[("a", old), ("b", "ID=arch\n")]), "EFI/Linux/b.efi", "by sort key");
    let both = with(&[("a", old), ("b", old)]);
    let configured = |text: &str| both.clone().with("loader/loader.conf", text.as_bytes().to_vec());
    let a = "EFI/Linux/a.efi";
    assert_eq!(started(&configured("default b\ndefault A.*\n"), &machine), a);
    assert_eq!(started(&configured("#x\ndefault none*\n"), &machine), "EFI/Linux/b.efi");
    assert_eq!(started(&both, &with_variable("LoaderEntryOneShot", "a.efi")), a);
    let saved = configured("default @saved");
    assert_eq!(started(&saved, &with_variable("LoaderEntryLastBooted", "a.efi")), a);
    assert_eq!(started(&saved, &machine), "EFI/Linux/b.efi");
    assert!(refused(&configured("preferred a.efi"), &machine).contains("preferred"));
    assert!(refused(&both, &with_variable("LoaderEntryPreferred", "a.efi")).contains("preferred"));
    for unclear in ["[ab].efi", "a.efi@1", "auto-windows"] {
        let text = format!("default {unclear}");
        assert!(refused(&configured(&text), &machine).contains(unclear), "{unclear}");
    }
}

#[test]
fn of_several_profiles_the_first_is_started() {
    let image = profiles("257");
    let file = image.content("EFI/BOOT/BOOTX64.EFI").unwrap().to_vec();
    let managed = manager("257").with("EFI/Linux/a.efi", file);
    let machine = platform(SecureBoot::On);
    let sections = |image: &MemoryImage| {
        let prediction = predict(image, &machine).unwrap();
        prediction.of_register(PcrIndex::KERNEL_BOOT).map(|m| m.digest).collect::<Vec<_>>()
    };
    assert_eq!(sections(&managed), sections(&image));
}

/// As recorded (bookworm-sdboot-control): systemd-boot measures it, and the stub that gets it.
#[test]
fn systemd_boot_252_hands_the_command_line_of_an_image_to_it() {
    let line = "root=LABEL=boots rw console=ttyS0 mitigations=off systemd.show_status=0 quiet";
    let image = |version: &str, stub: &str, line: &str| {
        let builder = PeBuilder::new()
            .section(".sdmagic", format!("#### LoaderInfo: systemd-stub {stub} ####"))
            .section(".cmdline", line)
            .section(".linux", kernel("6.12").build());
        manager(version).with("EFI/Linux/debian.efi", sign(&builder))
    };
    let measured = |image: &MemoryImage, secure_boot| {
        let prediction = predict(image, &platform(secure_boot)).unwrap();
        let measured = prediction.of_register(PcrIndex::KERNEL_CONFIG);
        let measured: Vec<_> = measured.map(|m| m.digest.to_string()).collect();
        (measured, prediction.predicted().contains(PcrIndex::KERNEL_CONFIG))
    };
    let one = "ea56501e514e5c4244f747c50b6680d25d9aa25eaa9a7cc8d89d6fad0ebbe1dc".to_owned();
    let old = image("252.39-1~deb12u2", "252.39", line);
    assert_eq!(measured(&old, SecureBoot::Off), (vec![one.clone(), one.clone()], true));
    assert_eq!(measured(&old, SecureBoot::On), (vec![one], true));
    let blanks = image("252.39", "252.39", " console=ttyS0  quiet\tx=1 ");
    let kept = "7cdb2ef3f9ccfa854c2693c446327bbc199f7e03c255424ac3e717c2e2faa88d".to_owned();
    assert_eq!(measured(&blanks, SecureBoot::Off), (vec![kept.clone(), kept], true));
    // It is not known when this ended.
    assert!(!measured(&image("255", "257", line), SecureBoot::Off).1);
    assert!(measured(&image("255", "257", ""), SecureBoot::Off).1);
    assert_eq!(measured(&image("259", "257", line), SecureBoot::Off), (vec![], true));
}

const TEXT: &str =
    "title Debian\nversion 1\nlinux /debian/linux\ninitrd /debian/initrd\noptions a b\n";

/// systemd-boot with a kernel that an entry of type #1 names.
fn listed(version: &str, text: &str) -> MemoryImage {
    manager(version)
        .with("loader/entries/debian.conf", text.as_bytes().to_vec())
        .with("debian/linux", sign(&kernel("6.12")))
        .with("debian/initrd", b"initrd".to_vec())
}

#[test]
fn the_kernel_of_an_entry_finds_its_options_and_its_initramfs() {
    let machine = platform(SecureBoot::On);
    let prediction = predict(&listed("257", TEXT), &machine).unwrap();
    let digests = |pcr| prediction.of_register(pcr).map(|m| m.digest).collect::<Vec<_>>();
    let line = Sha256Digest::of(wide("initrd=\\debian\\initrd a b"));
    assert_eq!(digests(PcrIndex::KERNEL_CONFIG), [line]);
    assert_eq!(digests(PcrIndex::BOOT_FILES), [line, Sha256Digest::of("initrd")]);
    assert!(digests(PcrIndex::KERNEL_BOOT).is_empty());
    assert_eq!(
        components(&prediction, PcrIndex::BOOT_MANAGER)[2..],
        [Component::Pcr4Manager, Component::Pcr4Vmlinuz]
    );
    let unpinned = tec_core::boot::Pins::Predicted.unpinned(&prediction.expected());
    assert!(unpinned.is_empty(), "{unpinned}");
    for chosen in ["loader/entries/debian.conf", "debian/linux"] {
        let other = listed("257", TEXT).with("EFI/Linux/z.efi", sign(&uki("257")));
        let predictor = BootPredictor::new().with_kernel(chosen);
        let chosen = predictor.predict(&other, &machine).unwrap();
        assert_eq!(chosen.expected(), prediction.expected());
    }
}

#[test]
fn an_entry_that_is_not_understood_is_not_predicted() {
    let machine = platform(SecureBoot::On);
    for (version, text) in [
        ("255", TEXT.to_owned()),
        ("257", TEXT.replace("a b", "a noinitrd")),
        ("257", TEXT.replace("a b", "\u{e4}")),
        ("257", format!("{TEXT}initrd /debian/more\n")),
        ("257", TEXT.replace("initrd /debian/initrd\n", "")),
    ] {
        let prediction = predict(&listed(version, &text), &machine).unwrap();
        let predicted = prediction.predicted();
        assert!(!predicted.contains(PcrIndex::BOOT_FILES), "{text}");
        assert!(predicted.contains(PcrIndex::BOOT_MANAGER), "{text}");
    }
    let old = predict(&listed("255", TEXT), &machine).unwrap();
    let mut unknown = old.unpredictable();
    assert!(unknown.any(|(_, why)| matches!(why, Unpredictable::Version(_))));
    let other = TEXT.replace("linux /debian/linux", "efi /debian/linux");
    assert!(refused(&listed("257", &other), &machine).contains("loader/entries/debian.conf"));
    let inner = listed("257", TEXT).with("debian/linux", sign(&uki("257")));
    assert!(refused(&inner, &machine).contains("unified kernel image"));
    // An entry whose kernel is missing, or for another machine, is not in the menu.
    for (from, to) in [("debian/linux", "debian/none"), ("title Debian", "architecture aa64")] {
        let image = listed("257", &TEXT.replace(from, to));
        assert!(refused(&image, &machine).contains("no entry"));
    }
}

#[test]
fn what_else_systemd_boot_would_do_is_refused_by_name() {
    let machine = platform(SecureBoot::On);
    assert!(refused(&managed("251"), &machine).contains("not been observed"));
    let driver = managed("257").with("EFI/systemd/drivers/x.efi", b"x".to_vec());
    assert!(refused(&driver, &machine).contains("drivers/x.efi"));
    let missing = BootPredictor::new().with_kernel("EFI/Linux/c.efi");
    assert!(missing.predict(&managed("257"), &machine).is_err());
    let handed = with_entry(machine.clone(), "\\EFI\\BOOT\\BOOTX64.EFI", "x");
    assert!(refused(&managed("257"), &handed).contains("options"));
    let plain = PeBuilder::new().section(".text", "x");
    let plain = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", sign(&plain));
    assert!(refused(&plain, &machine).contains("neither shim"));

    let keys = managed("257").with("loader/keys/auto/db.auth", b"x".to_vec());
    let setup = platform(SecureBoot::Off).with_variable("SetupMode", Guid::GLOBAL, 6, [1]);
    assert!(refused(&keys, &setup).contains("setup mode"));
    let off = keys.with("loader/loader.conf", b"secure-boot-enroll off\n".to_vec());
    assert!(predict(&off, &setup).is_ok());
}
