//! Reading a PE file once, front to back: Authenticode digest, chosen sections, certificates.

use std::io::ErrorKind;
use std::io::Read;

use sha2::Digest as _;
use sha2::Sha256;
use tec_core::digest::Sha256Digest;

use super::layout::Layout;
use super::layout::MAX_FILE;
use super::layout::MAX_HEADERS;
use super::layout::PeError;
use super::signature;
use super::signature::SignatureError;
use super::signature::SignaturePresence;
use super::signature::SignedDigest;

/// What reading a PE file yields.
///
/// The digest is that of "Windows Authenticode Portable Executable Signature Format" 1.0,
/// "Calculating the PE Image Hash": everything but the checksum, the directory entry of the
/// certificate table, and that table. It is what firmware and shim measure into PCR 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeFile {
    authenticode: Sha256Digest,
    size: u64,
    kept: Vec<KeptSection>,
    certificates: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptSection {
    name: String,
    content: Vec<u8>,
}

/// Largest section that is kept in memory; `.sbat` has some hundred bytes.
const MAX_KEPT: u64 = 64 << 10;

impl PeFile {
    /// Reads `reader` to its end and keeps the content of the sections in `keep`.
    ///
    /// Memory stays below 3 MiB whatever the size of the file.
    ///
    /// # Errors
    /// [`PeError`] when the file is no PE file, or one whose parts do not follow each other:
    /// such files are hashed differently by different firmware.
    pub fn read(mut reader: impl Read, keep: &[&str]) -> Result<Self, PeError> {
        let mut buffer = vec![0; MAX_HEADERS];
        let start = fill(&mut reader, &mut buffer, 0)?;
        let layout = Layout::parse(start)?;
        let mut walk = Walk::new(&layout, keep)?;
        walk.feed(start)?;
        loop {
            let chunk = fill(&mut reader, &mut buffer, walk.offset)?;
            if chunk.is_empty() {
                return walk.finish();
            }
            walk.feed(chunk)?;
        }
    }

    /// The SHA-256 Authenticode digest.
    pub fn authenticode(&self) -> Sha256Digest {
        self.authenticode
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Content of a section that was to be kept, if the file has it.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        let kept = self.kept.iter().find(|kept| kept.name == name)?;
        Some(&kept.content)
    }

    /// The digests that the embedded signatures sign.
    ///
    /// # Errors
    /// [`SignatureError`] when the certificate table is malformed.
    pub fn signed_digests(&self) -> Result<Vec<SignedDigest>, SignatureError> {
        signature::signed_digests(&self.certificates)
    }

    /// Compares the embedded signatures with the content.
    ///
    /// # Errors
    /// [`SignatureError::Mismatch`] if any signature signs another SHA-256 digest than the
    /// computed one; [`SignatureError::Unsigned`] if there must be one and there is none.
    ///
    /// # Security
    /// Says nothing about who signed: no signature is verified here.
    pub fn check_signatures(&self, presence: SignaturePresence) -> Result<(), SignatureError> {
        signature::check(&self.signed_digests()?, self.authenticode, presence)
    }
}

/// Reads until `buffer` is full or the file ends.
fn fill<'b>(
    reader: &mut impl Read,
    buffer: &'b mut [u8],
    offset: u64,
) -> Result<&'b [u8], PeError> {
    let mut filled = 0;
    while let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) {
        match reader.read(free) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(PeError::Read {
                    offset: offset + filled as u64,
                    source,
                });
            }
        }
    }
    Ok(buffer.get(..filled).unwrap_or_default())
}

/// What is done with a stretch of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Hash,
    Skip,
    /// Hashed; the number is the position in `Walk::kept` if the content is kept.
    Section(Option<usize>),
    Certificates,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    end: u64,
    role: Role,
}

/// Walks the stretches of a file in order.
struct Walk<'l> {
    layout: &'l Layout,
    stretches: Vec<Stretch>,
    current: usize,
    offset: u64,
    hasher: Sha256,
    kept: Vec<KeptSection>,
    /// How much of each kept section counts.
    wanted: Vec<usize>,
    /// The bytes before the end of the sections that are hashed again, see [`Layout::gaps`].
    again: Vec<u8>,
    again_from: u64,
    certificates: Vec<u8>,
}

