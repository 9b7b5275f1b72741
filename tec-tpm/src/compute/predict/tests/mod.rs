//! Boots of synthetic files, signed by synthetic keys: who is asked in which order, and what is
//! refused or reported as unpredictable.

use std::sync::OnceLock;

use p256::ecdsa::signature::hazmat::PrehashSigner as _;
use p256::pkcs8::DecodePrivateKey as _;
use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::super::authority::AuthorityError;
use super::super::measurement::Component;
use super::super::memory::MemoryImage;
use super::super::platform::{PlatformState, SecureBoot};
use super::super::predict_error::PredictError;
use super::super::prediction::Prediction;
use super::super::testing::{PeBuilder, der};
use super::super::x509::Certificate;
use super::super::{siglist, testing};
use super::BootPredictor;
use crate::guid::Guid;

mod chain;
mod golden;
mod grub;
mod keys;
mod manager;
mod robust;
mod shim;
mod uki;

const OWNER: Guid = Guid::of(0x1234);
const NV_BS: u32 = 3;

/// A key with its certificate, and the certificate of its issuer if that is someone else.
struct Signer {
    key: p256::ecdsa::SigningKey,
    certificate: Vec<u8>,
    chain: Vec<Vec<u8>>,
}

impl Signer {
    /// A CA and a signer under it.
    fn under_ca(name: &str) -> (Vec<u8>, Self) {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let ca = params.self_signed(&ca_key).unwrap();
        let ca_der = ca.der().to_vec();
        let issuer = rcgen::Issuer::new(params, ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut leaf = rcgen::CertificateParams::new(Vec::new()).unwrap();
        let subject = format!("{name} signer");
        leaf.distinguished_name.push(rcgen::DnType::CommonName, subject);
        let certificate = leaf.signed_by(&key, &issuer).unwrap().der().to_vec();
        let key = p256::ecdsa::SigningKey::from_pkcs8_der(&key.serialize_der()).unwrap();
        let signer = Self { key, chain: vec![certificate.clone()], certificate };
        (ca_der, signer)
    }

    /// An Authenticode signature with a message digest among its attributes.
    fn sign(&self, image: &[u8]) -> Vec<u8> {
        const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
        const INDIRECT: &[u8] = b"\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x02\x01\x04";
        const MESSAGE_DIGEST: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x09\x04";
        const ECDSA: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
        let content = testing::indirect_data(image);
        let algorithm = der(0x30, &[testing::SHA256]);
        let digest = der(0x04, &[Sha256::digest(&content).as_slice()]);
        let attribute = der(0x30, &[MESSAGE_DIGEST, &der(0x31, &[&digest])]);
        let signed = Sha256::digest(der(0x31, &[&attribute]));
        let value: p256::ecdsa::Signature = self.key.sign_prehash(&signed).unwrap();
        let own = Certificate::parse(&self.certificate).unwrap();
        let signer_info = der(
            0x30,
            &[
                b"\x02\x01\x01",
                &der(0x30, &[own.issuer, own.serial]),
                &algorithm,
                &der(0xa0, &[&attribute]),
                &der(0x30, &[ECDSA]),
                &der(0x04, &[value.to_der().as_bytes()]),
            ],
        );
        let chain: Vec<&[u8]> = self.chain.iter().map(Vec::as_slice).collect();
        let fields = [
            b"\x02\x01\x01".to_vec(),
            der(0x31, &[&algorithm]),
            der(0x30, &[INDIRECT, &der(0xa0, &[&der(0x30, &[&content])])]),
            der(0xa0, &chain),
            der(0x31, &[&signer_info]),
        ];
        der(0x30, &[SIGNED_DATA, &der(0xa0, &[&der(0x30, &[&fields.concat()])])])
    }
}

/// The keys of all tests: of the firmware, of shim's vendor, and of the machine's owner.
struct Keys {
    firmware: (Vec<u8>, Signer),
    vendor: (Vec<u8>, Signer),
    owner: (Vec<u8>, Signer),
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| Keys {
        firmware: Signer::under_ca("firmware"),
        vendor: Signer::under_ca("vendor"),
        owner: Signer::under_ca("owner"),
    })
}

fn signed(builder: &PeBuilder, signers: &[&Signer]) -> Vec<u8> {
    let digest = builder.digest();
    let mut builder = builder.clone();
    for signer in signers {
        builder = builder.signature(signer.sign(&digest));
    }
    builder.build()
}

fn vendor_keys(allowed: &[u8], revoked: &[u8]) -> Vec<u8> {
    let size = |part: &[u8]| u32::try_from(part.len()).unwrap().to_le_bytes();
    let mut section = [size(allowed), size(revoked), 16_u32.to_le_bytes()].concat();
    section.extend(u32::try_from(16 + allowed.len()).unwrap().to_le_bytes());
    section.extend(allowed);
    section.extend(revoked);
    section
}

const LEVELS: &[u8] = b"\0\0\0\0\x08\0\0\0\x1c\0\0\0sbat,1,2024000000\nx\0sbat,1,2026000000\n\0";
const AUTOMATIC: &[u8] = b"sbat,1,2024000000\nx";

fn shim(vendor: &[u8], version: &str) -> PeBuilder {
    PeBuilder::new()
        .section(".text", b"shim".repeat(100))
        .section(".data.ident", format!("UEFI SHIM\n$Version: {version} $\n"))
        .section(".sbat", "sbat,1,S,sbat,1,u\nshim,4,U,shim,1,u\n")
        .section(".sbatlevel", LEVELS)
        .section(".vendor_cert", vendor)
}

