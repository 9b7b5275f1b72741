//! Machine owner keys: what firmware and shim should accept, and the keys that sign it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use tec_tpm::compute::Guid;

use super::must;

/// EFI_CERT_X509_GUID, a5c059a1-94e4-4aa7-87b5-ab155c2bf072 (UEFI 2.10, 32.4.1).
const X509: Guid = Guid::from_bytes([
    0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
]);
/// EFI_CERT_SHA256_GUID, c1c41626-504c-4092-aca9-41f936934328 (UEFI 2.10, 32.4.1).
pub const SHA256: Guid = Guid::from_bytes([
    0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28,
]);
/// Owner of the list entries; arbitrary.
const OWNER: Guid = Guid::from_bytes(*b"TEC e2e owner id");
/// EFI_SIGNATURE_LIST without header and entries (UEFI 2.10, 32.4.1).
const LIST_HEADER: usize = 28;

/// A private key with a self-signed certificate.
#[derive(Clone, Debug)]
pub struct SigningKey {
    private: PathBuf,
    certificate: PathBuf,
}

impl SigningKey {
    /// Generates a key; its files are named `NAME.key` and `NAME.crt`.
    ///
    /// Uses RSA, the only algorithm that OVMF's Secure Boot supports.
    pub fn generate(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let key = Self::open(directory, name);
        let mut openssl = Command::new("openssl");
        openssl
            .args(["req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes"])
            .args(["-sha256", "-days", "3650", "-batch", "-subj"])
            .arg(format!("/O=TEC e2e/CN={name}/"))
            .args(["-addext", "extendedKeyUsage=codeSigning", "-keyout"])
            .arg(&key.private)
            .arg("-out")
            .arg(&key.certificate);
        must(&mut openssl)?;
        Ok(key)
    }

    /// An existing key.
    pub fn open(directory: &Path, name: &str) -> Self {
        Self {
            private: directory.join(format!("{name}.key")),
            certificate: directory.join(format!("{name}.crt")),
        }
    }

    /// The certificate as the only entry of a signature list, as stored in variables.
    pub fn signature_list(&self) -> anyhow::Result<Vec<u8>> {
        let text = fs::read_to_string(&self.certificate)
            .with_context(|| format!("cannot read {}", self.certificate.display()))?;
        let pem: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        let engine = &base64::engine::general_purpose::STANDARD;
        let certificate =
            base64::Engine::decode(engine, pem).context("cannot decode a certificate")?;
        signature_list(X509, &certificate)
    }

    /// Signs a program.
    pub fn sign(&self, program: &Path, signed: &Path) -> anyhow::Result<()> {
        let mut sbsign = Command::new("sbsign");
        sbsign.arg("--key").arg(&self.private);
        sbsign.arg("--cert").arg(&self.certificate);
        must(sbsign.arg("--output").arg(signed).arg(program))
    }
}

/// A signature list of this type with one entry.
pub fn signature_list(kind: Guid, value: &[u8]) -> anyhow::Result<Vec<u8>> {
    let entry_size = OWNER.as_bytes().len() + value.len();
    let mut list = kind.as_bytes().to_vec();
    for size in [LIST_HEADER + entry_size, 0, entry_size] {
        list.extend(u32::try_from(size)?.to_le_bytes());
    }
    list.extend(OWNER.as_bytes());
    list.extend(value);
    Ok(list)
}
