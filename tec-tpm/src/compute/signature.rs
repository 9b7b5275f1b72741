//! The digests signed in a PE file. The signatures are only read here, not verified.

use tec_core::digest::Sha256Digest;
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::{Decode as _, SliceReader, Tag, TagNumber};

/// Whether a file must be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignaturePresence {
    /// Firmware or shim would refuse the file without a signature.
    Required,
    /// The file may be unsigned.
    Optional,
}

/// A digest that an embedded signature signs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignedDigest {
    /// A SHA-256 digest.
    Sha256(Sha256Digest),
    /// A digest of another algorithm.
    Other {
        /// Object identifier of the algorithm.
        algorithm: String,
    },
}

/// The signature and the content of a file do not match. Offsets count from the start of the
/// certificate table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A required SHA-256 signature is missing.
    #[error(
        "the file has no embedded SHA-256 signature, and Secure Boot needs one (--secure-boot off, if \
         it is off)"
    )]
    Unsigned,
    /// A signature is for different content.
    #[error("the file's digest is {computed}, but its signature is over {signed}")]
    Mismatch {
        /// Digest of the file.
        computed: Sha256Digest,
        /// Digest in the signature.
        signed: Sha256Digest,
    },
    /// An entry of the certificate table is malformed.
    #[error("certificate table offset {offset}: an entry of {length} bytes exceeds the table")]
    Entry {
        /// Where the entry begins.
        offset: usize,
        /// Length field of the entry.
        length: u32,
    },
    /// More entries than the limit.
    #[error("the certificate table has more than {0} entries")]
    TooManyEntries(usize),
    /// An entry is not an Authenticode signature.
    #[error("certificate table offset {offset}: not an Authenticode signature")]
    Content {
        /// Where the entry begins.
        offset: usize,
        /// Why the signature cannot be read.
        #[source]
        source: SignatureContentError,
    },
}

/// Why the content of a signature cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureContentError {
    /// Not DER, or not the expected structure.
    #[error("the DER structure is not that of a signature: {0}")]
    Der(String),
    /// The content is of another type.
    #[error("the content type {0} is not that of an Authenticode signature")]
    ContentType(String),
    /// A SHA-256 digest has the wrong length.
    #[error("the SHA-256 digest has {0} bytes")]
    DigestLength(usize),
}

/// Maximum number of entries; dual-signed files have two.
const MAX_ENTRIES: usize = 16;
/// `WIN_CERT_TYPE_PKCS_SIGNED_DATA` (PE format, "The Attribute Certificate Table").
const PKCS_SIGNED_DATA: u16 = 2;
/// RFC 5652, 5.1: `id-signedData`.
const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
/// Authenticode PE, "SpcIndirectDataContent": `SPC_INDIRECT_DATA_OBJID`.
const SPC_INDIRECT_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.311.2.1.4");
/// RFC 5754, 2.2: `id-sha256`.
const SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");

pub(super) fn check(
    signed: &[SignedDigest],
    computed: Sha256Digest,
    presence: SignaturePresence,
) -> Result<(), SignatureError> {
    let mut unsigned = true;
    for digest in signed {
        if let SignedDigest::Sha256(signed) = digest {
            unsigned = false;
            if *signed != computed {
                return Err(SignatureError::Mismatch { computed, signed: *signed });
            }
        }
    }
    if unsigned && presence == SignaturePresence::Required {
        return Err(SignatureError::Unsigned);
    }
    Ok(())
}

/// The digest that each entry signs.
pub(super) fn signed_digests(table: &[u8]) -> Result<Vec<SignedDigest>, SignatureError> {
    let mut digests = Vec::new();
    for entry in entries(table)? {
        if entry.kind == PKCS_SIGNED_DATA {
            let offset = entry.offset;
            let digest = signed_digest(entry.content)
                .map_err(|source| SignatureError::Content { offset, source })?;
            digests.push(digest);
        } else {
            digests.push(SignedDigest::Other { algorithm: "unknown certificate type".to_owned() });
        }
    }
    Ok(digests)
}

/// The content of the entries that are PKCS #7 signatures.
pub(super) fn pkcs7_entries(table: &[u8]) -> Result<Vec<&[u8]>, SignatureError> {
    let signatures = entries(table)?.into_iter();
    let signatures = signatures.filter(|entry| entry.kind == PKCS_SIGNED_DATA);
    Ok(signatures.map(|entry| entry.content).collect())
}

