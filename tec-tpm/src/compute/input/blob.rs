//! The parts of an OCI image, which are named by their digests.

use std::io::Read;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, io};

use sha2::{Digest as _, Sha256, Sha512};
use tec_core::reference::BootImage;

use super::allowance::{Allowance, Meter};
use super::parts::ImageParts;
use super::unpack::{Source, Stream, unpack};

/// A part of an image.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    parts: Arc<dyn ImageParts>,
    digest: BlobDigest,
    size: u64,
    allowance: Allowance,
    meter: Arc<Meter>,
}

/// The digest of a part (descriptor.md, "Registered Algorithms").
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlobDigest {
    algorithm: Algorithm,
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// The string is not a digest of a known type.
#[derive(Debug)]
pub(super) struct UnknownDigest;

/// A part of an image does not match its description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The part has a different size.
    #[error("its size is not {0} bytes, the size in the manifest")]
    Size(u64),
    /// The part has a different digest.
    #[error("its digest is not {0}, the digest in its name")]
    Digest(String),
}

impl FromStr for BlobDigest {
    type Err = UnknownDigest;

    fn from_str(text: &str) -> Result<Self, UnknownDigest> {
        let (algorithm, hex) = text.split_once(':').ok_or(UnknownDigest)?;
        let (algorithm, digits) = match algorithm {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return Err(UnknownDigest),
        };
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if hex.len() != digits || !hex.bytes().all(is_digit) {
            return Err(UnknownDigest);
        }
        let hex = hex.to_owned();
        Ok(Self { algorithm, hex })
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl Algorithm {
    const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }
}

impl BlobDigest {
    /// Wraps `reader`, which must have this size and digest: otherwise, reading its end fails.
    pub(super) fn verified(&self, reader: impl Read + Send + 'static, size: u64) -> Stream {
        Box::new(Verified {
            reader,
            hasher: Some(match self.algorithm {
                Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
                Algorithm::Sha512 => Hasher::Sha512(Sha512::new()),
            }),
            expected: self.hex.clone(),
            size,
            count: 0,
        })
    }
}

impl Blob {
    pub(super) fn new(
        parts: Arc<dyn ImageParts>,
        digest: BlobDigest,
        size: u64,
        allowance: &Allowance,
    ) -> Self {
        Self { parts, digest, size, allowance: allowance.clone(), meter: allowance.meter() }
    }

    /// Path in a layout (image-layout.md, "Blobs").
    pub(super) fn path(&self) -> String {
        let BlobDigest { algorithm, hex } = &self.digest;
        format!("blobs/{}/{hex}", algorithm.name())
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Its bytes; a wrong size or digest is an error at the end.
    pub(super) fn verified(&self) -> io::Result<Stream> {
        let whole = self.parts.open(&self.digest.to_string(), 0..self.size)?;
        Ok(self.digest.verified(whole, self.size))
    }

    /// Some of its bytes, not verified yet.
    pub(super) fn unverified(&self, range: Range<u64>) -> io::Result<Stream> {
        let length = range.end.saturating_sub(range.start);
        let opened = self.parts.open(&self.digest.to_string(), range)?;
        Ok(Box::new(opened.take(length)))
    }

    /// Unpacks a stream assembled from some of its bytes.
    pub(super) fn unpack(&self, packed: Stream) -> io::Result<Stream> {
        unpack(packed, &self.allowance.meter())
    }
}

/// The parts of a layout.
#[derive(Debug)]
pub(super) struct LayoutParts(pub(super) Arc<dyn BootImage>);

impl ImageParts for LayoutParts {
    fn open(&self, digest: &str, range: Range<u64>) -> io::Result<Stream> {
        let path = format!("blobs/{}", digest.replacen(':', "/", 1));
        let mut file = self.0.open(&path)?;
        io::copy(&mut file.by_ref().take(range.start), &mut io::sink())?;
        Ok(Box::new(file))
    }
}

impl Source for Blob {
    fn open(&self) -> io::Result<Stream> {
        unpack(self.verified()?, &self.meter)
    }
}

/// Compares size and digest at the end.
struct Verified<R> {
    reader: R,
    /// None after the end.
    hasher: Option<Hasher>,
    expected: String,
    size: u64,
    count: u64,
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl<R: Read> Verified<R> {
    fn check(&mut self) -> Result<(), BlobError> {
        if self.count != self.size {
            return Err(BlobError::Size(self.size));
        }
        let digest = match self.hasher.take() {
            Some(Hasher::Sha256(hasher)) => hex::encode(hasher.finalize()),
            Some(Hasher::Sha512(hasher)) => hex::encode(hasher.finalize()),
            None => return Ok(()),
        };
        if digest != self.expected {
            return Err(BlobError::Digest(self.expected.clone()));
        }
        Ok(())
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = self.reader.read(buffer)?;
        self.count += count as u64;
        if count == 0 || self.count > self.size {
            self.check().map_err(io::Error::other)?;
        }
        let read = buffer.get(..count).unwrap_or_default();
        match &mut self.hasher {
            Some(Hasher::Sha256(hasher)) => hasher.update(read),
            Some(Hasher::Sha512(hasher)) => hasher.update(read),
            None => {}
        }
        Ok(count)
    }
}
