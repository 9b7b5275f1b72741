//! Small PE files and images, built byte by byte: for tests, fuzzing and benches.

#[cfg(feature = "images")]
pub mod layer;
pub mod parsers;

use sha2::{Digest as _, Sha256};

use super::memory::MemoryImage;

/// Builds a small PE32+ file with sections, a zero checksum and, optionally, an Authenticode
/// signature (of no one: it has only the part that names the digest).
#[derive(Clone, Debug, Default)]
pub struct PeBuilder {
    sections: Vec<(String, Vec<u8>)>,
    trailer: Vec<u8>,
    signed: Vec<Vec<u8>>,
    sign_itself: usize,
    signatures: Vec<Vec<u8>>,
}

/// Where [`PeBuilder`] puts things.
const PE_OFFSET: usize = 0x80;
const OPTIONAL: usize = PE_OFFSET + 24;
/// PE32+ optional header with 16 data directories.
const OPTIONAL_SIZE: usize = 112 + 16 * 8;
const SECTION_TABLE: usize = OPTIONAL + OPTIONAL_SIZE;
const CHECKSUM: usize = OPTIONAL + 64;
const CERTIFICATE_ENTRY: usize = OPTIONAL + 112 + 4 * 8;
const ALIGNMENT: usize = 512;

impl PeBuilder {
    /// A file without sections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a section; its content is padded to 512 bytes. Names of more than 8 characters go to a
    /// string table.
    pub fn section(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.sections.push((name.to_owned(), content.into()));
        self
    }

    /// Adds bytes after the last section.
    pub fn trailer(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.trailer = bytes.into();
        self
    }

    /// Adds a signature over the file's own digest.
    pub fn signed(mut self) -> Self {
        self.sign_itself += 1;
        self
    }

    /// Adds a signature over another digest.
    #[must_use]
    pub fn signed_for(mut self, digest: [u8; 32]) -> Self {
        self.signed.push(digest.to_vec());
        self
    }

    /// Adds a PKCS #7 signature as it is.
    pub fn signature(mut self, signature: impl Into<Vec<u8>>) -> Self {
        self.signatures.push(signature.into());
        self
    }

    /// The SHA-256 Authenticode digest of the file, with or without signatures.
    pub fn digest(&self) -> [u8; 32] {
        let digest = plain_digest(&self.unsigned());
        digest.try_into().unwrap_or_default()
    }

    /// Everything but the certificate table.
    fn unsigned(&self) -> Vec<u8> {
        let mut file = self.headers();
        for (_, content) in &self.sections {
            file.extend(content);
            pad(&mut file, ALIGNMENT);
        }
        if !self.strings().is_empty() {
            let strings = self.strings();
            let offset = le32(file.len());
            put(&mut file, PE_OFFSET + 12, &offset);
            file.extend(le32(strings.len() + 4));
            file.extend(strings);
        }
        file.extend(&self.trailer);
        pad(&mut file, 8);
        file
    }

    /// Long names of sections, each with a terminator.
    fn strings(&self) -> Vec<u8> {
        let long = self.sections.iter().filter(|(name, _)| name.len() > 8);
        long.flat_map(|(name, _)| name.bytes().chain([0])).collect()
    }

    /// The bytes of the file.
    pub fn build(&self) -> Vec<u8> {
        let mut file = self.unsigned();
        let digest = plain_digest(&file);
        let own = std::iter::repeat_n(digest, self.sign_itself);
        let table: Vec<u8> = own
            .chain(self.signed.iter().cloned())
            .map(|digest| signed_data(&digest))
            .chain(self.signatures.iter().cloned())
            .flat_map(|signature| win_certificate(&signature))
            .collect();
        if !table.is_empty() {
            let offset = le32(file.len());
            put(&mut file, CERTIFICATE_ENTRY, &offset);
            put(&mut file, CERTIFICATE_ENTRY + 4, &le32(table.len()));
            file.extend(table);
        }
        file
    }

    fn headers(&self) -> Vec<u8> {
        let mut file = vec![0; SECTION_TABLE];
        put(&mut file, 0, b"MZ");
        put(&mut file, 0x3c, &le32(PE_OFFSET));
        put(&mut file, PE_OFFSET, b"PE\0\0");
        put(&mut file, PE_OFFSET + 4, &0x8664_u16.to_le_bytes()); // x86-64
        put(&mut file, PE_OFFSET + 6, &le16(self.sections.len()));
        put(&mut file, PE_OFFSET + 20, &le16(OPTIONAL_SIZE));
        put(&mut file, OPTIONAL, &0x20b_u16.to_le_bytes());
        put(&mut file, OPTIONAL + 108, &le32(16));
        let table = SECTION_TABLE + self.sections.len() * 40;
        let headers = table.next_multiple_of(ALIGNMENT);
        put(&mut file, OPTIONAL + 60, &le32(headers));
        let mut start = headers;
        let mut long = 4;
        for (name, content) in &self.sections {
            let mut name = name.clone();
            if name.len() > 8 {
                let at = long;
                long += name.len() + 1;
                name = format!("/{at}");
            }
            let size = content.len().next_multiple_of(ALIGNMENT);
            let mut header = [0; 40];
            put(&mut header, 0, name.as_bytes());
            put(&mut header, 8, &le32(content.len()));
            put(&mut header, 12, &le32(start));
            put(&mut header, 16, &le32(size));
            put(&mut header, 20, &le32(start));
            file.extend(header);
            start += size;
        }
        file.resize(headers, 0);
        file
    }
}

