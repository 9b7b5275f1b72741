//! What allows an image to start: the entries of key databases that firmware and shim find, in the order in
//! which they search.

use super::authenticode::{AuthenticodeError, Signature};
use super::hash::BankDigests;
use super::pe::PeFile;
use super::platform::PlatformState;
use super::sbat::{SbatError, SbatRevocation};
use super::siglist;
use super::siglist::{SignatureEntry, SignatureListError};
use super::signature::SignatureError;
use super::x509::Certificate;
use crate::event_log::Bank;
use crate::guid::Guid;

/// A measured entry: `EV_EFI_VARIABLE_AUTHORITY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) variable: &'static str,
    pub(super) vendor: Guid,
    pub(super) data: Vec<u8>,
}

/// Nothing allows an image, or it cannot be determined what does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A key database cannot be read.
    #[error("the signature lists of {variable} cannot be read")]
    List {
        /// Variable.
        variable: &'static str,
        /// The cause.
        #[source]
        source: SignatureListError,
    },
    /// The certificate table of the image cannot be read.
    #[error("the certificate table cannot be read")]
    Table(#[source] SignatureError),
    /// A signature cannot be verified.
    #[error("cannot determine whether an entry of {variable} verifies the image")]
    Signature {
        /// Variable.
        variable: &'static str,
        /// The cause.
        #[source]
        source: AuthenticodeError,
    },
    /// shim compares SHA-1 digests of images with a database, and that bank is not computed.
    #[error("{0} lists SHA-1 digests of images; compute the SHA-1 bank, too")]
    Sha1Entries(&'static str),
    /// The `.sbat` section of the image cannot be read.
    #[error("this boot would be refused: the .sbat section of the image cannot be read")]
    Sbat(#[source] SbatError),
    /// The image has no `.sbat` section; shim itself starts no image without one.
    #[error("this boot would be refused: the image has no .sbat section")]
    NoSbat,
    /// The current revocation level is above that of the image.
    #[error("this boot would be refused: variable SbatLevel revokes the image")]
    SbatRevoked(#[source] SbatRevocation),
    /// The image, or a certificate of its signer, is revoked.
    #[error("this boot would be refused: {0} revokes the image or its signer")]
    Revoked(&'static str),
    /// No entry allows the image.
    #[error(
        "this boot would be refused: no key of the machine or of shim allows the image (--secure-boot off, \
         if it is off)"
    )]
    Refused,
}

impl AuthorityError {
    /// Whether the machine is known to refuse the image; otherwise that cannot be determined.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Sbat(_) | Self::NoSbat | Self::SbatRevoked(_) | Self::Revoked(_) | Self::Refused
        )
    }
}

/// A key database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Database<'d> {
    pub(super) variable: &'static str,
    vendor: Guid,
    data: &'d [u8],
}

/// One image, from the point of view of a verifier.
pub(super) struct Image<'i> {
    digests: BankDigests,
    pub(super) signatures: Vec<Signature<'i>>,
}

impl<'d> Database<'d> {
    pub(super) const fn new(variable: &'static str, vendor: Guid, data: &'d [u8]) -> Self {
        Self { variable, vendor, data }
    }

    pub(super) fn of(platform: &'d PlatformState, variable: &'static str) -> Self {
        let vendor = Guid::SECURITY_DATABASE;
        let data = platform.variable(variable, vendor).unwrap_or_default();
        Self::new(variable, vendor, data)
    }

    fn entries(&self) -> Result<Vec<SignatureEntry<'d>>, AuthorityError> {
        siglist::parse(self.data)
            .map_err(|source| AuthorityError::List { variable: self.variable, source })
    }

    fn authority(&self, entry: &SignatureEntry<'_>) -> Authority {
        Authority { variable: self.variable, vendor: self.vendor, data: entry.whole.to_vec() }
    }

    /// The entry that is a SHA-2 digest of the image.
    pub(super) fn with_digest(
        &self,
        image: &Image<'_>,
    ) -> Result<Option<Authority>, AuthorityError> {
        let entries = self.entries()?;
        let kinds = [
            (siglist::SHA256, Bank::Sha256),
            (siglist::SHA384, Bank::Sha384),
            (siglist::SHA512, Bank::Sha512),
        ];
        let is_it = |entry: &&SignatureEntry<'_>| {
            let kind = kinds.iter().find(|(kind, _)| *kind == entry.kind);
            kind.is_some_and(|(_, bank)| image.digests.get(*bank) == Some(entry.value))
        };
        Ok(entries.iter().find(is_it).map(|entry| self.authority(entry)))
    }

    /// The entry that is the SHA-1 digest of the image.
    pub(super) fn with_sha1(&self, image: &Image<'_>) -> Result<Option<Authority>, AuthorityError> {
        let entries = self.entries()?;
        let mut listed = entries.iter().filter(|entry| entry.kind == siglist::SHA1);
        let Some(digest) = image.digests.get(Bank::Sha1) else {
            return match listed.next() {
                Some(_) => Err(AuthorityError::Sha1Entries(self.variable)),
                None => Ok(None),
            };
        };
        let found = listed.find(|entry| entry.value == digest);
        Ok(found.map(|entry| self.authority(entry)))
    }

    /// The first certificate that verifies the signature.
    pub(super) fn with_certificate(
        &self,
        image: &Image<'_>,
        signature: &Signature<'_>,
        usable: impl Fn(&SignatureEntry<'_>, &Certificate<'_>) -> bool,
    ) -> Result<Option<Authority>, AuthorityError> {
        for entry in self.entries()? {
            if entry.kind != siglist::X509 {
                continue;
            }
            // Firmware skips entries that are not certificates.
            let Ok(certificate) = Certificate::parse(entry.value) else {
                continue;
            };
            if !usable(&entry, &certificate) {
                continue;
            }
            let trusted = signature.is_trusted_by(&certificate, &image.digests);
            let trusted = trusted
                .map_err(|source| AuthorityError::Signature { variable: self.variable, source })?;
            if trusted {
                return Ok(Some(self.authority(&entry)));
            }
        }
        Ok(None)
    }

    /// Whether the digest of a certificate of the signature is listed. The time of the revocation is ignored,
    /// because it could only be compared with a trusted time of the signature.
    pub(super) fn revokes_certificate(
        &self,
        signature: &Signature<'_>,
    ) -> Result<bool, AuthorityError> {
        let kinds = [
            (siglist::X509_SHA256, Bank::Sha256),
            (siglist::X509_SHA384, Bank::Sha384),
            (siglist::X509_SHA512, Bank::Sha512),
        ];
        Ok(self.entries()?.iter().any(|entry| {
            let kind = kinds.iter().find(|(kind, _)| *kind == entry.kind);
            kind.is_some_and(|(_, hash)| {
                let mut certificates = signature.certificates().iter();
                certificates.any(|c| entry.value.starts_with(&hash.hash(c.tbs)))
            })
        }))
    }
}

impl<'i> Image<'i> {
    /// An image whose digests a verifier has computed.
    pub(super) fn new(file: &'i PeFile, digests: BankDigests) -> Result<Self, AuthorityError> {
        let mut signatures = Vec::new();
        for entry in file.signatures().map_err(AuthorityError::Table)? {
            let signature = Signature::parse(entry);
            signatures.push(
                signature.map_err(|source| AuthorityError::Signature {
                    variable: "the image",
                    source,
                })?,
            );
        }
        Ok(Self { digests, signatures })
    }
}
