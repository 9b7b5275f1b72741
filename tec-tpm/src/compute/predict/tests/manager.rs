use super::*;

/// systemd-boot of this version with one unified kernel image.
fn managed(version: &str) -> MemoryImage {
    let manager = PeBuilder::new()
        .section(".sdmagic", format!("#### LoaderInfo: systemd-boot {version} ####"));
    let sign = |builder: &PeBuilder| signed(builder, &[&keys().firmware.1]);
    MemoryImage::new()
        .with("EFI/BOOT/BOOTX64.EFI", sign(&manager))
        .with("EFI/Linux/a.efi", sign(&uki("257.1")))
}

fn refused(image: &MemoryImage, machine: &PlatformState) -> String {
    match predict(image, machine) {
        Err(PredictError::UnknownLoader { what, .. }) => what,
        other => panic!("{other:?}"),
    }
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
fn what_only_chooses_an_image_changes_nothing() {
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
    let second = managed("257.1").with("EFI/Linux/b.efi", b"x".to_vec());
    let chosen = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f".parse().unwrap();
    let chosen = machine.clone().with_variable("LoaderEntryDefault", chosen, 7, *b"x");
    same(&second, &chosen, Some("EFI/Linux/a.efi"));
    let entries = second.with("loader/entries/x.conf", b"x".to_vec());
    same(&entries, &machine, Some("EFI/Linux/a.efi"));
}

#[test]
fn whatever_gives_systemd_boot_a_choice_is_refused_by_name() {
    let machine = platform(SecureBoot::On);
    assert!(refused(&managed("256"), &machine).contains("not been observed"));
    for file in
        ["loader/entries/x.conf", "EFI/Microsoft/Boot/bootmgfw.efi", "EFI/systemd/drivers/x.efi"]
    {
        let image = managed("257").with(file, b"x".to_vec());
        assert!(refused(&image, &machine).contains(file), "{file}");
    }
    let several = managed("257").with("EFI/Linux/b.efi", b"x".to_vec());
    assert!(refused(&several, &machine).contains("several"));
    let missing = BootPredictor::new().with_kernel("EFI/Linux/c.efi");
    assert!(missing.predict(&several, &machine).is_err());
    let chosen = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f".parse().unwrap();
    let chosen = machine.clone().with_variable("LoaderEntryDefault", chosen, 7, *b"x");
    assert!(refused(&managed("257"), &chosen).contains("LoaderEntryDefault"));
    let handed = with_entry(machine.clone(), "\\EFI\\BOOT\\BOOTX64.EFI", "x");
    assert!(refused(&managed("257"), &handed).contains("options"));
    let plain = PeBuilder::new().section(".text", "x");
    let plain = signed(&plain, &[&keys().firmware.1]);
    let plain = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", plain);
    assert!(refused(&plain, &machine).contains("neither shim"));
}