impl<'l> Walk<'l> {
    fn new(layout: &'l Layout, keep: &[&str]) -> Result<Self, PeError> {
        let mut walk = Self {
            layout,
            stretches: Vec::with_capacity(2 * layout.sections.len() + 8),
            current: 0,
            offset: 0,
            hasher: Sha256::new(),
            kept: Vec::new(),
            wanted: Vec::new(),
            again: Vec::new(),
            again_from: layout.sections_end() - layout.gaps(),
            certificates: Vec::new(),
        };
        walk.until(layout.checksum.start, Role::Hash);
        walk.until(layout.checksum.end, Role::Skip);
        walk.until(layout.certificate_entry.start, Role::Hash);
        walk.until(layout.certificate_entry.end, Role::Skip);
        walk.until(layout.headers, Role::Hash);
        for section in &layout.sections {
            walk.until(section.raw.start, Role::Skip);
            let kept = if keep.contains(&section.name.as_str()) {
                Some(walk.keep(&section.name, section.content)?)
            } else {
                None
            };
            walk.until(section.raw.end, Role::Section(kept));
        }
        if let Some(certificates) = &layout.certificates {
            walk.until(certificates.start, Role::Hash);
            walk.until(certificates.end, Role::Certificates);
        } else {
            walk.until(MAX_FILE, Role::Hash);
        }
        Ok(walk)
    }

    fn until(&mut self, end: u64, role: Role) {
        self.stretches.push(Stretch { end, role });
    }

    fn keep(&mut self, name: &str, size: u64) -> Result<usize, PeError> {
        if self.kept.iter().any(|kept| kept.name == name) {
            return Err(PeError::RepeatedSection {
                section: name.to_owned(),
            });
        }
        let wanted = usize::try_from(size)
            .ok()
            .filter(|_| size <= MAX_KEPT)
            .ok_or_else(|| PeError::SectionTooLarge {
                section: name.to_owned(),
                size,
                limit: MAX_KEPT,
            })?;
        self.kept.push(KeptSection {
            name: name.to_owned(),
            content: Vec::new(),
        });
        self.wanted.push(wanted);
        Ok(self.kept.len() - 1)
    }

    fn feed(&mut self, mut chunk: &[u8]) -> Result<(), PeError> {
        while !chunk.is_empty() {
            let Some(stretch) = self.stretches.get(self.current).copied() else {
                return Err(self.too_long());
            };
            let room = usize::try_from(stretch.end - self.offset).unwrap_or(usize::MAX);
            let (now, rest) = chunk.split_at(room.min(chunk.len()));
            self.take(stretch.role, now);
            self.offset += now.len() as u64;
            if self.offset == stretch.end {
                self.current += 1;
            }
            chunk = rest;
        }
        Ok(())
    }

    fn take(&mut self, role: Role, bytes: &[u8]) {
        self.remember(bytes);
        if self.offset >= self.layout.sections_end() && !self.again.is_empty() {
            self.hasher.update(std::mem::take(&mut self.again));
        }
        match role {
            Role::Hash => self.hasher.update(bytes),
            Role::Skip => {}
            Role::Certificates => self.certificates.extend_from_slice(bytes),
            Role::Section(kept) => {
                self.hasher.update(bytes);
                let slot = kept.and_then(|k| self.kept.get_mut(k).zip(self.wanted.get(k)));
                if let Some((section, wanted)) = slot {
                    let room = wanted.saturating_sub(section.content.len());
                    let counts = bytes.get(..room.min(bytes.len())).unwrap_or_default();
                    section.content.extend_from_slice(counts);
                }
            }
        }
    }

    /// Remembers what of `bytes` lies between `again_from` and the end of the sections.
    fn remember(&mut self, bytes: &[u8]) {
        let end = self.offset + bytes.len() as u64;
        if end > self.again_from && self.offset < self.layout.sections_end() {
            // Stretches never cross the end of the sections, so only the beginning is cut.
            let skip = self.again_from.saturating_sub(self.offset);
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            self.again
                .extend_from_slice(bytes.get(skip..).unwrap_or_default());
        }
    }

    fn too_long(&self) -> PeError {
        match &self.layout.certificates {
            Some(table) => PeError::CertificateTable {
                offset: table.start,
                size: table.end - table.start,
                reason: "is not the last part of the file",
            },
            None => PeError::TooLarge { limit: MAX_FILE },
        }
    }

    fn finish(mut self) -> Result<PeFile, PeError> {
        let section = self
            .layout
            .sections
            .iter()
            .find(|s| self.offset < s.raw.end);
        if let Some(section) = section {
            return Err(PeError::Truncated {
                offset: self.offset,
                part: format!("section {}", section.name),
                needed: section.raw.end,
            });
        }
        if let Some(table) = &self.layout.certificates
            && self.offset < table.end
        {
            return Err(PeError::Truncated {
                offset: self.offset,
                part: "the certificate table".to_owned(),
                needed: table.end,
            });
        }
        self.hasher.update(&self.again);
        Ok(PeFile {
            authenticode: Sha256Digest::new(self.hasher.finalize().into()),
            size: self.offset,
            kept: self.kept,
            certificates: self.certificates,
        })
    }
}
