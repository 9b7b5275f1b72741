//! The digests signed in a PE file. The signatures are only read here, not verified.

use super::authenticode::SignedContent;
use super::der::DerError;
use super::hash::BankDigests;
use super::x509::hash_of;
use crate::event_log::Bank;

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
    /// A digest that firmware compares with that of the file.
    Sha2(Bank, Vec<u8>),
    /// A digest of another algorithm, by its object identifier in hexadecimal.
    Other(String),
}

/// The signature and the content of a file do not match. Offsets count from the start of the
/// certificate table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A required signature is missing.
    #[error(
        "the file has no embedded signature of a SHA-2 digest, and Secure Boot needs one (--secure-boot off, if \
         it is off)"
    )]
    Unsigned,
    /// A signature is for different content.
    #[error("the file's digest is {computed}, but its signature is over {signed}")]
    Mismatch {
        /// Digest of the file, in hexadecimal.
        computed: String,
        /// Digest in the signature, in hexadecimal.
        signed: String,
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
        source: DerError,
    },
}

/// Maximum number of entries; dual-signed files have two.
const MAX_ENTRIES: usize = 16;
/// `WIN_CERT_TYPE_PKCS_SIGNED_DATA` (PE format, "The Attribute Certificate Table").
const PKCS_SIGNED_DATA: u16 = 2;

/// A digest that was not computed, as shim computes none but SHA-256, is no signature.
pub(super) fn check(
    signed: &[SignedDigest],
    computed: &BankDigests,
    presence: SignaturePresence,
) -> Result<(), SignatureError> {
    let mut unsigned = true;
    for digest in signed {
        if let SignedDigest::Sha2(bank, signed) = digest
            && let Some(computed) = computed.get(*bank)
        {
            unsigned = false;
            if computed != signed {
                let (computed, signed) = (hex::encode(computed), hex::encode(signed));
                return Err(SignatureError::Mismatch { computed, signed });
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
            digests.push(SignedDigest::Other("unknown certificate type".to_owned()));
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

fn signed_digest(content: &[u8]) -> Result<SignedDigest, DerError> {
    let SignedContent { image_hash, image_digest, .. } = SignedContent::read(content)?;
    match hash_of(image_hash).filter(|bank| *bank != Bank::Sha1) {
        None => Ok(SignedDigest::Other(hex::encode(image_hash))),
        Some(bank) if image_digest.len() == bank.digest_size() => {
            Ok(SignedDigest::Sha2(bank, image_digest.to_vec()))
        }
        Some(_) => Err(DerError { structure: "digest" }),
    }
}
