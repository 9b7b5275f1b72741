//! The form of an image does not matter to its values.

use std::fs;
use std::io::Cursor;

use tec_core::pcr::PcrIndex;
use tec_core::reference::{BootImage, PcrComputer};
use tec_tpm::compute::input::{BootSource, InputError, SourceKind};
use tec_tpm::compute::testing::{PeBuilder, application, debian_chain, grub, shim};
use tec_tpm::compute::{
    ChainComputer, FindError, MemoryImage, PredictError, SecureBoot, SignatureError,
};

use crate::build;
use crate::build::{LAYER, Layout};

fn pcr4(image: &dyn BootImage) -> String {
    let computed = ChainComputer::new(SecureBoot::On).compute(image).unwrap();
    let pcr4 = computed.pcr(PcrIndex::BOOT_MANAGER).unwrap();
    pcr4.value.to_string()
}

#[test]
fn every_form_of_an_image_gives_the_same_value() {
    let image = build::esp();
    let tar = build::tar_of(&image);
    let fat = build::fat(&image, 1 << 20);
    let mut layout = Layout::default();
    let manifest = layout.image(&[(LAYER, tar.clone())]);
    let layout = layout.publish("44", manifest).finish();
    let forms = [
        ("x.img", SourceKind::Fat, fat.clone()),
        ("gpt.img", SourceKind::Disk, build::gpt(512, &[(build::SYSTEM, &fat)])),
        ("gpt4096.img", SourceKind::Disk, build::gpt(4096, &[(build::SYSTEM, &fat)])),
        ("mbr.img", SourceKind::Disk, build::mbr(&[(0x83, &[1]), (0xef, &fat)])),
        ("stick.img", SourceKind::Disk, build::mbr(&[(0x0c, &fat)])),
        ("x.tar.gz", SourceKind::Tar, build::gzip(&tar)),
        ("x.tar.zst", SourceKind::Tar, build::zstd(&tar)),
        ("x.tar", SourceKind::Tar, tar),
        ("oci.tar", SourceKind::Oci, build::tar_of(&layout)),
        ("oci.tar.gz", SourceKind::Oci, build::gzip(&build::tar_of(&layout))),
    ];
    let folder = tempfile::tempdir().unwrap();
    let expected = pcr4(&image);
    for (name, kind, bytes) in forms {
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        for opened in [BootSource::new().open(&path), BootSource::new().read(Cursor::new(bytes))] {
            let opened = opened.unwrap();
            assert_eq!(opened.kind(), kind, "{name}");
            assert_eq!(opened.files("").unwrap(), image.files("").unwrap(), "{name}");
            assert_eq!(pcr4(&opened), expected, "{name}");
            for path in image.files("").unwrap() {
                assert_eq!(build::content(&opened, &path), image.content(&path).unwrap());
            }
        }
    }
    for (name, kind, image) in
        [("directory", SourceKind::Directory, &image), ("layout", SourceKind::Oci, &layout)]
    {
        let path = folder.path().join(name);
        build::unpack(image, &path);
        let opened = BootSource::new().open(&path).unwrap();
        assert_eq!(opened.kind(), kind);
        assert_eq!(pcr4(&opened), expected);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_to_its_end() {
    use std::io::Write as _;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let tar = build::gzip(&build::tar_of(&build::esp()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pipe = fs::OpenOptions::new().write(true).open(&path).unwrap();
            pipe.write_all(&tar).unwrap();
        });
        let opened = BootSource::new().open(&path).unwrap();
        assert_eq!(pcr4(&opened), pcr4(&build::esp()));
    });
}

/// Where OSTree images keep their files: the newer and the older layout.
fn system(loaders: &str, kernels: &[&str]) -> MemoryImage {
    let mut image = MemoryImage::new()
        .with(format!("{loaders}/EFI/fedora/shimx64.efi"), shim("16.1"))
        .with(format!("{loaders}/EFI/fedora/grubx64.efi"), grub("2.12"));
    for version in kernels {
        let path = format!("usr/lib/modules/{version}/vmlinuz");
        image.insert(path, application(&format!("Linux {version}")));
    }
    image
}

#[test]
fn both_layouts_of_bootc_images_are_known() {
    for loaders in ["usr/lib/efi/shim/16.1-5", "usr/lib/bootupd/updates"] {
        let image = system(loaders, &["6.12"]);
        let tar = build::tar_of(&image);
        let opened = BootSource::new().read(tar.as_slice()).unwrap();
        assert_eq!(pcr4(&opened), pcr4(&image));
    }
}

#[test]
fn several_kernels_are_listed_and_one_can_be_chosen() {
    let image = system("usr/lib/bootupd/updates", &["6.12", "6.13"]);
    let opened = BootSource::new().read(build::tar_of(&image).as_slice()).unwrap();
    let computer = ChainComputer::new(SecureBoot::On);
    let kernels = ["6.12", "6.13"].map(|v| format!("usr/lib/modules/{v}/vmlinuz"));
    assert!(matches!(
        computer.measure(&opened),
        Err(PredictError::Find(FindError::Ambiguous { candidates, .. })) if candidates == kernels
    ));
    let [old, new] = kernels.map(|kernel| {
        let chosen = computer.clone().with_kernel(kernel).measure(&opened).unwrap();
        chosen.last().unwrap().digests
    });
    assert_ne!(old, new);
}

