//! Signature lists: the format of `db`, `dbx` and shim's lists (UEFI 2.10, 32.4.1).

use sha2::{Digest as _, Sha256};

use crate::guid::Guid;

/// `EFI_CERT_X509_GUID`.
pub(crate) const X509: Guid = Guid::of(0xa5c0_59a1_94e4_4aa7_87b5_ab15_5c2b_f072);
/// `EFI_CERT_SHA256_GUID`.
pub(super) const SHA256: Guid = Guid::of(0xc1c4_1626_504c_4092_aca9_41f9_3693_4328);
/// `EFI_CERT_SHA384_GUID`.
pub(super) const SHA384: Guid = Guid::of(0xff3e_5307_9fd0_48c9_85f1_8ad5_6c70_1e01);
/// `EFI_CERT_SHA512_GUID`.
pub(super) const SHA512: Guid = Guid::of(0x093e_0fae_a6c4_4f50_9f1b_d41e_2b89_c19a);
/// `EFI_CERT_SHA1_GUID`.
pub(super) const SHA1: Guid = Guid::of(0x826c_a512_cf10_4ac9_b187_be01_4966_31bd);
/// `EFI_CERT_X509_SHA256_GUID`.
pub(super) const X509_SHA256: Guid = Guid::of(0x3bd2_a492_96c0_4079_b420_fcf9_8ef1_03ed);
/// `EFI_CERT_X509_SHA384_GUID`.
pub(super) const X509_SHA384: Guid = Guid::of(0x7076_876e_80c2_4ee6_aad2_28b3_49a6_865b);
/// `EFI_CERT_X509_SHA512_GUID`.
pub(super) const X509_SHA512: Guid = Guid::of(0x446d_bf63_2502_4cda_bcfa_2465_d2b0_fe9d);

/// Type 16, size of the list 4, size of the header 4, size of an entry 4.
const HEADER: usize = 28;
/// Maximum number of entries of one variable; real revocation lists have a few hundred.
const MAX_ENTRIES: usize = 1 << 16;

/// A signature list cannot be read. Offsets count bytes from the start of the variable's data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureListError {
    /// The data ends within a list.
    #[error("offset {offset}: the list needs {needed} bytes; {left} are left")]
    Truncated {
        /// Where the list begins.
        offset: usize,
        /// Size that it announces, or that of its header.
        needed: usize,
        /// What is left of the data.
        left: usize,
    },
    /// The sizes in the header of a list contradict each other.
    #[error("offset {offset}: entries of {entry} bytes do not fill a list of {list} bytes")]
    Sizes {
        /// Where the list begins.
        offset: usize,
        /// Size of an entry.
        entry: usize,
        /// Size of the list.
        list: usize,
    },
    /// More entries than the limit.
    #[error("there are more than {0} entries")]
    TooManyEntries(usize),
}

/// One `EFI_SIGNATURE_DATA`, with the type of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignatureEntry<'d> {
    pub(super) kind: Guid,
    /// Owner and value as they lie in the list: what is measured.
    pub(super) whole: &'d [u8],
    /// Certificate or digest.
    pub(super) value: &'d [u8],
    /// Number of the entry in its list.
    pub(super) position: usize,
}

/// SHA-256 digest of each entry of a variable, over the type of its list, its owner and its value.
pub(crate) fn entry_digests(data: &[u8]) -> Result<Vec<[u8; 32]>, SignatureListError> {
    let digest = |entry: &SignatureEntry<'_>| {
        Sha256::new()
            .chain_update(entry.kind.as_bytes())
            .chain_update(entry.whole)
            .finalize()
            .into()
    };
    Ok(parse(data)?.iter().map(digest).collect())
}

/// Reads the lists of a variable.
pub(super) fn parse(data: &[u8]) -> Result<Vec<SignatureEntry<'_>>, SignatureListError> {
    let mut entries = Vec::new();
    let mut offset = 0;
    while let Some(rest) = data.get(offset..).filter(|rest| !rest.is_empty()) {
        offset += list(rest, offset, &mut entries)?;
    }
    Ok(entries)
}

