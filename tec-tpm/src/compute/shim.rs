//! What shim makes of its own sections and of the variables that it keeps.

use super::chain::SecureBoot;
use super::guid::Guid;
use super::pe::PeFile;
use super::platform::PlatformState;
use super::siglist;

/// A generation of shim whose measurements are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShimProfile {
    /// shim 15.8.
    V15_8,
    /// shim 16.1.
    V16_1,
}

/// What shim measures cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShimError {
    /// The section that says which shim this is lacks or is no text.
    #[error("there is no .data.ident section that says which shim this is")]
    NoVersion,
    /// A version that has not been observed.
    #[error("what shim {version} measures is not known; choose a profile to override")]
    UnknownVersion {
        /// Version.
        version: String,
    },
    /// There is no section with the vendor's keys.
    #[error("there is no .vendor_cert section")]
    NoVendorKeys,
    /// The section with the vendor's keys contradicts itself.
    #[error(".vendor_cert offset {offset}: {size} bytes do not fit")]
    VendorKeys {
        /// Where the part begins.
        offset: usize,
        /// Its size.
        size: usize,
    },
    /// There is no section with revocation levels, or it contradicts itself.
    #[error("there is no readable .sbatlevel section")]
    SbatLevel,
    /// The mirror of the machine owner keys does not begin with this shim's own.
    #[error("MokListRT was written by another shim, so the user's keys cannot be told")]
    ForeignMirror,
}

/// One shim on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shim {
    vendor_db: Vec<u8>,
    vendor_revoked: Vec<u8>,
    mok_list: Vec<u8>,
    user_revoked: Vec<u8>,
    sbat_level: Vec<u8>,
    sb_state: Option<Vec<u8>>,
    db_state: Option<Vec<u8>>,
    trusted: bool,
    policy: Option<Vec<u8>>,
    secure_boot: SecureBoot,
}

/// Attributes (UEFI 2.10, 8.2.1).
const NON_VOLATILE: u32 = 1;
const BOOT_SERVICES: u32 = 2;
const RUNTIME: u32 = 4;
const TIME_BASED: u32 = 0x20;
/// shim, sbat_var.S and SbatLevel_Variable.txt: the first level, which Secure Boot off resets to.
const ORIGINAL_LEVEL: &[u8] = b"sbat,1,2021030218\n";

impl ShimProfile {
    /// Picks the profile by the section `.data.ident`.
    ///
    /// # Errors
    /// [`ShimError`] for anything that has not been observed.
    pub fn from_ident(section: Option<&[u8]>) -> Result<Self, ShimError> {
        let text = section.and_then(|section| {
            let text = section.split(|byte| *byte == 0).next()?;
            std::str::from_utf8(text).ok()
        });
        let line = text.and_then(|text| text.lines().find_map(|l| l.strip_prefix("$Version: ")));
        let version = line.ok_or(ShimError::NoVersion)?;
        match version.trim_end_matches('$').trim() {
            "15.8" => Ok(Self::V15_8),
            "16.1" => Ok(Self::V16_1),
            other => Err(ShimError::UnknownVersion {
                version: other.chars().take(32).collect(),
            }),
        }
    }
}

impl Shim {
    pub(super) fn new(
        file: &PeFile,
        platform: &PlatformState,
        secure_boot: SecureBoot,
    ) -> Result<Self, ShimError> {
        let keys = VendorKeys::parse(
            file.section(".vendor_cert")
                .ok_or(ShimError::NoVendorKeys)?,
        )?;
        // shim, shim.c: a database if it parses as one certificate does not.
        let is_certificate = keys.authorized.starts_with(&[0x30]);
        let vendor_db = if is_certificate {
            Vec::new()
        } else {
            keys.authorized.to_vec()
        };
        let mut mok_list = match keys.authorized {
            [] => Vec::new(),
            certificate if is_certificate => siglist::one(siglist::X509, Guid::SHIM, certificate),
            lists => lists.to_vec(),
        };
        let own = keys.deauthorized;
        mok_list.extend(user_list(platform, "MokList", "MokListRT", &mok_list)?);
        let user_revoked = user_list(platform, "MokListX", "MokListXRT", own)?;
        Ok(Self {
            vendor_db,
            vendor_revoked: own.to_vec(),
            mok_list,
            user_revoked,
            sbat_level: sbat_level(file.section(".sbatlevel"), platform, secure_boot)?,
            sb_state: kept_variable(platform, "MokSBState"),
            db_state: kept_variable(platform, "MokDBState"),
            trusted: platform.variable("MokListTrusted", Guid::SHIM).is_none(),
            policy: kept_variable(platform, "MokPolicy"),
            secure_boot,
        })
    }

    /// The vendor's database of signature lists; empty where the vendor has one certificate.
    pub(super) fn vendor_db(&self) -> &[u8] {
        &self.vendor_db
    }

    /// The vendor's revocations.
    pub(super) fn vendor_revoked(&self) -> &[u8] {
        &self.vendor_revoked
    }

    /// The user's revocations.
    pub(super) fn user_revoked(&self) -> &[u8] {
        &self.user_revoked
    }

    /// The vendor's and the user's keys, as shim mirrors them.
    pub(super) fn mok_list(&self) -> &[u8] {
        &self.mok_list
    }

    /// Whether the user has told shim not to use the firmware's keys.
    pub(super) fn ignores_db(&self) -> bool {
        self.db_state.as_deref() == Some(&[1])
    }