#[test]
fn an_unsigned_kernel_is_an_error_in_every_form() {
    let unsigned = PeBuilder::new().section(".text", "Linux").build();
    let image = build::esp().with("vmlinuz", unsigned);
    let fat = build::fat(&image, 1 << 20);
    for bytes in [build::tar_of(&image), build::gpt(512, &[(build::SYSTEM, &fat)])] {
        let opened = BootSource::new().read(bytes.as_slice()).unwrap();
        assert!(matches!(
            ChainComputer::new(SecureBoot::On).measure(&opened),
            Err(PredictError::Signature {
                file,
                source: SignatureError::Unsigned,
            }) if file == "vmlinuz"
        ));
    }
}

/// An OSTree installation with these deployments.
fn installation(deployments: &[(&str, &MemoryImage)]) -> MemoryImage {
    let mut root = MemoryImage::new().with("boot/loader/entries/ostree-1.conf", *b"title x\n");
    for (path, image) in deployments {
        for file in image.files("").unwrap() {
            let content = image.content(&file).unwrap().to_vec();
            root.insert(format!("{path}/{file}"), content);
        }
    }
    root
}

#[test]
fn a_deployment_of_an_installation_is_taken_or_chosen() {
    let old = system("usr/lib/bootupd/updates", &["6.12"]);
    let new = system("usr/lib/efi/shim/16.1", &["6.13"]);
    let path = |serial| format!("ostree/deploy/fedora/deploy/{}.{serial}", "ab".repeat(32));
    let (first, second) = (path(0), path(1));
    let folder = tempfile::tempdir().unwrap();

    let one = folder.path().join("one");
    build::unpack(&installation(&[(&first, &old)]), &one);
    assert_eq!(pcr4(&BootSource::new().open(&one).unwrap()), pcr4(&old));

    let both = installation(&[(&first, &old), (&second, &new)]);
    let directory = folder.path().join("both");
    build::unpack(&both, &directory);
    let archive = folder.path().join("both.tar");
    fs::write(&archive, build::tar_of(&both)).unwrap();
    for root in [&directory, &archive] {
        assert!(matches!(
            BootSource::new().open(root),
            Err(InputError::SeveralDeployments { candidates, .. })
                if candidates == [first.clone(), second.clone()]
        ));
        for (path, image) in [(&first, &old), (&second, &new)] {
            let chosen = BootSource::new().with_deployment(path).open(root).unwrap();
            assert_eq!(chosen.files("").unwrap(), image.files("").unwrap());
            assert_eq!(pcr4(&chosen), pcr4(image));
        }
        assert!(matches!(
            BootSource::new().with_deployment("ostree").open(root),
            Err(InputError::NoSuchDeployment { .. })
        ));
    }
}

#[test]
fn a_single_program_is_a_partition_with_nothing_else() {
    let program = application("Linux");
    let image = BootSource::new().read(program.as_slice()).unwrap();
    let path = image.starts().unwrap();
    assert_eq!((image.kind(), path), (SourceKind::Program, "EFI/BOOT/BOOTX64.EFI"));
    for prefix in ["", "EFI", "EFI/BOOT/"] {
        assert_eq!(image.files(prefix).unwrap(), [path], "{prefix}");
    }
    assert!(image.files("EFI/BO").unwrap().is_empty());
    assert_eq!(build::content(&image, path), program);
    assert!(image.open("EFI/BOOT").is_err());
    let chosen = BootSource::new().with_partition(1);
    let refused = chosen.read(program.as_slice());
    assert!(matches!(refused, Err(InputError::NoChoice { .. })));
}

#[test]
fn what_is_no_image_is_said_to_be_none() {
    let read = |bytes: &[u8]| BootSource::new().read(bytes).unwrap_err();
    for bytes in [&b""[..], &[0; 4096], b"#!/bin/sh\n", &[0xff; 600]] {
        assert!(matches!(read(bytes), InputError::Unknown(_)));
    }
    for bytes in [&b"QFI\xfb\0\0\0\x03"[..], b"\xfd7zXZ\0\0", b"BZh9"] {
        assert!(matches!(read(bytes), InputError::Unsupported { .. }));
    }
    let error = read(&[b"XFSB".as_slice(), &[0; 4092]].concat());
    assert!(matches!(error, InputError::Unsupported { hint, .. } if hint.contains("mount")));
    for packed in [build::gzip(b"no tar"), build::zstd(&[0; 600])] {
        assert!(matches!(read(&packed), InputError::Unsupported { .. }));
    }
    assert!(matches!(BootSource::new().open("/nonexistent/image"), Err(InputError::Read { .. })));
}

#[test]
fn a_choice_that_an_image_does_not_offer_is_refused() {
    let tar = build::tar_of(&debian_chain("2.12"));
    for source in [
        BootSource::new().with_reference("44"),
        BootSource::new().with_partition(1),
        BootSource::new().with_deployment("ostree/deploy/x"),
    ] {
        assert!(matches!(source.read(tar.as_slice()), Err(InputError::NoChoice { .. })));
    }
}
