//! Whole registers of small boots, computed again from the bytes of the files and variables,
//! without any of the code under test.

use sha1::Sha1;
use sha2::{Digest, Sha384, Sha512};

use super::super::super::hash::Banks;
use super::super::super::prediction::Register;
use super::*;
use crate::event_log::Bank;

/// What is measured into a register: bytes, or a program.
enum Measured {
    Bytes(Vec<u8>),
    Program(Vec<u8>),
}

/// `PeBuilder` puts the checksum at 0xd8 and the entry of the certificate table at 0x128; the
/// table is the end of the file (Authenticode PE 1.0, "Calculating the PE Image Hash").
fn authenticode<D: Digest>(file: &[u8]) -> Vec<u8> {
    let size = u32::from_le_bytes(file[0x12c..0x130].try_into().unwrap());
    let end = file.len() - usize::try_from(size).unwrap();
    let parts = [&file[..0xd8], &file[0xdc..0x128], &file[0x130..end]];
    D::digest(parts.concat()).to_vec()
}

fn folded<D: Digest>(events: &[Measured]) -> Vec<u8> {
    let zero = vec![0; <D as Digest>::output_size()];
    events.iter().fold(zero, |value, event| {
        let digest = match event {
            Measured::Bytes(bytes) => D::digest(bytes).to_vec(),
            Measured::Program(file) => authenticode::<D>(file),
        };
        D::digest([value, digest].concat()).to_vec()
    })
}

fn assert_register(prediction: &Prediction, pcr: u8, events: &[Measured]) {
    let Register::Predicted(value) = prediction.register(PcrIndex::new(pcr).unwrap()) else {
        panic!("PCR {pcr}");
    };
    let of = |bank| value.get(bank).unwrap();
    assert_eq!(of(Bank::Sha1), folded::<Sha1>(events), "PCR {pcr}");
    assert_eq!(of(Bank::Sha256), folded::<Sha256>(events), "PCR {pcr}");
    assert_eq!(of(Bank::Sha384), folded::<Sha384>(events), "PCR {pcr}");
    assert_eq!(of(Bank::Sha512), folded::<Sha512>(events), "PCR {pcr}");
}

fn all_banks(image: &MemoryImage, machine: &PlatformState) -> Prediction {
    let predictor = BootPredictor::new().with_banks(Banks::ALL);
    predictor.predict(image, machine).unwrap()
}

fn bytes(data: &[u8]) -> Measured {
    Measured::Bytes(data.to_vec())
}

fn program(image: &MemoryImage, path: &str) -> Measured {
    Measured::Program(image.content(path).unwrap().to_vec())
}

fn wide(text: &str) -> Measured {
    Measured::Bytes(text.bytes().flat_map(|byte| [byte, 0]).collect())
}

/// GUIDs in memory byte order.
const GLOBAL: [u8; 16] = *b"\x61\xdf\xe4\x8b\xca\x93\xd2\x11\xaa\x0d\0\xe0\x98\x03\x2b\x8c";
const DATABASE: [u8; 16] = *b"\xcb\xb2\x19\xd7\x3a\x3d\x96\x45\xa3\xbc\xda\xd0\x0e\x67\x65\x6f";
const SHIM: [u8; 16] = *b"\x50\xab\x5d\x60\x46\xe0\0\x43\xab\xb6\x3d\xd8\x10\xdd\x8b\x23";

fn variable(vendor: [u8; 16], name: &str, data: &[u8]) -> Measured {
    let mut event = vendor.to_vec();
    event.extend((name.len() as u64).to_le_bytes());
    event.extend((data.len() as u64).to_le_bytes());
    event.extend(name.bytes().flat_map(|byte| [byte, 0]));
    event.extend(data);
    Measured::Bytes(event)
}

/// One certificate as a signature list: type, sizes, owner.
fn list(owner: &[u8], certificate: &[u8]) -> Vec<u8> {
    let size = |more: usize| u32::try_from(certificate.len() + more).unwrap().to_le_bytes();
    let mut list = b"\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72".to_vec();
    list.extend(size(44));
    list.extend([0; 4]);
    list.extend(size(16));
    list.extend(owner);
    list.extend(certificate);
    list
}

const CALL: &[u8] = b"Calling EFI Application from Boot Option";
const OWNER: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34];

