//! The order in which firmware and shim look for what allows an image.

use super::authenticode::Signature;
use super::authority::{Authority, AuthorityError, Database, Image};
use super::boot::{Role, Started};
use super::pe::PeFile;
use super::platform::PlatformState;
use super::sbat::Sbat;
use super::shim::Shim;
use super::siglist::SignatureEntry;
use super::x509::Certificate;
use crate::guid::Guid;

/// What firmware finds (EDK II, `DxeImageVerificationHandler`): for one signature after another,
/// revocations first, then certificates, then digests of `db`; the first match counts. A revoked
/// signature causes the image to be refused, regardless of the others.
pub(super) fn by_firmware(
    platform: &PlatformState,
    file: &PeFile,
) -> Result<Vec<Authority>, AuthorityError> {
    let (db, dbx) = (Database::of(platform, "db"), Database::of(platform, "dbx"));
    let image = Image::new(file, file.authenticode_digests())?;
    let revoked = || AuthorityError::Revoked("dbx");
    if dbx.with_digest(&image)?.is_some() {
        return Err(revoked());
    }
    let any = |_: &SignatureEntry<'_>, _: &Certificate<'_>| true;
    let mut found = None;
    for signature in &image.signatures {
        if dbx.with_certificate(&image, signature, any)?.is_some()
            || dbx.revokes_certificate(signature)?
        {
            return Err(revoked());
        }
        if found.is_none() {
            found = db.with_certificate(&image, signature, any)?;
        }
        if found.is_none() {
            found = db.with_digest(&image)?;
        }
    }
    if found.is_none() && image.signatures.is_empty() {
        found = db.with_digest(&image)?;
    }
    found.map(|authority| vec![authority]).ok_or(AuthorityError::Refused)
}

/// What shim finds (shim, verify.c, `verify_buffer`): keys first, then the level.
pub(super) fn by_shim(
    platform: &PlatformState,
    shim: &Shim,
    started: &Started,
    role: Role,
) -> Result<Vec<Authority>, AuthorityError> {
    let found = keys_of_shim(platform, shim, &started.file)?;
    check_level(shim, &started.file, role)?;
    Ok(found)
}

/// By digest, else for every signature the first certificate. A signature that is revoked is
/// skipped, as another one may allow the image.
fn keys_of_shim(
    platform: &PlatformState,
    shim: &Shim,
    file: &PeFile,
) -> Result<Vec<Authority>, AuthorityError> {
    let image = Image::new(file, file.authenticode_digests().as_shim_has_them())?;
    let revoked = [
        Database::of(platform, "dbx"),
        Database::new("vendor_dbx", Guid::SECURITY_DATABASE, shim.vendor_revoked()),
        Database::new("MokListX", Guid::SHIM, shim.user_revoked()),
    ];
    if let Some(Authority { variable, .. }) = first_digest(&revoked, &image)? {
        return Err(AuthorityError::Revoked(variable));
    }
    let allowed = [
        Database::of(platform, "db"),
        Database::new("vendor_db", Guid::SECURITY_DATABASE, shim.vendor_db()),
        Database::new("MokListRT", Guid::SHIM, shim.mok_list()),
    ];
    let allowed = allowed.get(usize::from(shim.ignores_db())..);
    let allowed = allowed.unwrap_or_default();
    if let Some(authority) = first_digest(allowed, &image)? {
        return Ok(vec![authority]);
    }
    let mut found = Vec::new();
    let mut refusal = AuthorityError::Refused;
    for signature in &image.signatures {
        match first_certificate(&revoked, &image, signature)? {
            Some(Authority { variable, .. }) => refusal = AuthorityError::Revoked(variable),
            None => found.extend(first_certificate(allowed, &image, signature)?),
        }
    }
    if found.is_empty() {
        return Err(refusal);
    }
    Ok(found)
}

/// The first digest of the image; that of SHA-1 counts in the firmware's and the vendor's
/// databases of revocations, and in `db`.
fn first_digest(
    databases: &[Database<'_>],
    image: &Image<'_>,
) -> Result<Option<Authority>, AuthorityError> {
    for database in databases {
        let mut found = database.with_digest(image)?;
        if found.is_none() && ["db", "dbx", "vendor_dbx"].contains(&database.variable) {
            found = database.with_sha1(image)?;
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Only the first entry of each list is tried as a certificate.
fn first_certificate(
    databases: &[Database<'_>],
    image: &Image<'_>,
    signature: &Signature<'_>,
) -> Result<Option<Authority>, AuthorityError> {
    let usable = |entry: &SignatureEntry<'_>, certificate: &Certificate<'_>| {
        entry.position == 0 && !certificate.signs_modules_only()
    };
    for database in databases {
        if let Some(found) = database.with_certificate(image, signature, usable)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The level in force (shim, pe.c, `verify_sbat_section`): what shim starts itself must have a
/// section `.sbat`, what it only verifies need not.
fn check_level(shim: &Shim, file: &PeFile, role: Role) -> Result<(), AuthorityError> {
    let Some(section) = file.section(".sbat") else {
        return match role {
            Role::First | Role::Grub | Role::Uki => Err(AuthorityError::NoSbat),
            Role::Kernel | Role::Addon => Ok(()),
        };
    };
    let sbat = Sbat::parse(section).map_err(AuthorityError::Sbat)?;
    shim.level().check(&sbat).map_err(AuthorityError::SbatRevoked)
}
