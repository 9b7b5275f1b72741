//! Who allows an image to start: the entries of key databases that firmware and shim find, in the
//! order in which they look.

use sha2::Digest as _;
use sha2::Sha256;

use super::authenticode::AuthenticodeError;
use super::authenticode::Signature;
use super::guid::Guid;
use super::pe::PeFile;
use super::platform::PlatformState;
use super::shim::Shim;
use super::siglist;
use super::siglist::SignatureEntry;
use super::siglist::SignatureListError;
use super::signature::SignatureError;
use super::x509::Certificate;

/// A measured entry: `EV_EFI_VARIABLE_AUTHORITY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) variable: &'static str,
    pub(super) vendor: Guid,
    pub(super) data: Vec<u8>,
}

/// Who allows an image cannot be told, or nobody does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A key database cannot be read.
    #[error("the signature lists of {variable} cannot be read")]
    List {
        /// Variable.
        variable: &'static str,
        /// Why.
        #[source]
        source: SignatureListError,
    },
    /// The certificate table of the image cannot be read.
    #[error("the certificate table cannot be read")]
    Table(#[source] SignatureError),
    /// A signature cannot be verified.
    #[error("it cannot be told whether an entry of {variable} verifies the image")]
    Signature {
        /// Variable.
        variable: &'static str,
        /// Why.
        #[source]
        source: AuthenticodeError,
    },
    /// A database lists SHA-1 digests, which are not compared here.
    #[error("{variable} lists SHA-1 digests of images, which are not compared")]
    Sha1Entries {
        /// Variable.
        variable: &'static str,
    },
    /// The image, or a certificate of its signer, is revoked.
    #[error("{variable} revokes the image or its signer")]
    Revoked {
        /// Variable.
        variable: &'static str,
    },
    /// No entry allows the image.
    #[error("no key allows the image: it would not start with Secure Boot on")]
    Refused,
}

/// A key database.
#[derive(Clone, Copy, Debug)]
struct Database<'d> {
    variable: &'static str,
    vendor: Guid,
    data: &'d [u8],
}

/// One image, as a verifier sees it.
struct Image<'i> {
    digest: [u8; 32],
    signatures: Vec<Signature<'i>>,
}

impl<'d> Database<'d> {
    const fn new(variable: &'static str, vendor: Guid, data: &'d [u8]) -> Self {
        Self {
            variable,
            vendor,
            data,
        }
    }

    fn of(platform: &'d PlatformState, variable: &'static str) -> Self {
        let vendor = Guid::SECURITY_DATABASE;
        let data = platform.variable(variable, vendor).unwrap_or_default();
        Self::new(variable, vendor, data)
    }

    fn entries(&self) -> Result<Vec<SignatureEntry<'d>>, AuthorityError> {
        siglist::parse(self.data).map_err(|source| AuthorityError::List {
            variable: self.variable,
            source,
        })
    }

    fn authority(&self, entry: &SignatureEntry<'_>) -> Authority {
        Authority {
            variable: self.variable,
            vendor: self.vendor,
            data: entry.whole.to_vec(),
        }
    }

    /// The entry that is the digest of the image.
    fn with_digest(&self, image: &Image<'_>) -> Result<Option<Authority>, AuthorityError> {
        for entry in self.entries()? {
            if entry.kind == siglist::SHA1 {
                return Err(AuthorityError::Sha1Entries {
                    variable: self.variable,
                });
            }
            if entry.kind == siglist::SHA256 && entry.value == image.digest {
                return Ok(Some(self.authority(&entry)));
            }
        }
        Ok(None)
    }

    /// The first certificate that verifies the signature.
    fn with_certificate(
        &self,
        image: &Image<'_>,
        signature: &Signature<'_>,
        usable: impl Fn(&SignatureEntry<'_>, &Certificate<'_>) -> bool,
    ) -> Result<Option<Authority>, AuthorityError> {
        for entry in self.entries()? {
            if entry.kind != siglist::X509 {
                continue;
            }
            // Firmware passes over what is no certificate.
            let Ok(certificate) = Certificate::parse(entry.value) else {
                continue;
            };
            if !usable(&entry, &certificate) {
                continue;
            }
            let trusted = signature.is_trusted_by(&certificate, &image.digest);
            let trusted = trusted.map_err(|source| AuthorityError::Signature {
                variable: self.variable,
                source,
            })?;
            if trusted {
                return Ok(Some(self.authority(&entry)));
            }
        }
        Ok(None)
    }

    /// Whether the digest of a certificate of the signature is listed. When it was revoked is not
    /// looked at: that would need a trusted time of the signature.
    fn revokes_certificate(&self, signature: &Signature<'_>) -> Result<bool, AuthorityError> {
        let entries = self.entries()?;
        let mut revoked = entries.iter().filter(|e| e.kind == siglist::X509_SHA256);
        Ok(revoked.any(|entry| {
            signature.certificates().iter().any(|certificate| {
                let digest: [u8; 32] = Sha256::digest(certificate.tbs).into();
                entry.value.starts_with(&digest)
            })
        }))
    }
}