    /// Whether shim verifies what it starts.
    pub(super) fn verifies(&self) -> bool {
        self.secure_boot == SecureBoot::On && self.sb_state.as_deref() != Some(&[1])
    }

    /// The switch that turns verification off, if the user has set it either way.
    pub(super) fn sb_state(&self) -> Option<&[u8]> {
        self.sb_state.as_deref()
    }

    /// The revocation level that is in force.
    pub(super) fn sbat_level(&self) -> &[u8] {
        &self.sbat_level
    }

    /// What is measured as `MokList`; an empty list is one entry of zeros.
    pub(super) fn measured_list(&self) -> Vec<u8> {
        or_placeholder(self.mok_list.clone())
    }

    /// What is measured as `MokListX`.
    pub(super) fn measured_revocations(&self) -> Vec<u8> {
        or_placeholder([self.vendor_revoked.as_slice(), &self.user_revoked].concat())
    }

    /// What is measured as `MokListTrusted`: one byte, unless the user has set the variable.
    pub(super) fn measured_trust(&self) -> Option<&[u8]> {
        self.trusted.then_some(&[1])
    }

    /// What is measured as `MokPolicy`.
    pub(super) fn measured_policy(&self) -> Option<&[u8]> {
        self.policy.as_deref()
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
            end.and_then(|end| section.get(offset..end))
                .ok_or_else(|| refuse(offset, size))
        };
        Ok(Self {
            authorized: part(0, 8)?,
            deauthorized: part(4, 12)?,
        })
    }
}

fn or_placeholder(list: Vec<u8>) -> Vec<u8> {
    if list.is_empty() {
        siglist::one(siglist::SHA256, Guid::SHIM, &[0; 32])
    } else {
        list
    }
}

/// A variable that shim keeps: one that the running system could have written is deleted (shim,
/// mok.c, `import_one_mok_state`).
fn kept_variable(platform: &PlatformState, name: &str) -> Option<Vec<u8>> {
    let variable = platform.get(name, Guid::SHIM)?;
    let kept = variable.attributes & (NON_VOLATILE | BOOT_SERVICES) != 0
        && variable.attributes & RUNTIME == 0
        && !variable.data.is_empty();
    kept.then(|| variable.data.clone())
}

/// The user's part of a list: the variable itself or, on a running system, what its mirror holds
/// after the vendor's part.
fn user_list(
    platform: &PlatformState,
    name: &str,
    mirror: &str,
    vendor: &[u8],
) -> Result<Vec<u8>, ShimError> {
    if platform.get(name, Guid::SHIM).is_some() {
        return Ok(kept_variable(platform, name).unwrap_or_default());
    }
    let Some(mirrored) = platform.variable(mirror, Guid::SHIM) else {
        return Ok(Vec::new());
    };
    if vendor.is_empty() && mirrored == or_placeholder(Vec::new()) {
        return Ok(Vec::new());
    }
    let user = mirrored.strip_prefix(vendor);
    user.map(<[u8]>::to_vec).ok_or(ShimError::ForeignMirror)
}

/// The level that is in force after shim has looked at the stored one (shim, sbat.c,
/// `set_sbat_uefi_variable`).
pub(super) fn sbat_level(
    section: Option<&[u8]>,
    platform: &PlatformState,
    secure_boot: SecureBoot,
) -> Result<Vec<u8>, ShimError> {
    // SBAT.md, "SBAT policy": 1 is the latest level, 3 a reset, which Secure Boot forbids.
    let policy = platform.variable("SbatPolicy", Guid::SHIM);
    let level = |field| level(section, field).ok_or(ShimError::SbatLevel);
    let candidate = match (policy.and_then(<[u8]>::first), secure_boot) {
        (Some(1), _) => level(8)?,
        (Some(2), _) | (_, SecureBoot::On) => level(4)?,
        (_, SecureBoot::Off) => return Ok(ORIGINAL_LEVEL.to_vec()),
    };
    Ok(match stored_level(platform) {
        Some(stored) if is_at_least(stored, candidate) => stored.to_vec(),
        _ => candidate.to_vec(),
    })
}

/// shim, sbat_var.S: version 4, then offsets of the two levels, which count from byte 4.
fn level(section: Option<&[u8]>, field: usize) -> Option<&[u8]> {
    let section = section?;
    let offset = u32::from_le_bytes(*section.get(field..)?.first_chunk()?);
    let start = usize::try_from(offset).ok()?.checked_add(4)?;
    let level = section.get(start..)?.split(|byte| *byte == 0).next()?;
    level.starts_with(b"sbat,").then_some(level)
}

/// The stored level, or its mirror on a running system.
fn stored_level(platform: &PlatformState) -> Option<&[u8]> {
    let Some(variable) = platform.get("SbatLevel", Guid::SHIM) else {
        return platform.variable("SbatLevelRT", Guid::SHIM);
    };
    let plain = NON_VOLATILE | BOOT_SERVICES;
    [plain, plain | TIME_BASED]
        .contains(&variable.attributes)
        .then_some(variable.data.as_slice())
}

/// Compares version and date of the first lines as text.
fn is_at_least(stored: &[u8], candidate: &[u8]) -> bool {
    let fields = |level: &[u8]| {
        let mut fields = level.split(|byte| *byte == b',' || *byte == b'\n').skip(1);
        let version = fields.next().unwrap_or_default().to_vec();
        let date = fields.next().unwrap_or_default().to_vec();
        (version.len(), version, date)
    };
    stored.len() >= ORIGINAL_LEVEL.len()
        && stored.starts_with(b"sbat,")
        && fields(stored) >= fields(candidate)
}
