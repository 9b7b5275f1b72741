//! The keys of shim's vendor, a section of shim.

use super::pe::PeFile;
use super::shim_error::ShimError;
use super::siglist;
use crate::guid::Guid;

/// What shim's vendor allows and revokes, as shim puts it before the user's lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VendorLists {
    /// The database of signature lists; empty if the vendor has a single certificate.
    pub(super) db: Vec<u8>,
    pub(super) allowed: Vec<u8>,
    pub(super) revoked: Vec<u8>,
}

impl VendorLists {
    pub(super) fn of(file: &PeFile) -> Result<Self, ShimError> {
        let keys = VendorKeys::parse(file.section(".vendor_cert").ok_or(ShimError::NoVendorKeys)?)?;
        // shim, shim.c: a database if it parses as one certificate does not.
        let is_certificate = keys.authorized.starts_with(&[0x30]);
        Ok(Self {
            db: if is_certificate { Vec::new() } else { keys.authorized.to_vec() },
            allowed: match keys.authorized {
                [] => Vec::new(),
                certificate if is_certificate => {
                    siglist::one(siglist::X509, Guid::SHIM, certificate)
                }
                lists => lists.to_vec(),
            },
            revoked: keys.deauthorized.to_vec(),
        })
    }
}

/// shim, cert.S: sizes of the allowed and the revoked part 4 and 4, their offsets 4 and 4.
pub(super) struct VendorKeys<'s> {
    pub(super) authorized: &'s [u8],
    pub(super) deauthorized: &'s [u8],
}

impl<'s> VendorKeys<'s> {
    pub(super) fn parse(section: &'s [u8]) -> Result<Self, ShimError> {
        let word = |at: usize| {
            let field = section.get(at..).and_then(|rest| rest.first_chunk());
            field.and_then(|field| usize::try_from(u32::from_le_bytes(*field)).ok())
        };
        let part = |size_at, offset_at| {
            let refuse = |offset, size| ShimError::VendorKeys { offset, size };
            let (Some(size), Some(offset)) = (word(size_at), word(offset_at)) else {
                return Err(refuse(offset_at, 4));
            };
            let end = offset.checked_add(size);
            end.and_then(|end| section.get(offset..end)).ok_or_else(|| refuse(offset, size))
        };
        Ok(Self { authorized: part(0, 8)?, deauthorized: part(4, 12)? })
    }
}