#[test]
fn a_boot_through_grub_2_12_folds_to_its_registers_in_all_banks() {
    let image = chain("2.12");
    let prediction = all_banks(&image, &platform(SecureBoot::On));
    let started = ["EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/grubx64.efi", "vmlinuz"];
    let mut events = vec![bytes(CALL), bytes(&[0; 4])];
    events.extend(started.map(|path| program(&image, path)));
    assert_register(&prediction, 4, &events);

    let db = list(&OWNER, &keys().firmware.0);
    let vendor = list(&SHIM, &keys().vendor.0);
    let events = [
        variable(GLOBAL, "SecureBoot", &[1]),
        variable(GLOBAL, "PK", b"pk"),
        variable(GLOBAL, "KEK", b""),
        variable(DATABASE, "db", &db),
        variable(DATABASE, "dbx", b""),
        bytes(&[0; 4]),
        variable(DATABASE, "db", &db[28..]),
        variable(SHIM, "SbatLevel", b"sbat,1,2024000000\nx"),
        variable(SHIM, "MokListRT", &vendor[28..]),
    ];
    assert_register(&prediction, 7, &events);

    let commands =
        ["set timeout=0", "linux /vmlinuz quiet", "/vmlinuz quiet", "initrd /initrd.img", "boot"];
    assert_register(&prediction, 8, &commands.map(|line| bytes(line.as_bytes())));
    let kernel = image.content("vmlinuz").unwrap();
    let script = image.content("EFI/debian/grub.cfg").unwrap();
    let events = [
        bytes(script),
        bytes(script),
        bytes(kernel),
        bytes(b"initrd"),
        wide("BOOT_IMAGE=/vmlinuz quiet"),
        bytes(b"initrd"),
    ];
    assert_register(&prediction, 9, &events);

    let mut none = b"\x26\x16\xc4\xc1\x4c\x50\x92\x40\xac\xa9\x41\xf9\x36\x93\x43\x28".to_vec();
    none.extend(*b"\x4c\0\0\0\0\0\0\0\x30\0\0\0");
    none.extend(SHIM);
    none.extend([0; 32]);
    assert_register(&prediction, 14, &[bytes(&vendor), bytes(&none), bytes(&[1])]);
    for pcr in [11, 12] {
        assert_register(&prediction, pcr, &[]);
    }
}

#[test]
fn a_unified_image_without_secure_boot_folds_to_its_registers_in_all_banks() {
    let image = alone("257");
    let prediction = all_banks(&image, &PlatformState::new());
    let inner = kernel("6.12").build();
    let events = [
        bytes(CALL),
        bytes(&[0; 4]),
        program(&image, "EFI/BOOT/BOOTX64.EFI"),
        Measured::Program(inner.clone()),
    ];
    assert_register(&prediction, 4, &events);
    let sbat = b"sbat,1,S,sbat,1,u\nsystemd-stub,1,S,s,1,u\n";
    let sections: [(&str, &[u8]); 8] = [
        (".linux", &inner),
        (".osrel", b"ID=x\n"),
        (".cmdline", b"quiet "),
        (".initrd", b"12345"),
        (".splash", b"BM"),
        (".uname", b"6.12"),
        (".sbat", sbat),
        (".pcrpkey", b"key"),
    ];
    let events = sections.iter().flat_map(|(name, content)| {
        let name = [name.as_bytes(), &[0]].concat();
        [Measured::Bytes(name), bytes(content)]
    });
    assert_register(&prediction, 11, &events.collect::<Vec<_>>());
    let off = [
        variable(GLOBAL, "SecureBoot", &[0]),
        variable(GLOBAL, "PK", b""),
        variable(GLOBAL, "KEK", b""),
        variable(DATABASE, "db", b""),
        variable(DATABASE, "dbx", b""),
        bytes(&[0; 4]),
    ];
    assert_register(&prediction, 7, &off);
    // Measured by a real machine without keys (Debian 13, OVMF 2025.02).
    let Register::Predicted(value) = prediction.register(PcrIndex::SECURE_BOOT) else {
        panic!();
    };
    let real = "65caf8dd1e0ea7a6347b635d2b379c93b9a1351edc2afc3ecda700e534eb3068";
    assert_eq!(value.sha256().to_string(), real);
}
