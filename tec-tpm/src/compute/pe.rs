//! What to read from a PE file, and what reading it once, front to back, yields.

mod walk;

use std::io::Read;

use tec_core::digest::Sha256Digest;

use self::walk::{Part, PeStream};
use super::hash::{BankDigests, Banks};
use super::layout::PeError;
use super::signature;
use super::signature::{SignatureError, SignaturePresence, SignedDigest};

/// Size of the pieces that are read: large compared with the cost of a call, and small enough that
/// the allocator reuses the same warm memory.
const PIECE: usize = 64 << 10;

/// What reading a PE file yields.
///
/// The digest is that of "Windows Authenticode Portable Executable Signature Format" 1.0,
/// "Calculating the PE Image Hash": everything but the checksum, the directory entry of the
/// certificate table, and that table. It is what firmware and shim measure into PCR 4.
#[derive(Clone, Debug)]
pub struct PeFile {
    pub(super) authenticode: BankDigests,
    pub(super) whole: Option<BankDigests>,
    pub(super) size: u64,
    pub(super) parts: Vec<Part>,
    pub(super) sections: Vec<String>,
    pub(super) certificates: Vec<u8>,
    /// The first bytes, if the whole file was hashed.
    pub(super) start: Vec<u8>,
}

/// What to read from a PE file. All of it is computed in one pass over the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeRequest {
    pub(super) banks: Banks,
    pub(super) keep: Vec<String>,
    pub(super) hash: Vec<String>,
    pub(super) nested: Option<String>,
    pub(super) left_out: Vec<u64>,
    pub(super) whole: bool,
}

impl PeRequest {
    /// The Authenticode digest in these banks, and nothing else.
    pub fn new(banks: Banks) -> Self {
        Self { banks, ..Self::default() }
    }

    /// Keeps the content of these sections in memory; long names count too.
    pub fn keep<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        self.keep.extend(names.into_iter().map(str::to_owned));
        self
    }

    /// Hashes the content of these sections as it lies in memory once loaded.
    pub fn hash<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        self.hash.extend(names.into_iter().map(str::to_owned));
        self
    }

    /// Reads the content of this section as a PE file too: the kernel within a unified kernel
    /// image.
    pub fn nested(mut self, name: impl Into<String>) -> Self {
        self.nested = Some(name.into());
        self
    }

    /// Skips the sections whose content begins at these offsets: those that are not used among
    /// several with the same name.
    pub(super) fn leaving_out(mut self, starts: Vec<u64>) -> Self {
        self.left_out = starts;
        self
    }

    /// Hashes all bytes of the file as well.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }
}

impl PeFile {
    /// Reads `reader` to its end and keeps the content of the sections in `keep`.
    ///
    /// Uses less than 3 MiB of memory, regardless of the size of the file.
    ///
    /// # Errors
    /// [`PeError`] when the file is not a PE file, or one whose parts do not follow each other:
    /// such files are hashed differently by different firmware.
    pub fn read(reader: impl Read, keep: &[&str]) -> Result<Self, PeError> {
        let request = PeRequest::new(Banks::SHA256).keep(keep.iter().copied());
        Self::read_as(reader, &request)
    }

    /// Reads `reader` to its end.
    ///
    /// Uses less than 8 MiB of memory, regardless of the size of the file.
    pub fn read_as(mut reader: impl Read, request: &PeRequest) -> Result<Self, PeError> {
        let mut piece = Vec::with_capacity(PIECE);
        let mut stream = PeStream::new(request.clone());
        let mut offset = 0;
        loop {
            piece.clear();
            let read = reader.by_ref().take(PIECE as u64).read_to_end(&mut piece);
            offset += piece.len() as u64;
            read.map_err(|source| PeError::Read { offset, source })?;
            if piece.is_empty() {
                return stream.finish();
            }
            stream.feed(&piece)?;
        }
    }

    /// The SHA-256 Authenticode digest.
    pub fn authenticode(&self) -> Sha256Digest {
        self.authenticode.sha256()
    }

    /// The Authenticode digest in all requested banks.
    pub fn authenticode_digests(&self) -> BankDigests {
        self.authenticode
    }

    /// Digest of all bytes, if requested.
    pub fn whole_digests(&self) -> Option<BankDigests> {
        self.whole
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Short names of the sections with content, in the order of the file.
    pub fn sections(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(String::as_str)
    }

    /// Content of a section that was to be kept, if the file has it.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.part(name)?.kept.as_deref()
    }

    /// Digest of a section that was to be hashed, if the file has it.
    pub fn section_digests(&self, name: &str) -> Option<BankDigests> {
        let hasher = self.part(name)?.hasher.clone()?;
        Some(hasher.finish())
    }

    /// The PE file within this one, if requested and if its section exists.
    pub fn nested(&self) -> Option<&Result<Self, PeError>> {
        self.parts.iter().find_map(|part| part.nested.as_deref())
    }

    pub(super) fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// The digests that the embedded signatures sign.
    ///
    /// # Errors
    /// [`SignatureError`] when the certificate table is malformed.
    pub fn signed_digests(&self) -> Result<Vec<SignedDigest>, SignatureError> {
        signature::signed_digests(&self.certificates)
    }

    /// These banks, and those in which firmware compares digests of the file.
    pub(super) fn with_signed(&self, banks: Banks) -> Banks {
        let signed = self.signed_digests().unwrap_or_default();
        signed.iter().fold(banks, |banks, digest| match digest {
            SignedDigest::Sha2(bank, _) => banks.with(*bank),
            SignedDigest::Other(_) => banks,
        })
    }

    /// The PKCS #7 signatures, in the order of the certificate table.
    ///
    /// # Errors
    /// [`SignatureError`] when the certificate table is malformed.
    pub(super) fn signatures(&self) -> Result<Vec<&[u8]>, SignatureError> {
        signature::pkcs7_entries(&self.certificates)
    }

    /// Compares the embedded signatures with the content.
    ///
    /// # Errors
    /// [`SignatureError::Mismatch`] if any signature signs another digest than the computed one; [`SignatureError::Unsigned`] if a signature is required and there is none.
    ///
    /// # Security
    /// Says nothing about who signed: no signature is verified here.
    pub fn check_signatures(&self, presence: SignaturePresence) -> Result<(), SignatureError> {
        signature::check(&self.signed_digests()?, &self.authenticode, presence)
    }
}