impl<'i> Image<'i> {
    fn new(file: &'i PeFile) -> Result<Self, AuthorityError> {
        let mut signatures = Vec::new();
        for entry in file.signatures().map_err(AuthorityError::Table)? {
            let signature = Signature::parse(entry);
            signatures.push(signature.map_err(|source| AuthorityError::Signature {
                variable: "the image",
                source,
            })?);
        }
        Ok(Self {
            digest: *file.authenticode().as_bytes(),
            signatures,
        })
    }
}

/// What firmware finds (EDK II, `DxeImageVerificationHandler`): for one signature after another,
/// revocations first, then certificates, then digests of `db`; the first find counts.
pub(super) fn by_firmware(
    platform: &PlatformState,
    file: &PeFile,
) -> Result<Authority, AuthorityError> {
    let (db, dbx) = (Database::of(platform, "db"), Database::of(platform, "dbx"));
    let image = Image::new(file)?;
    if dbx.with_digest(&image)?.is_some() {
        return Err(AuthorityError::Revoked { variable: "dbx" });
    }
    let any = |_: &SignatureEntry<'_>, _: &Certificate<'_>| true;
    let mut found = None;
    for signature in &image.signatures {
        if dbx.with_certificate(&image, signature, any)?.is_some()
            || dbx.revokes_certificate(signature)?
        {
            return Err(AuthorityError::Revoked { variable: "dbx" });
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
    found.ok_or(AuthorityError::Refused)
}

/// What shim finds (shim, verify.c): by digest, else for every signature the first certificate.
/// Of each list only the first entry is tried as a certificate.
pub(super) fn by_shim(
    platform: &PlatformState,
    shim: &Shim,
    file: &PeFile,
) -> Result<Vec<Authority>, AuthorityError> {
    let image = Image::new(file)?;
    let revoked = [
        Database::new("dbx", Guid::SECURITY_DATABASE, shim.vendor_revoked()),
        Database::of(platform, "dbx"),
        Database::new("MokListX", Guid::SHIM, shim.user_revoked()),
    ];
    for database in &revoked {
        if database.with_digest(&image)?.is_some() {
            return Err(AuthorityError::Revoked {
                variable: database.variable,
            });
        }
    }
    let allowed = [
        Database::of(platform, "db"),
        Database::new("vendor_db", Guid::SECURITY_DATABASE, shim.vendor_db()),
        Database::new("MokListRT", Guid::SHIM, shim.mok_list()),
    ];
    let allowed = allowed.get(usize::from(shim.ignores_db())..);
    let allowed = allowed.unwrap_or_default();
    for database in allowed {
        if let Some(authority) = database.with_digest(&image)? {
            return Ok(vec![authority]);
        }
    }
    let usable = |entry: &SignatureEntry<'_>, certificate: &Certificate<'_>| {
        entry.position == 0 && !certificate.signs_modules_only()
    };
    let mut found = Vec::new();
    for signature in &image.signatures {
        for database in &revoked {
            let revoking = database.with_certificate(&image, signature, usable)?;
            if revoking.is_some() {
                return Err(AuthorityError::Revoked {
                    variable: database.variable,
                });
            }
        }
        for database in allowed {
            if let Some(authority) = database.with_certificate(&image, signature, usable)? {
                found.push(authority);
                break;
            }
        }
    }
    if found.is_empty() {
        return Err(AuthorityError::Refused);
    }
    Ok(found)
}