fn list<'d>(
    rest: &'d [u8],
    offset: usize,
    entries: &mut Vec<SignatureEntry<'d>>,
) -> Result<usize, SignatureListError> {
    let truncated = |needed| SignatureListError::Truncated { offset, needed, left: rest.len() };
    let header: &[u8; HEADER] = rest.first_chunk().ok_or_else(|| truncated(HEADER))?;
    let (kind, sizes) = header.split_first_chunk().ok_or_else(|| truncated(HEADER))?;
    let size = |at: usize| -> Option<usize> {
        let field = sizes.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*field)).ok()
    };
    let (Some(list), Some(header_size), Some(entry)) = (size(0), size(4), size(8)) else {
        return Err(truncated(HEADER));
    };
    let refuse = SignatureListError::Sizes { offset, entry, list };
    let Some(first) = header_size.checked_add(HEADER).filter(|first| *first <= list) else {
        return Err(refuse);
    };
    let content = rest.get(first..list).ok_or_else(|| truncated(list))?;
    // An owner and at least one byte.
    if entry <= 16 || content.len() % entry != 0 {
        return Err(refuse);
    }
    if entries.len() + content.len() / entry > MAX_ENTRIES {
        return Err(SignatureListError::TooManyEntries(MAX_ENTRIES));
    }
    for (position, whole) in content.chunks_exact(entry).enumerate() {
        entries.push(SignatureEntry {
            kind: Guid::from_bytes(*kind),
            whole,
            value: whole.get(16..).unwrap_or_default(),
            position,
        });
    }
    Ok(list)
}

/// A list with one entry.
pub(crate) fn one(kind: Guid, owner: Guid, value: &[u8]) -> Vec<u8> {
    list_of(kind, &[&[owner.as_bytes(), value].concat()])
}

/// A list without a header of its own, of whole entries of one size.
pub(super) fn list_of(kind: Guid, entries: &[&[u8]]) -> Vec<u8> {
    // Variables have at most 1 MiB.
    let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes();
    let entry = entries.first().map_or(0, |entry| entry.len());
    let mut list = kind.as_bytes().to_vec();
    list.extend(size(HEADER + entry * entries.len()));
    list.extend(size(0));
    list.extend(size(entry));
    list.extend(entries.concat());
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut data = one(SHA256, Guid::SHIM, &[7; 32]);
        data.extend(one(X509, Guid::GLOBAL, b"certificate"));
        let entries = parse(&data).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].value, [7; 32]);
        assert_eq!(entries[1].kind, X509);
        assert_eq!(&entries[1].whole[..16], Guid::GLOBAL.as_bytes());
        assert!(parse(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_list_that_is_cut_off_is_refused_at_every_length() {
        let data = one(SHA256, Guid::SHIM, &[7; 32]);
        for end in 1..data.len() {
            assert!(matches!(
                parse(&data[..end]),
                Err(SignatureListError::Truncated { offset: 0, .. })
            ));
        }
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        let sizes = |list: u32, header: u32, entry: u32| {
            let mut data = one(SHA256, Guid::SHIM, &[7; 32]);
            data[16..20].copy_from_slice(&list.to_le_bytes());
            data[20..24].copy_from_slice(&header.to_le_bytes());
            data[24..28].copy_from_slice(&entry.to_le_bytes());
            parse(&data).map(|entries| entries.len())
        };
        assert_eq!(sizes(76, 0, 48), Ok(1));
        assert_eq!(sizes(76, 0, 24), Ok(2));
        for (list, header, entry) in
            [(0, 0, 48), (76, 0, 0), (76, 0, 16), (76, 1, 48), (76, u32::MAX, 48), (27, 0, 48)]
        {
            assert!(matches!(sizes(list, header, entry), Err(SignatureListError::Sizes { .. })));
        }
        assert!(matches!(sizes(u32::MAX, 0, 48), Err(SignatureListError::Truncated { .. })));
    }
}