/// A PE file for a GRUB of the given version, signed, with Debian's vendor entry.
pub fn grub(version: &str) -> Vec<u8> {
    let sbat = format!(
        "sbat,1,SBAT Version,sbat,1,https://example.org/sbat\n\
         grub,5,Free Software Foundation,grub,{version},https://example.org/grub\n\
         grub.debian,5,Debian,grub2,{version}-1,https://example.org/debian\n"
    );
    PeBuilder::new().section(".text", b"GRUB".repeat(200)).section(".sbat", sbat).signed().build()
}

/// A signed PE file for a shim of the given version, with a vendor certificate whose key nobody
/// holds.
pub fn shim(version: &str) -> Vec<u8> {
    // shim, cert.S: sizes and offsets of the allowed and the revoked part.
    let certificate = der(0x30, &[b"vendor"]);
    let mut keys = [le32(certificate.len()), le32(0), le32(16)].concat();
    keys.extend(le32(16 + certificate.len()));
    keys.extend(certificate);
    // shim, sbat_var.S: version, then offsets of two levels, which count from byte 4.
    let levels = b"\0\0\0\0\x08\0\0\0\x1b\0\0\0sbat,1,2024010900\n\0sbat,1,2026010900\n\0";
    PeBuilder::new()
        .section(".text", b"shim".repeat(100))
        .section(".data.ident", format!("UEFI SHIM\n$Version: {version} $\n"))
        .section(".sbatlevel", levels.as_slice())
        .section(".vendor_cert", keys)
        .signed()
        .build()
}

/// A signed PE file with this text as its code.
pub fn application(text: &str) -> Vec<u8> {
    PeBuilder::new().section(".text", text.repeat(100)).section(".data", text).signed().build()
}

/// A file that [`PeBuilder`] built, without its signatures: what a machine allows by its digest.
pub fn unsigned(mut file: Vec<u8>) -> Vec<u8> {
    let entry = file.get(CERTIFICATE_ENTRY..).and_then(<[u8]>::first_chunk);
    let table = entry.map_or(0, |offset| u32::from_le_bytes(*offset));
    if let Ok(table @ 1..) = usize::try_from(table) {
        file.truncate(table);
        put(&mut file, CERTIFICATE_ENTRY, &[0; 8]);
    }
    file
}

/// An image in the layout of Debian's packages with a GRUB of the given version.
pub fn debian_chain(grub_version: &str) -> MemoryImage {
    MemoryImage::new()
        .with("usr/lib/shim/shimx64.efi.signed", shim("16.1"))
        .with("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", grub(grub_version))
        .with("boot/vmlinuz-6.12.0-amd64", application("Linux"))
}

/// Digest of a contiguous file without certificate table: everything but two fields.
fn plain_digest(file: &[u8]) -> Vec<u8> {
    let part = |from: usize, to: usize| file.get(from..to).unwrap_or_default();
    Sha256::new()
        .chain_update(part(0, CHECKSUM))
        .chain_update(part(CHECKSUM + 4, CERTIFICATE_ENTRY))
        .chain_update(part(CERTIFICATE_ENTRY + 8, file.len()))
        .finalize()
        .to_vec()
}

/// `WIN_CERTIFICATE` revision 2.0 of type PKCS #7, padded to 8 bytes.
fn win_certificate(signature: &[u8]) -> Vec<u8> {
    let mut entry = le32(signature.len() + 8).to_vec();
    entry.extend([0, 2, 2, 0]);
    entry.extend(signature);
    pad(&mut entry, 8);
    entry
}

/// The beginning of an Authenticode signature, up to the signed digest.
fn signed_data(digest: &[u8]) -> Vec<u8> {
    // Object identifiers in DER: signedData, SPC_INDIRECT_DATA, SPC_PE_IMAGE_DATA, SHA-256.
    const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
    const INDIRECT: &[u8] = b"\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x02\x01\x04";
    let algorithm = der(0x30, &[SHA256, b"\x05\x00"]);
    let indirect = der(0x30, &[&indirect_data(digest)]);
    let encapsulated = der(0x30, &[INDIRECT, &der(0xa0, &[&indirect])]);
    let data = der(0x30, &[b"\x02\x01\x01", &der(0x31, &[&algorithm]), &encapsulated]);
    der(0x30, &[SIGNED_DATA, &der(0xa0, &[&data])])
}

/// Content of an SpcIndirectDataContent: what an Authenticode signature signs. The size of the digest, 32, 48 or 64
/// bytes, tells its algorithm.
pub fn indirect_data(digest: &[u8]) -> Vec<u8> {
    const PE_IMAGE: &[u8] = b"\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x02\x01\x0f";
    let number = u8::try_from(digest.len() / 16 - 1).unwrap_or_default();
    let hash = [SHA2, &[number]].concat();
    let algorithm = der(0x30, &[&hash, b"\x05\x00"]);
    let digest_info = der(0x30, &[&algorithm, &der(0x04, &[digest])]);
    [der(0x30, &[PE_IMAGE]), digest_info].concat()
}

/// `id-sha256` in DER.
pub const SHA256: &[u8] = b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01";
/// `id-sha256`, `id-sha384` and `id-sha512` without their last byte.
const SHA2: &[u8] = b"\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02";

/// One element; contents here are below 64 KiB.
pub fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    let mut element = vec![tag];
    match length.to_be_bytes() {
        [0, low @ 0..0x80] => element.push(low),
        [0, low] => element.extend([0x81, low]),
        [high, low] => element.extend([0x82, high, low]),
    }
    element.extend(content);
    element
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (slot, byte) in file.iter_mut().skip(at).zip(bytes) {
        *slot = *byte;
    }
}

fn pad(file: &mut Vec<u8>, alignment: usize) {
    file.resize(file.len().next_multiple_of(alignment), 0);
}

fn le16(value: usize) -> [u8; 2] {
    u16::try_from(value).unwrap_or(u16::MAX).to_le_bytes()
}

fn le32(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}
