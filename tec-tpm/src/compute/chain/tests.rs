use std::error::Error as _;

use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcr;

use super::super::find::{BootComponent, FindError};
use super::super::grub::GrubError;
use super::super::hash::{BankDigests, Banks};
use super::super::measurement::Component;
use super::super::pe::PeFile;
use super::super::sbat::SbatError;
use super::super::signature::SignatureError;
use super::super::testing::{PeBuilder, application, debian_chain, grub};
use super::*;

const SHIM: &str = "usr/lib/shim/shimx64.efi.signed";
const GRUB: &str = "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed";
const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

fn pcr4(computer: &ChainComputer, image: &dyn BootImage) -> ExpectedPcr {
    let computed = computer.compute(image).unwrap();
    computed.pcr(PcrIndex::BOOT_MANAGER).unwrap().clone()
}

#[test]
fn grub_tells_its_profile() {
    let profile = |version: &str| {
        let file = PeFile::read(grub(version).as_slice(), &[".sbat"]).unwrap();
        GrubProfile::from_sbat(file.section(".sbat"))
    };
    assert_eq!(profile("2.06"), Ok(GrubProfile::V2_06));
    assert_eq!(profile("2.12"), Ok(GrubProfile::V2_12));
    assert_eq!(profile("2.14"), Ok(GrubProfile::V2_14));
    assert_eq!(
        profile("2.04"),
        Err(GrubError::UnknownVersion { version: "2.04".into(), vendor: "debian".into() })
    );
    let sbat = |text: &str| GrubProfile::from_sbat(Some(text.as_bytes()));
    assert_eq!(GrubProfile::from_sbat(None), Err(GrubError::NoSbat));
    assert_eq!(
        sbat("systemd-stub,1,The systemd Developers,systemd,257,url\n"),
        Err(GrubError::NotGrub)
    );
    for (version, vendor, package, profile) in [
        ("2.06", "rh", "2.06-80.el9", Ok(GrubProfile::RedHat2_06)),
        ("2.06", "rh", "2.06-116.fc39", Ok(GrubProfile::RedHat2_06)),
        ("2.12", "fedora", "2.12-1", Ok(GrubProfile::Fedora2_12)),
        ("2.12", "rh", "2.12-32.fc42", Ok(GrubProfile::Fedora2_12)),
        ("2.12", "rh", "2.12-15.el10", Ok(GrubProfile::Rhel2_12)),
        ("2.12", "ubuntu", "2.12-1ubuntu7", Err("ubuntu")),
        ("2.12", "opensuse", "2.12", Err("opensuse")),
        ("2.14", "rh", "2.14-1.fc45", Err("rh")),
    ] {
        let text = format!("grub,3,FSF,grub,{version},u\ngrub.{vendor},2,V,grub2,{package},u\n");
        let unknown = |vendor: &str| {
            let (version, vendor) = (version.to_owned(), vendor.to_owned());
            GrubError::UnknownVersion { version, vendor }
        };
        assert_eq!(sbat(&text), profile.map_err(unknown), "{package}");
    }
    assert_eq!(
        sbat("grub,3,FSF,grub,2.06,url\ngrub,3,FSF,grub,2.12,url\n"),
        Err(GrubError::Contradiction { first: "2.06".into(), second: "2.12".into() })
    );
    assert_eq!(sbat("grub,3,FSF\n"), Err(GrubError::Sbat(SbatError::Line(1))));
    assert_eq!(
        GrubProfile::from_sbat(Some(b"grub\xff")),
        Err(GrubError::Sbat(SbatError::Encoding(4)))
    );
    assert_eq!(sbat(&"\n".repeat(257)), Err(GrubError::Sbat(SbatError::TooManyLines(256))));
}

#[test]
fn the_kernel_is_measured_as_often_as_grub_has_it() {
    use GrubProfile as G;
    let table = [
        (G::V2_06, SecureBoot::On, 2),
        (G::V2_06, SecureBoot::Off, 0),
        (G::RedHat2_06, SecureBoot::On, 1),
        (G::RedHat2_06, SecureBoot::Off, 0),
        (G::Fedora2_12, SecureBoot::On, 1),
        (G::V2_12, SecureBoot::On, 1),
        (G::V2_12, SecureBoot::Off, 0),
        (G::V2_14, SecureBoot::On, 1),
        (G::V2_14, SecureBoot::Off, 1),
    ];
    let image = debian_chain("2.99");
    for (profile, secure_boot, count) in table {
        let measured =
            ChainComputer::new(secure_boot).with_grub_profile(profile).measure(&image).unwrap();
        let kernels = measured.iter().filter(|m| m.component == Component::Pcr4Vmlinuz);
        assert_eq!(kernels.count(), count, "{profile:?} {secure_boot:?}");
        assert_eq!(measured.len(), 4 + count);
    }
    let error = ChainComputer::new(SecureBoot::On).measure(&image).unwrap_err();
    assert!(matches!(&error, PredictError::Grub { file, .. } if file == GRUB));
}

