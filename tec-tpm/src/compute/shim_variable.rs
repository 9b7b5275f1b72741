//! The variables that shim keeps: its switches, the user's lists, and the revocation level.

use super::platform::{PlatformState, SecureBoot};
use super::shim_error::ShimError;
use super::siglist;
use crate::guid::Guid;

/// Attributes (UEFI 2.10, 8.2.1).
const NON_VOLATILE: u32 = 1;
const BOOT_SERVICES: u32 = 2;
const RUNTIME: u32 = 4;
const TIME_BASED: u32 = 0x20;
/// shim, sbat_var.S and SbatLevel_Variable.txt: the first level, to which shim resets with Secure Boot off.
const ORIGINAL_LEVEL: &[u8] = b"sbat,1,2021030218\n";
/// The levels of shim 15.6 (shim, sbat.h), which has no section for them, in the form of that section.
pub(super) const LEVELS_15_6: &[u8] =
    b"\0\0\0\0\x08\0\0\0\x1b\0\0\0sbat,1,2021030218\n\0sbat,1,2022052400\nshim,2\ngrub,2\n\0";

/// An empty list is measured as one entry of zeros.
pub(super) fn or_placeholder(list: Vec<u8>) -> Vec<u8> {
    if list.is_empty() { siglist::one(siglist::SHA256, Guid::SHIM, &[0; 32]) } else { list }
}

/// A variable that shim keeps: shim deletes one that the running system could have written (shim, mok.c,
/// `import_one_mok_state`).
fn kept_variable(platform: &PlatformState, name: &str) -> Option<Vec<u8>> {
    let variable = platform.get(name, Guid::SHIM)?;
    let kept = variable.attributes & (NON_VOLATILE | BOOT_SERVICES) != 0
        && variable.attributes & RUNTIME == 0
        && !variable.data.is_empty();
    kept.then(|| variable.data.clone())
}

/// A variable that shim keeps or, on a running system, its mirror.
pub(super) fn kept_or_mirrored(
    platform: &PlatformState,
    name: &str,
    mirror: &str,
) -> Option<Vec<u8>> {
    if platform.get(name, Guid::SHIM).is_some() {
        return kept_variable(platform, name);
    }
    let mirrored = platform.variable(mirror, Guid::SHIM)?;
    Some(mirrored.to_vec()).filter(|data| !data.is_empty())
}

/// Whether the variable `MokListTrusted` is absent. On a running system, where only mirrors are visible, its
/// mirror is then present.
pub(super) fn trusts_list(platform: &PlatformState) -> bool {
    let there = |name| platform.get(name, Guid::SHIM).is_some();
    let is_running = there("MokListRT") && !there("MokList");
    !there("MokListTrusted") && (!is_running || there("MokListTrustedRT"))
}

/// The user's part of a list: the variable itself or, on a running system, what its mirror holds
/// after the vendor's part.
pub(super) fn user_list(
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

/// The level that is in force after shim, which has these levels, has checked the stored one (shim, sbat.c,
/// `set_sbat_uefi_variable`). `is_reset`: whether it restores the first level whenever Secure Boot is off.
pub(super) fn sbat_level(
    levels: Option<&[u8]>,
    is_reset: bool,
    platform: &PlatformState,
    secure_boot: SecureBoot,
) -> Result<Vec<u8>, ShimError> {
    // SBAT.md, "SBAT policy": 1 is the latest level, 3 a reset, which Secure Boot forbids.
    let policy = platform.variable("SbatPolicy", Guid::SHIM);
    let level = |field| level(levels, field).ok_or(ShimError::SbatLevel);
    let candidate = match (policy.and_then(<[u8]>::first), secure_boot) {
        (Some(1), _) => level(8)?,
        (Some(3), SecureBoot::Off) => return Ok(ORIGINAL_LEVEL.to_vec()),
        (policy, SecureBoot::Off) if is_reset && policy != Some(&2) => {
            return Ok(ORIGINAL_LEVEL.to_vec());
        }
        _ => level(4)?,
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
    [plain, plain | TIME_BASED].contains(&variable.attributes).then_some(variable.data.as_slice())
}

/// Whether shim keeps the stored level (shim, sbat.c, `preserve_sbat_uefi_variable`): its version is newer,
/// or its date is not older. Both are compared as strings.
fn is_at_least(stored: &[u8], candidate: &[u8]) -> bool {
    let fields = |level: &[u8]| {
        let mut fields = level.split(|byte| *byte == b',' || *byte == b'\n').skip(1);
        let version = fields.next().unwrap_or_default().to_vec();
        let date = fields.next().unwrap_or_default().to_vec();
        ((version.len(), version), date)
    };
    let (old, new) = (fields(stored), fields(candidate));
    stored.len() >= ORIGINAL_LEVEL.len()
        && stored.starts_with(b"sbat,")
        && (old.0 > new.0 || old.1 >= new.1)
}
