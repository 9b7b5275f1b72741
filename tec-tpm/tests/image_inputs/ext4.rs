//! File systems that mke2fs made, alone and beside the system partition of a disk.

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tec_core::reference::{BootImage, PcrComputer};
use tec_tpm::compute::input::{BootSource, DiskError, InputError, OpenImage, SourceKind};
use tec_tpm::compute::testing::{application, grub, shim};
use tec_tpm::compute::{ChainComputer, MemoryImage, SecureBoot};

use crate::build;
use crate::build::{OTHER, SYSTEM};

const LOADERS: &str = "boot/efi/";
const SCRIPT: &[u8] = b"linux /vmlinuz-6.12 root=x ro\ninitrd /initrd.img-6.12\n";

/// A machine whose `/boot` is a partition of its own.
fn machine() -> MemoryImage {
    MemoryImage::new()
        .with(format!("{LOADERS}EFI/debian/shimx64.efi"), shim("16.1"))
        .with(format!("{LOADERS}EFI/debian/grubx64.efi"), grub("2.12"))
        .with(
            format!("{LOADERS}EFI/debian/grub.cfg"),
            *b"search.fs_uuid u root\nset prefix=($root)'/grub'\nconfigfile $prefix/grub.cfg\n",
        )
        .with("boot/grub/grub.cfg", SCRIPT)
        .with("boot/initrd.img-6.12", vec![7; 3 << 20])
        .with("boot/vmlinuz-6.12", application("Linux"))
}

/// The files below a folder.
fn below(image: &MemoryImage, folder: &str) -> MemoryImage {
    let mut inside = MemoryImage::new();
    for path in image.files(folder.trim_end_matches('/')).unwrap() {
        let name = path.strip_prefix(folder).unwrap();
        inside.insert(name, image.content(&path).unwrap());
    }
    inside
}

/// The files but those of the system partition.
fn without_loaders(image: &MemoryImage) -> MemoryImage {
    let mut others = MemoryImage::new();
    for path in image.files("").unwrap().iter().filter(|path| !path.starts_with(LOADERS)) {
        others.insert(path, image.content(path).unwrap());
    }
    others
}

fn boot(image: &MemoryImage) -> MemoryImage {
    below(&without_loaders(image), "boot/")
}

fn ext4(files: &MemoryImage, prepare: impl Fn(&Path)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (root, disk) = (folder.path().join("root"), folder.path().join("disk"));
    fs::create_dir(&root).unwrap();
    build::unpack(files, &root);
    prepare(&root);
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(&disk).arg("16M");
    // Debian's is not in the path of every user.
    let made = command.env("PATH", "/usr/bin:/usr/sbin:/sbin").status();
    assert!(made.unwrap().success());
    fs::read(disk).unwrap()
}

fn open(bytes: &[u8]) -> Result<OpenImage, InputError> {
    BootSource::new().read(bytes)
}

/// Predicts all registers.
fn values(image: &dyn BootImage) -> String {
    format!("{:?}", ChainComputer::new(SecureBoot::On).compute(image).unwrap().pcrs)
}

fn same(opened: &OpenImage, machine: &MemoryImage) {
    assert_eq!(opened.files("").unwrap(), machine.files("").unwrap());
    for prefix in ["boot", "boot/grub", "boot/efi/EFI", "none"] {
        assert_eq!(opened.files(prefix).unwrap(), machine.files(prefix).unwrap(), "{prefix}");
    }
    for path in machine.files("").unwrap() {
        assert_eq!(build::content(opened, &path), machine.content(&path).unwrap(), "{path}");
    }
    assert_eq!(values(opened), values(machine));
}

#[test]
fn boot_on_a_partition_of_its_own_is_found_beside_the_system_partition() {
    let machine = machine();
    let fat = build::fat(&below(&machine, LOADERS), 4 << 20);
    let boot = ext4(&boot(&machine), |root| {
        symlink(".", root.join("boot")).unwrap();
    });
    let data = ext4(&MemoryImage::new().with("data/x", *b"y"), |_| {});
    let disk = build::gpt(512, &[(SYSTEM, &fat), (OTHER, &data), (OTHER, &boot)]);
    let opened = open(&disk).unwrap();
    assert_eq!(opened.kind(), SourceKind::Disk);
    same(&opened, &machine);

    let chosen = BootSource::new().with_partition(1).read(disk.as_slice()).unwrap();
    assert_eq!(chosen.files("").unwrap(), below(&machine, LOADERS).files("").unwrap());

    let twice = build::gpt(512, &[(SYSTEM, &fat), (OTHER, &boot), (OTHER, &boot)]);
    assert!(matches!(
        open(&twice),
        Err(InputError::Disk { source: DiskError::SeveralAt { place: "boot/", candidates }, .. })
            if candidates.iter().map(|one| one.number).eq([2, 3])
    ));
}

#[test]
fn a_partition_that_cannot_be_read_is_named_with_the_way_to_leave_it_out() {
    let machine = machine();
    let fat = build::fat(&below(&machine, LOADERS), 4 << 20);
    let mut boot = ext4(&boot(&machine), |_| {});
    // Bytes per inode (Linux, Documentation/filesystems/ext4, "Super Block").
    boot[0x458..0x45a].fill(0xff);
    let disk = build::gpt(512, &[(SYSTEM, &fat), (OTHER, &boot)]);
    let error = open(&disk).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("partition 2; choosing partition 1"));
    BootSource::new().with_partition(1).read(disk.as_slice()).unwrap();
}

#[test]
fn a_root_with_or_without_boot_is_found_beside_the_system_partition() {
    let mut machine = machine();
    let fat = build::fat(&below(&machine, LOADERS), 4 << 20);
    let own = ext4(&boot(&machine), |_| {});
    machine.insert("etc/fstab", *b"#");
    let whole = ext4(&without_loaders(&machine), |root| {
        symlink("boot/vmlinuz-6.12", root.join("vmlinuz")).unwrap();
    });
    let opened = open(&build::gpt(512, &[(SYSTEM, &fat), (OTHER, &whole)])).unwrap();
    assert_eq!(build::content(&opened, "vmlinuz"), application("Linux"));
    same(&opened, &machine.clone().with("vmlinuz", application("Linux")));

    // What lies below a place where something is mounted is hidden.
    let root = ext4(&MemoryImage::new().with("etc/fstab", *b"#"), |root| {
        fs::create_dir_all(root.join("boot")).unwrap();
        fs::write(root.join("boot/vmlinuz-6.12"), "hidden").unwrap();
    });
    same(
        &open(&build::gpt(512, &[(SYSTEM, &fat), (OTHER, &root), (OTHER, &own)])).unwrap(),
        &machine,
    );
}

#[test]
fn a_file_system_alone_is_an_image() {
    let machine = machine();
    let opened = open(&ext4(&machine, |_| {})).unwrap();
    assert_eq!(opened.kind(), SourceKind::Ext4);
    same(&opened, &machine);
    assert!(opened.open("boot").is_err() && opened.open("none").is_err());
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    let whole = ext4(&machine(), |root| symlink("loop", root.join("loop")).unwrap());
    assert!(open(&whole[..0x800]).is_err());
    for seed in 0_usize..400 {
        let mut damaged = whole.clone();
        for step in 0..8 {
            // Most of what matters lies at the beginning.
            let at = (seed * 7919 + step * 104_729) % (600 << 10);
            damaged[at] ^= u8::try_from(seed % 255).unwrap() + 1;
        }
        if let Ok(image) = open(&damaged) {
            for path in image.files("").unwrap_or_default() {
                let _ = image
                    .open(&path)
                    .map(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
            }
        }
    }
}