#[test]
fn the_chain_folds_to_pcr_4_and_names_its_files() {
    let image = debian_chain("2.12");
    let computed = ChainComputer::new(SecureBoot::On).compute(&image).unwrap();
    let pcr4 = computed.pcr(PcrIndex::BOOT_MANAGER).unwrap();
    assert!(pcr4.is_consistent());
    let sources: Vec<_> = pcr4.events.iter().map(|e| e.source.as_deref()).collect();
    assert_eq!(sources, [None, None, Some(SHIM), Some(GRUB), Some(KERNEL)]);
    let names: Vec<_> = pcr4.events.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "EV_EFI_ACTION",
            "EV_SEPARATOR",
            "EV_EFI_BOOT_SERVICES_APPLICATION",
            "EV_EFI_BOOT_SERVICES_APPLICATION",
            "EV_EFI_BOOT_SERVICES_APPLICATION"
        ]
    );
    let kernel = PeBuilder::new().section(".text", "Linux".repeat(100)).section(".data", "Linux");
    assert_eq!(pcr4.events[4].hash, Sha256Digest::new(kernel.digest()));
    assert_eq!(computed, ChainComputer::new(SecureBoot::On).compute(&image).unwrap());
}

/// Two boots of Fedora, and the mixes of their loaders and kernels.
#[test]
fn known_digests_fold_to_known_values_in_all_mixes() {
    let shim = "94896c17d49fc8c8df0cc2836611586edab1615ce7cb58cf13fc5798de56b367";
    let grub_a = "bc6844fc7b59b4f0c7da70a307fc578465411d7a2c34b0f4dc2cc154c873b644";
    let grub_b = "f45c2c974192366a5391e077c3cbf91e735e86eba2037fd86a1f1501818f73f4";
    let kernel_a = "72c613f1b4d60dcf51f82f3458cca246580d23150130ec6751ac6fa62c867364";
    let kernel_b = "f31e645e5e9ed131eea5dca0a18893a21e5625b4a56314fa39587ddc33a7fa91";
    let expected = [
        (grub_a, kernel_a, "ff2b357be4a4bc66be796d4e7b2f1f27077dc89b96220aae60b443bcf4672525"),
        (grub_b, kernel_b, "37517a1f76c4d5cf615f4690921c732ad31359aac55f3aaf66d65a8ed38655a9"),
        (grub_a, kernel_b, "0c4e52c0bc5d2fedbf83b2fee82664dbe5347a79cfb2cbcb9a37f64211add6e8"),
        (grub_b, kernel_a, "cc5a5360e64b25718be370ca2056645a9ba9e9bae33df08308d6b8e05b8ebb87"),
    ];
    let efi_call = "3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";
    let separator = "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119";
    let start = || {
        let (component, pcr) = (Component::Pcr4Separator, PcrIndex::BOOT_MANAGER);
        let call = Measurement::efi_call(Banks::SHA256);
        [call, Measurement::separator(component, pcr, Banks::SHA256)]
    };
    assert_eq!(start().map(|measured| measured.digest.to_string()), [efi_call, separator]);
    for (grub, kernel, value) in expected {
        let application = |component, digest: &str| {
            let digests = BankDigests::from_sha256(digest.parse().unwrap());
            Measurement::application(component, digests, "file")
        };
        let programs = [
            application(Component::Pcr4Shim, shim),
            application(Component::Pcr4Grub, grub),
            application(Component::Pcr4Vmlinuz, kernel),
        ];
        let folded = Measurement::fold(start().into_iter().chain(programs));
        assert_eq!(folded.pcrs[0].value.to_string(), value);
    }
}

#[test]
fn a_changed_or_unsigned_file_is_refused() {
    let on = ChainComputer::new(SecureBoot::On);
    let mut tampered = debian_chain("2.12");
    let mut kernel = tampered.content(KERNEL).unwrap().to_vec();
    kernel[600] ^= 1;
    tampered.insert(KERNEL, kernel);
    let error = on.measure(&tampered).unwrap_err();
    assert!(matches!(
        &error,
        PredictError::Signature { file, source: SignatureError::Mismatch { .. } } if file == KERNEL
    ));

    let unsigned = PeBuilder::new().section(".text", "x").build();
    let mut image = debian_chain("2.14");
    image.insert(KERNEL, unsigned);
    assert!(matches!(
        on.measure(&image),
        Err(PredictError::Signature { source: SignatureError::Unsigned, .. })
    ));
    assert!(ChainComputer::new(SecureBoot::Off).measure(&image).is_ok());
}

#[test]
fn several_kernels_are_listed_and_can_be_chosen_from() {
    let mut image = debian_chain("2.12");
    image.insert("boot/vmlinuz-6.13.0-amd64", application("Linux 6.13"));
    let on = ChainComputer::new(SecureBoot::On);
    let error = on.compute(&image).unwrap_err();
    let chain = error.source().unwrap().downcast_ref::<PredictError>();
    let Some(PredictError::Find(FindError::Ambiguous { component, candidates })) = chain else {
        panic!("{chain:?}");
    };
    assert_eq!(*component, BootComponent::Kernel);
    assert_eq!(candidates, &[KERNEL, "boot/vmlinuz-6.13.0-amd64"]);

    let value = |path: &str| pcr4(&on.clone().with_kernel(path), &image).value;
    assert_eq!(value(KERNEL), pcr4(&on, &debian_chain("2.12")).value);
    assert_ne!(value("boot/vmlinuz-6.13.0-amd64"), value(KERNEL));
    assert!(matches!(
        on.with_kernel("boot/none").measure(&image),
        Err(PredictError::Open { file, .. }) if file == "boot/none"
    ));
    // The choice of kernel does not matter if none is measured.
    assert!(ChainComputer::new(SecureBoot::Off).measure(&image).is_ok());
}
