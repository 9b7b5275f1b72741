//! One image in every supported form.

use std::fs;
use std::fs::File;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::reference::BootImage as _;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::testing::{PeBuilder, application, grub, shim};
use tempfile::TempDir;

use crate::world::{events, json, refused, registers, str, tec_reading, text, unpacked, write};

/// An EFI system partition that contains the kernel.
fn partition() -> MemoryImage {
    MemoryImage::new()
        .with("EFI/BOOT/BOOTX64.EFI", shim("16.1"))
        .with("EFI/BOOT/grubx64.efi", grub("2.12"))
        .with("vmlinuz", application("Linux"))
}

fn tar_of(image: &MemoryImage) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for path in image.files("").unwrap() {
        let content = image.content(&path).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content).unwrap();
    }
    archive.into_inner().unwrap()
}

fn fat_of(image: &MemoryImage) -> Vec<u8> {
    let mut volume = Cursor::new(vec![0; 1 << 20]);
    fatfs::format_volume(&mut volume, FormatVolumeOptions::new()).unwrap();
    let system = FileSystem::new(&mut volume, FsOptions::new()).unwrap();
    for path in image.files("").unwrap() {
        let mut folder = system.root_dir();
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", &path));
        for parent in parents.split('/').filter(|parent| !parent.is_empty()) {
            folder = folder.create_dir(parent).unwrap();
        }
        let mut file = folder.create_file(name).unwrap();
        file.write_all(image.content(&path).unwrap()).unwrap();
    }
    system.unmount().unwrap();
    volume.into_inner()
}

/// A disk with an MBR (UEFI 2.10, 5.2.1) and two EFI system partitions (type 0xef).
fn disk_of(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; 512];
    for (record, content) in (446..).step_by(16).zip([first, second]) {
        disk[record + 4] = 0xef;
        for (at, sectors) in [(8, disk.len() / 512), (12, content.len() / 512)] {
            let sectors = u32::try_from(sectors).unwrap().to_le_bytes();
            disk[record + at..record + at + 4].copy_from_slice(&sectors);
        }
        disk.extend_from_slice(content);
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// An OCI layout with these single-layer images, by name.
fn layout_of(images: &[(&str, &MemoryImage)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let blob = |kind: &str, content: &[u8]| {
        let digest = Sha256Digest::of(content).to_string();
        write(folder.path(), &format!("blobs/sha256/{digest}"), content);
        let kind = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len() })
    };
    let mut manifests = Vec::new();
    for (name, image) in images {
        let platform = json!({ "os": "linux", "architecture": "amd64" });
        let manifest = json!({
            "schemaVersion": 2,
            "config": blob("config.v1+json", platform.to_string().as_bytes()),
            "layers": [blob("layer.v1.tar", &tar_of(image))],
        });
        let mut listed = blob("manifest.v1+json", manifest.to_string().as_bytes());
        listed["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        manifests.push(listed);
    }
    let index = json!({ "schemaVersion": 2, "manifests": manifests }).to_string();
    write(folder.path(), "index.json", index);
    let version = r#"{"imageLayoutVersion":"1.0.0"}"#;
    write(folder.path(), "oci-layout", version);
    folder
}

fn label(image: &Path, choice: &[&str]) -> String {
    let compute = ["pcr", "compute", str(image), "--form", "label"];
    text(&[&compute, choice].concat())
}

#[test]
fn an_image_has_the_same_values_in_every_form() {
    let (image, other) = (partition(), partition().with("vmlinuz", application("other")));
    let directory = unpacked(&image);
    let expected = label(directory.path(), &[]);
    let files = TempDir::new().unwrap();
    let file = |name: &str, content: Vec<u8>| write(files.path(), name, content);

    assert_eq!(label(&file("tar", tar_of(&image)), &[]), expected);
    assert_eq!(label(&file("fat", fat_of(&image)), &[]), expected);
    let disk = file("disk", disk_of(&fat_of(&other), &fat_of(&image)));
    assert_eq!(label(&disk, &["--partition", "2"]), expected);
    assert_ne!(label(&disk, &["--partition", "1"]), expected);
    refused(&["pcr", "compute", str(&disk)], 1, "TEC-I400");

    let layout = layout_of(&[("44.1", &other), ("44.2", &image)]);
    assert_eq!(label(layout.path(), &["--reference", "44.2"]), expected);
    refused(&["pcr", "compute", str(layout.path())], 1, "44.1");

    let installed = TempDir::new().unwrap();
    let deployments = [("a", &other), ("b", &image)].map(|(checksum, image)| {
        let path = format!("ostree/deploy/os/deploy/{}.0", checksum.repeat(64));
        for file in image.files("").unwrap() {
            let below = format!("{path}/{file}");
            write(installed.path(), &below, image.content(&file).unwrap());
        }
        path
    });
    let chosen = ["--deployment", &deployments[1]];
    assert_eq!(label(installed.path(), &chosen), expected);
    let several = str(installed.path());
    refused(&["pcr", "compute", several], 1, &deployments[0]);
    let wrong = ["pcr", "compute", str(directory.path()), "--partition", "1"];
    refused(&wrong, 1, "partitions cannot be selected in");
}

#[test]
fn an_image_is_approved_from_the_standard_input() {
    let files = TempDir::new().unwrap();
    let archive = write(files.path(), "image.tar", tar_of(&partition()));
    let approve = ["image", "approve", "piped", "-", "--accept-unpinned", "--dry-run"];
    let output = tec_reading(&approve, File::open(&archive).unwrap());
    assert!(output.status.success(), "{}", crate::world::said(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Pcr4Vmlinuz"), "{said}");
    let nothing = tec_reading(&approve, File::open("/dev/null").unwrap());
    assert_eq!(nothing.status.code(), Some(1));
    let chosen = ["image", "approve", "a", "--pcrs", "x", "--reference", "44"];
    refused(&chosen, 2, "");
}

#[test]
fn a_unified_kernel_image_alone_is_an_image() {
    let uki = PeBuilder::new()
        .section(".sdmagic", "#### LoaderInfo: systemd-stub 257.1 ####")
        .section(".cmdline", "quiet")
        .section(".linux", application("Linux"))
        .signed()
        .build();
    let files = TempDir::new().unwrap();
    let file: PathBuf = write(files.path(), "linux.efi", &uki);
    let alone = json(&["pcr", "compute", str(&file)]);
    assert_eq!(registers(&alone)[..2], [4, 11]);
    assert_eq!(events(&alone, 4).last(), Some(&"Pcr4Uki"));
    fs::create_dir_all(files.path().join("EFI/BOOT")).unwrap();
    fs::rename(&file, files.path().join("EFI/BOOT/BOOTX64.EFI")).unwrap();
    assert_eq!(json(&["pcr", "compute", str(files.path())]), alone);
}

#[test]
fn a_decompression_bomb_is_called_by_its_name() {
    // A tar stream of one file of zeros, in gzip members that are compressed once.
    let packed = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let mut header = tar::Header::new_ustar();
    header.set_path("zeros").unwrap();
    header.set_size(4 << 30);
    header.set_cksum();
    let mut bomb = packed(header.as_bytes());
    let mebibyte = packed(&vec![0; 1 << 20]);
    for _ in 0..4 << 10 {
        bomb.extend(&mebibyte);
    }
    let files = TempDir::new().unwrap();
    let file = write(files.path(), "bomb.tar.gz", bomb);
    for arguments in [
        ["pcr", "compute", str(&file)].as_slice(),
        &["image", "approve", "bomb", str(&file), "--dry-run"],
    ] {
        refused(arguments, 1, "TEC-I415");
    }
}