struct Entry<'t> {
    offset: usize,
    kind: u16,
    content: &'t [u8],
}

/// Walks the entries: length 4, revision 2, type 2, content; each padded to 8 bytes.
fn entries(table: &[u8]) -> Result<Vec<Entry<'_>>, SignatureError> {
    let mut entries = Vec::new();
    let mut offset = 0;
    while let Some(rest) = table.get(offset..).filter(|rest| !rest.is_empty()) {
        let Some((&[l0, l1, l2, l3, _, _, t0, t1], _)) = rest.split_first_chunk() else {
            return Err(SignatureError::Entry { offset, length: 0 });
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(content) = rest.get(8..size) else {
            return Err(SignatureError::Entry { offset, length });
        };
        if entries.len() >= MAX_ENTRIES {
            return Err(SignatureError::TooManyEntries(MAX_ENTRIES));
        }
        entries.push(Entry { offset, kind: u16::from_le_bytes([t0, t1]), content });
        // `size` is at most the length of the table, so rounding up cannot overflow.
        offset += size.next_multiple_of(8);
    }
    Ok(entries)
}

/// ContentInfo → SignedData → SpcIndirectDataContent → DigestInfo. What follows the ContentInfo is
/// padding.
pub(super) fn signed_digest(content: &[u8]) -> Result<SignedDigest, SignatureContentError> {
    let (algorithm, digest) = digest_info(content)?;
    if algorithm != SHA256 {
        return Ok(SignedDigest::Other { algorithm: algorithm.to_string() });
    }
    <[u8; 32]>::try_from(digest)
        .map(|digest| SignedDigest::Sha256(Sha256Digest::new(digest)))
        .map_err(|_| SignatureContentError::DigestLength(digest.len()))
}

fn digest_info(content: &[u8]) -> Result<(ObjectIdentifier, &[u8]), SignatureContentError> {
    let mut outer = SliceReader::new(content)?;
    let content_info = element(&mut outer, Tag::Sequence)?;

    let mut fields = SliceReader::new(content_info)?;
    expect_oid(&mut fields, SIGNED_DATA)?;
    let mut explicit = SliceReader::new(element(&mut fields, context_0())?)?;
    let mut signed_data = SliceReader::new(element(&mut explicit, Tag::Sequence)?)?;
    element(&mut signed_data, Tag::Integer)?; // version
    element(&mut signed_data, Tag::Set)?; // digestAlgorithms

    let mut encapsulated = SliceReader::new(element(&mut signed_data, Tag::Sequence)?)?;
    expect_oid(&mut encapsulated, SPC_INDIRECT_DATA)?;
    let mut explicit = SliceReader::new(element(&mut encapsulated, context_0())?)?;
    let mut indirect = SliceReader::new(element(&mut explicit, Tag::Sequence)?)?;
    element(&mut indirect, Tag::Sequence)?; // data: SpcAttributeTypeAndOptionalValue

    let mut digest_info = SliceReader::new(element(&mut indirect, Tag::Sequence)?)?;
    let mut algorithm = SliceReader::new(element(&mut digest_info, Tag::Sequence)?)?;
    let algorithm = ObjectIdentifier::decode(&mut algorithm)?;
    let digest = element(&mut digest_info, Tag::OctetString)?;
    Ok((algorithm, digest))
}

/// Content of the next element, which must have this tag.
fn element<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> x509_cert::der::Result<&'a [u8]> {
    use x509_cert::der::Tagged as _;
    let any = AnyRef::decode(reader)?;
    any.tag().assert_eq(tag)?;
    Ok(any.value())
}

fn expect_oid(
    reader: &mut SliceReader<'_>,
    expected: ObjectIdentifier,
) -> Result<(), SignatureContentError> {
    let oid = ObjectIdentifier::decode(reader)?;
    if oid != expected {
        return Err(SignatureContentError::ContentType(oid.to_string()));
    }
    Ok(())
}

fn context_0() -> Tag {
    Tag::ContextSpecific { constructed: true, number: TagNumber(0) }
}

impl From<x509_cert::der::Error> for SignatureContentError {
    fn from(error: x509_cert::der::Error) -> Self {
        Self::Der(error.to_string())
    }
}
