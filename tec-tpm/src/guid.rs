//! GUIDs as firmware writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// A GUID in the byte order of UEFI 2.10, appendix A: the first three fields are little-endian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid([u8; 16]);

/// The string is not a GUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID: 32 hexadecimal digits in groups of 8-4-4-4-12")]
#[non_exhaustive]
pub struct ParseGuidError;

impl Guid {
    /// `EFI_GLOBAL_VARIABLE` (UEFI 2.10, 3.3): `SecureBoot`, `PK`, `KEK`, `Boot####`.
    pub const GLOBAL: Self = Self::of(0x8be4_df61_93ca_11d2_aa0d_00e0_9803_2b8c);
    /// `EFI_IMAGE_SECURITY_DATABASE_GUID` (UEFI 2.10, 32.6.1): `db`, `dbx`, `dbt`.
    pub const SECURITY_DATABASE: Self = Self::of(0xd719_b2cb_3d3a_4596_a3bc_dad0_0e67_656f);
    /// shim's variables: `MokList`, `SbatLevel` (shim, MokVars.txt).
    pub const SHIM: Self = Self::of(0x605d_ab50_e046_4300_abb6_3dd8_10dd_8b23);
    /// EDK II's `SecureBootEnable` (SecurityPkg, AuthenticatedVariableFormat.h).
    pub const SECURE_BOOT_ENABLE: Self = Self::of(0xf0a3_0bc7_af08_4556_99c4_0010_09c9_3a44);

    /// A GUID from its bytes in memory.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in memory.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A GUID from the number that its digits form when written as text.
    pub(crate) const fn of(digits: u128) -> Self {
        Self(Uuid::from_u128(digits).to_bytes_le())
    }
}

impl FromStr for Guid {
    type Err = ParseGuidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Forms with braces, with a prefix or without hyphens have other lengths.
        let guid = Uuid::try_parse(text).ok().filter(|_| text.len() == Hyphenated::LENGTH);
        guid.map(|guid| Self(guid.to_bytes_le())).ok_or(ParseGuidError)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_bytes_le(self.0), f)
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_the_same_guid() {
        let text = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
        let guid: Guid = text.parse().unwrap();
        assert_eq!(guid, Guid::GLOBAL);
        assert_eq!(guid.to_string(), text);
        assert_eq!(guid.as_bytes()[..4], [0x61, 0xdf, 0xe4, 0x8b]);
    }

    #[test]
    fn other_text_is_no_guid() {
        for text in ["", "8be4df61", "8be4df6193ca-11d2-aa0d-00e098032b8c-", "é"] {
            assert_eq!(text.parse::<Guid>(), Err(ParseGuidError), "{text}");
        }
        let signed = "+be4df61-93ca-11d2-aa0d-00e098032b8c";
        assert_eq!(signed.parse::<Guid>(), Err(ParseGuidError));
    }
}