fn grub(version: &str, vendor: &str) -> PeBuilder {
    PeBuilder::new().section(".text", b"GRUB".repeat(100)).section(
        ".sbat",
        format!("sbat,1,S,sbat,1,u\ngrub,5,F,grub,{version},u\n{vendor},5,V,g,1,u\n"),
    )
}

/// A kernel with the header of a bzImage.
fn kernel(version: &str) -> PeBuilder {
    // The first section begins at 0x200 here, and the header of a bzImage at 0x1f1.
    let mut text = vec![0; 4096];
    text[2..6].copy_from_slice(b"HdrS");
    text[0xe..0x10].copy_from_slice(&0x100_u16.to_le_bytes());
    text[0x100..0x100 + version.len()].copy_from_slice(version.as_bytes());
    PeBuilder::new().section(".text", text)
}

/// GRUB's script in [`chain`].
const CFG: &str = "set timeout=0\nlinux /vmlinuz quiet\ninitrd /initrd.img\nboot\n";

/// A whole chain, each file signed as Debian does it.
fn chain(grub_version: &str) -> MemoryImage {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    MemoryImage::new()
        .with("EFI/BOOT/BOOTX64.EFI", signed(&shim(&vendor, "16.1"), &[&keys.firmware.1]))
        .with("EFI/BOOT/grubx64.efi", signed(&grub(grub_version, "grub.debian"), &[&keys.vendor.1]))
        .with("EFI/debian/grub.cfg", CFG.as_bytes().to_vec())
        .with("vmlinuz", signed(&kernel("6.12"), &[&keys.vendor.1]))
        .with("initrd.img", b"initrd".to_vec())
}

fn platform(secure_boot: SecureBoot) -> PlatformState {
    let db = siglist::one(siglist::X509, OWNER, &keys().firmware.0);
    PlatformState::new()
        .with_variable("SecureBoot", Guid::GLOBAL, 6, [u8::from(secure_boot == SecureBoot::On)])
        .with_variable("PK", Guid::GLOBAL, 0x27, *b"pk")
        .with_variable("db", Guid::SECURITY_DATABASE, 0x27, db)
        .with_grub_device("hd0,gpt1")
}

fn predict(image: &MemoryImage, platform: &PlatformState) -> Result<Prediction, PredictError> {
    BootPredictor::new().predict(image, platform)
}

fn components(prediction: &Prediction, pcr: PcrIndex) -> Vec<Component> {
    prediction.of_register(pcr).map(|m| m.component).collect()
}

fn refusal(image: &MemoryImage, platform: &PlatformState) -> (String, AuthorityError) {
    match predict(image, platform) {
        Err(PredictError::Authority { file, source }) => (file, source),
        other => panic!("{other:?}"),
    }
}

/// `UEFI_VARIABLE_DATA`, written out once more.
fn variable(name: &str, vendor: Guid, data: &[u8]) -> Sha256Digest {
    let mut event = vendor.as_bytes().to_vec();
    event.extend(u64::try_from(name.len()).unwrap().to_le_bytes());
    event.extend(u64::try_from(data.len()).unwrap().to_le_bytes());
    event.extend(name.bytes().flat_map(|byte| [byte, 0]));
    event.extend(data);
    Sha256Digest::of(event)
}

/// A unified kernel image of this stub.
fn uki(stub: &str) -> PeBuilder {
    PeBuilder::new()
        .section(".sdmagic", format!("#### LoaderInfo: systemd-stub {stub} ####"))
        .section(".sbat", "sbat,1,S,sbat,1,u\nsystemd-stub,1,S,s,1,u\n")
        .section(".osrel", "ID=x\n")
        .section(".cmdline", "quiet ")
        .section(".uname", "6.12")
        .section(".splash", "BM")
        .section(".pcrpkey", "key")
        .section(".initrd", "12345")
        .section(".linux", kernel("6.12").build())
}

fn alone(stub: &str) -> MemoryImage {
    MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", signed(&uki(stub), &[&keys().firmware.1]))
}

/// A unified kernel image with a base and two profiles.
fn profiles(stub: &str) -> MemoryImage {
    let builder = uki(stub)
        .section(".profile", "ID=0")
        .section(".cmdline", "zero")
        .section(".profile", "ID=1")
        .section(".uname", "one");
    let file = signed(&builder, &[&keys().firmware.1]);
    MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", file)
}

/// A boot entry that starts a file with options.
fn with_entry(machine: PlatformState, path: &str, options: &str) -> PlatformState {
    let wide = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    let path = wide(&format!("{path}\0"));
    let size = |size: usize| u16::try_from(size).unwrap().to_le_bytes();
    let mut entry = 1_u32.to_le_bytes().to_vec();
    entry.extend(size(path.len() + 8));
    entry.extend(wide("name\0"));
    entry.extend([4, 4]);
    entry.extend(size(path.len() + 4));
    entry.extend(path);
    entry.extend([0x7f, 0xff, 4, 0]);
    entry.extend(wide(options));
    machine.with_variable("BootOrder", Guid::GLOBAL, 7, [5, 0]).with_variable(
        "Boot0005",
        Guid::GLOBAL,
        7,
        entry,
    )
}
