//! A list that is about to be appended to `dbx`, or to another key database.
//!
//! ```text
//! .auth: EFI_TIME 16 │ WIN_CERTIFICATE_UEFI_GUID: length 4, revision 2, type 2, GUID 16, PKCS #7 │ lists
//! .esl:  the lists
//! ```
//! Whether the firmware accepts the update is not checked: its signature is not verified.

use super::siglist;
use super::siglist::{SignatureEntry, SignatureListError};
use crate::guid::Guid;

/// `EFI_TIME`, before the certificate of an `EFI_VARIABLE_AUTHENTICATION_2` (UEFI 2.10, 8.2.2).
const TIME: usize = 16;
/// `dwLength`, `wRevision`, `wCertificateType` and `CertType` of a `WIN_CERTIFICATE_UEFI_GUID` (UEFI
/// 2.10, 32.2.4); the length counts from here on.
const CERTIFICATE_HEADER: usize = 24;
/// Revision 2.0 and `WIN_CERT_TYPE_EFI_GUID`, little-endian (UEFI 2.10, 32.2.4).
const REVISION_AND_TYPE: [u8; 4] = [0x00, 0x02, 0xf1, 0x0e];
/// `EFI_CERT_TYPE_PKCS7_GUID` (UEFI 2.10, 8.2.2).
const PKCS7: Guid = Guid::of(0x4aaf_d29d_68df_49ee_8aa9_347d_3756_65a7);

/// A staged update of a key database cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DbxUpdateError {
    /// The certificate before the lists is longer than the file.
    #[error("the certificate of the update has {length} bytes; {left} are left")]
    Certificate {
        /// The announced length.
        length: usize,
        /// The length of the rest of the file.
        left: usize,
    },
    /// The lists of the update cannot be read.
    #[error("the lists of the update cannot be read")]
    Update(#[source] SignatureListError),
    /// The lists already in the variable cannot be read.
    #[error("the lists that the variable has cannot be read")]
    Present(#[source] SignatureListError),
    /// The update is empty.
    #[error("the update has no entries")]
    Empty,
}

/// Content of a key database after an update was appended: firmware omits entries that are already there
/// (UEFI 2.10, 8.2.1, `EFI_VARIABLE_APPEND_WRITE`).
pub(super) fn appended(present: &[u8], update: &[u8]) -> Result<Vec<u8>, DbxUpdateError> {
    let known = siglist::parse(present).map_err(DbxUpdateError::Present)?;
    let added = siglist::parse(lists(update)?).map_err(DbxUpdateError::Update)?;
    if added.is_empty() {
        return Err(DbxUpdateError::Empty);
    }
    let is_new = |entry: &&SignatureEntry<'_>| {
        let same = |old: &SignatureEntry<'_>| (old.kind, old.whole) == (entry.kind, entry.whole);
        !known.iter().any(same)
    };
    let mut after = present.to_vec();
    for list in added.chunk_by(|_, next| next.position > 0) {
        let new: Vec<_> = list.iter().filter(is_new).map(|entry| entry.whole).collect();
        if let (Some(first), false) = (list.first(), new.is_empty()) {
            after.extend(siglist::list_of(first.kind, &new));
        }
    }
    Ok(after)
}

/// The lists of an update, with or without a signature before them.
fn lists(update: &[u8]) -> Result<&[u8], DbxUpdateError> {
    let certificate = update.get(TIME..).unwrap_or_default();
    let Some((length, rest)) = certificate.split_first_chunk() else {
        return Ok(update);
    };
    let kind = [&REVISION_AND_TYPE[..], PKCS7.as_bytes()].concat();
    if !rest.starts_with(&kind) {
        return Ok(update);
    }
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let lists = certificate.get(length..);
    lists
        .filter(|_| length >= CERTIFICATE_HEADER)
        .ok_or(DbxUpdateError::Certificate { length, left: certificate.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(digests: &[u8]) -> Vec<u8> {
        let whole: Vec<_> =
            digests.iter().map(|digest| [[0x77; 16].as_slice(), &[*digest; 32]].concat()).collect();
        let whole: Vec<_> = whole.iter().map(Vec::as_slice).collect();
        siglist::list_of(siglist::SHA256, &whole)
    }

    fn signed(lists: &[u8]) -> Vec<u8> {
        let signature = [0x30; 40];
        let length = u32::try_from(CERTIFICATE_HEADER + signature.len()).unwrap();
        let mut file = vec![0; TIME];
        file.extend(length.to_le_bytes());
        file.extend(REVISION_AND_TYPE);
        file.extend(PKCS7.as_bytes());
        file.extend(signature);
        file.extend(lists);
        file
    }

    #[test]
    fn new_entries_are_appended_and_known_ones_are_left_out() {
        let present = [digests(&[1, 2]), digests(&[3])].concat();
        let update = [digests(&[2, 4]), digests(&[1, 3]), digests(&[5])].concat();
        let expected = [present.clone(), digests(&[4]), digests(&[5])].concat();
        for update in [update.clone(), signed(&update)] {
            assert_eq!(appended(&present, &update), Ok(expected.clone()));
        }
        assert_eq!(appended(&[], &update).unwrap().len(), update.len());
        assert_eq!(appended(&expected, &update), Ok(expected.clone()));
    }

    #[test]
    fn what_is_no_update_is_named() {
        assert_eq!(appended(&[], &[]), Err(DbxUpdateError::Empty));
        assert_eq!(appended(&[], &signed(&[])), Err(DbxUpdateError::Empty));
        let cut = digests(&[1]);
        let cut = cut.get(..40).unwrap();
        let error = appended(&[], cut).unwrap_err();
        assert!(matches!(error, DbxUpdateError::Update(_)), "{error}");
        let error = appended(cut, &digests(&[1])).unwrap_err();
        assert!(matches!(error, DbxUpdateError::Present(_)), "{error}");
        for length in [0_u32, 23, 5000] {
            let mut file = signed(&digests(&[1]));
            file.splice(TIME..TIME + 4, length.to_le_bytes());
            let error = appended(&[], &file).unwrap_err();
            let named = usize::try_from(length).unwrap();
            assert!(
                matches!(error, DbxUpdateError::Certificate { length, .. } if length == named),
                "{error}"
            );
        }
    }
}
