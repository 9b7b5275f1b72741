use tec_core::pcr::PcrSet;
use tec_core::reference::PcrComputer as _;

use super::super::super::grub::{GrubError, GrubProfile};
use super::super::super::prediction::Register;
use super::super::super::unpredictable::Unpredictable;
use super::super::super::{ShimError, ShimProfile};
use super::*;

#[test]
fn the_generations_of_grub_differ_as_they_were_observed() {
    let count = |version, secure_boot| {
        let prediction = predict(&chain(version), &platform(secure_boot)).unwrap();
        let of = |pcr| prediction.of_register(pcr).count();
        (of(PcrIndex::BOOT_MANAGER), of(PcrIndex::BOOT_COMMANDS), of(PcrIndex::BOOT_FILES))
    };
    assert_eq!(count("2.06", SecureBoot::On), (6, 9, 3));
    assert_eq!(count("2.06", SecureBoot::Off), (4, 9, 3));
    assert_eq!(count("2.12", SecureBoot::On), (5, 5, 6));
    assert_eq!(count("2.12", SecureBoot::Off), (4, 5, 6));
    assert_eq!(count("2.14", SecureBoot::On), (5, 5, 6));
    assert_eq!(count("2.14", SecureBoot::Off), (5, 5, 6));
}

#[test]
fn unknown_builds_are_errors_and_can_be_overridden() {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    let other_shim = chain("2.12")
        .with("EFI/BOOT/BOOTX64.EFI", signed(&shim(&vendor, "15.5"), &[&keys.firmware.1]));
    let platform = platform(SecureBoot::On);
    assert!(matches!(
        predict(&other_shim, &platform),
        Err(PredictError::Shim { source: ShimError::UnknownVersion(version), .. })
            if version == "15.5"
    ));
    let overridden = BootPredictor::new().with_shim_profile(ShimProfile::V15_8);
    assert!(overridden.predict(&other_shim, &platform).is_ok());

    assert!(matches!(
        predict(&chain("2.04"), &platform),
        Err(PredictError::Grub { source: GrubError::UnknownVersion { .. }, .. })
    ));
    let overridden = BootPredictor::new().with_grub_profile(GrubProfile::V2_12);
    assert!(overridden.predict(&chain("2.04"), &platform).is_ok());
    // A version that was observed, as a vendor builds it that was not.
    for version in ["2.06", "2.12", "2.14"] {
        let other = signed(&grub(version, "grub.other"), &[&keys.vendor.1]);
        let image = chain("2.12").with("EFI/BOOT/grubx64.efi", other);
        assert!(matches!(
            predict(&image, &platform),
            Err(PredictError::Grub { source: GrubError::UnknownVersion { .. }, .. })
        ));
    }
}

#[test]
fn what_is_not_followed_leaves_the_other_registers_predicted() {
    let keys = keys();
    let with = |path: &str, content: &[u8]| chain("2.12").with(path, content.to_vec());
    let other = signed(&grub("2.12", "grub.fedora"), &[&keys.vendor.1]);
    let old = signed(&kernel("5.10"), &[&keys.vendor.1]);
    for image in [
        with("EFI/BOOT/grubx64.efi", &other),
        with("EFI/debian/grub.cfg", b"if x; then\nboot\nfi\n"),
        with("EFI/debian/grub.cfg", b"linux /vmlinuz initrd=/x\nboot\n"),
        with("vmlinuz", &old),
    ] {
        let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
        assert!(!prediction.predicted().contains(PcrIndex::BOOT_FILES));
        assert!(prediction.expected().pcr(PcrIndex::BOOT_FILES).is_none());
        let loaded = components(&prediction, PcrIndex::BOOT_MANAGER);
        assert_eq!(loaded.last(), Some(&Component::Pcr4Vmlinuz));
        assert!(prediction.predicted().contains(PcrIndex::SECURE_BOOT));
    }
    // Fedora's GRUB was observed with Secure Boot on only.
    let image = with("EFI/BOOT/grubx64.efi", &other);
    let prediction = predict(&image, &platform(SecureBoot::Off)).unwrap();
    let Register::Unpredictable(vendor) = prediction.register(PcrIndex::BOOT_MANAGER) else {
        panic!("predicted");
    };
    assert!(matches!(vendor, Unpredictable::GrubVendor(_)));
    let unbundled = with("EFI/BOOT/shim_certificate_1.efi", b"x");
    let prediction = predict(&unbundled, &platform(SecureBoot::On)).unwrap();
    assert!(!prediction.predicted().contains(PcrIndex::MOK));
}

#[test]
fn registers_that_were_not_asked_for_are_not_computed() {
    let asked: PcrSet = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect();
    let predictor = BootPredictor::new().with_registers(asked);
    for image in [chain("2.12"), alone("257")] {
        let machine = platform(SecureBoot::On);
        let all = predict(&image, &machine).unwrap();
        let prediction = predictor.predict(&image, &machine).unwrap();
        assert_eq!(prediction.predicted().iter().count(), 2);
        for pcr in asked.iter() {
            assert_eq!(prediction.register(pcr), all.register(pcr));
        }
        let not_asked = Register::Unpredictable(&Unpredictable::NotAsked);
        assert_eq!(prediction.register(PcrIndex::BOOT_FILES), not_asked);
    }
}

#[test]
fn a_predictor_bound_to_a_machine_computes_images() {
    let machine = BootPredictor::new().on(platform(SecureBoot::On));
    let expected = machine.compute(&chain("2.12")).unwrap();
    assert!(expected.pcr(PcrIndex::SECURE_BOOT).unwrap().is_consistent());
    let error = machine.compute(&chain("2.04")).unwrap_err();
    assert_eq!(error.file, "EFI/BOOT/grubx64.efi");
}

#[test]
fn registers_of_the_firmware_are_taken_from_a_verified_log() {
    use crate::event_log::{EventKind, EventLog, EventLogBuilder};
    let pcr = |index| PcrIndex::new(index).unwrap();
    let bytes = EventLogBuilder::new()
        .measure(pcr(0), EventKind::POST_CODE, b"firmware")
        .measure(pcr(2), EventKind::SEPARATOR, &[0; 4])
        .measure(PcrIndex::SECURE_BOOT, EventKind::SEPARATOR, b"other")
        .build();
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let log = log.verify(&quoted, PcrIndex::all().collect()).unwrap();
    let prediction = predict(&chain("2.12"), &platform(SecureBoot::On)).unwrap();
    let own = prediction.expected();
    let recorded: PcrSet = [pcr(0), pcr(2), PcrIndex::SECURE_BOOT].into_iter().collect();
    let prediction = prediction.with_recorded(&log, recorded);
    let expected = prediction.expected();
    assert_eq!(expected.pcr(pcr(0)).unwrap().value, *quoted.value(pcr(0)));
    assert_eq!(expected.pcr(pcr(2)).unwrap().value, *quoted.value(pcr(2)));
    // They are marked: neither predicted nor nameless in what is approved.
    let of_0 = expected.pcr(pcr(0)).unwrap();
    assert_eq!(of_0.events[0].id, "Pcr0Recorded");
    assert!(matches!(prediction.register(pcr(0)), Register::Recorded(_)));
    assert!(!prediction.predicted().contains(pcr(0)));
    assert_eq!(prediction.recorded(), [pcr(0), pcr(2)].into_iter().collect());
    // What is predicted is not overwritten.
    let secure_boot = PcrIndex::SECURE_BOOT;
    assert_eq!(expected.pcr(secure_boot), own.pcr(secure_boot));
    assert!(!prediction.predicted().contains(pcr(1)));
}
