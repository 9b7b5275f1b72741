//! The readers that no public function exposes alone, for fuzzing and for hostile files.

use super::super::authenticode::{AuthenticodeError, Signature};
use super::super::der::DerError;
use super::super::grub_script::{Found, Host, Interpreter, Stop};
use super::super::hash::BankDigests;
use super::super::platform::{PlatformState, SecureBoot};
use super::super::shim_error::ShimError;
use super::super::siglist::SignatureListError;
use super::super::unpredictable::Unpredictable;
use super::super::vendor::VendorKeys;
use super::super::x509::Certificate;
use super::super::{shim_variable, siglist};
use crate::guid::Guid;
use tec_core::digest::Sha256Digest;

/// An entry of a signature list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListEntry<'d> {
    /// Type of its list.
    pub kind: Guid,
    /// Owner and value.
    pub whole: &'d [u8],
    /// Certificate or digest.
    pub value: &'d [u8],
    /// Number of the entry in its list.
    pub position: usize,
}

/// The entries of a variable such as `db`.
pub fn signature_lists(data: &[u8]) -> Result<Vec<ListEntry<'_>>, SignatureListError> {
    let entries = siglist::parse(data)?.into_iter();
    let entries = entries.map(|entry| ListEntry {
        kind: entry.kind,
        whole: entry.whole,
        value: entry.value,
        position: entry.position,
    });
    Ok(entries.collect())
}

/// The encoded parts of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateParts<'d> {
    /// The certificate without trailing bytes.
    pub raw: &'d [u8],
    /// What its issuer signed.
    pub tbs: &'d [u8],
    /// Serial number.
    pub serial: &'d [u8],
    /// Name of the issuer.
    pub issuer: &'d [u8],
    /// Name of the subject.
    pub subject: &'d [u8],
    /// Whether its key is for kernel modules.
    pub signs_modules_only: bool,
}

/// Splits a certificate into its parts.
pub fn certificate(data: &[u8]) -> Result<CertificateParts<'_>, DerError> {
    let certificate = Certificate::parse(data)?;
    Ok(CertificateParts {
        raw: certificate.raw,
        tbs: certificate.tbs,
        serial: certificate.serial,
        issuer: certificate.issuer,
        subject: certificate.subject,
        signs_modules_only: certificate.signs_modules_only(),
    })
}

/// Whether `issuer` signed `certificate`.
///
/// # Errors
/// [`AuthenticodeError`] when one of them cannot be read or the algorithm is not supported.
pub fn is_signed_by(certificate: &[u8], issuer: &[u8]) -> Result<bool, AuthenticodeError> {
    let certificate = Certificate::parse(certificate).map_err(AuthenticodeError::Der)?;
    let issuer = Certificate::parse(issuer).map_err(AuthenticodeError::Der)?;
    let signed = certificate.is_signed_by(&issuer);
    signed.map_err(AuthenticodeError::Unsupported)
}

/// What an embedded signature holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignatureParts<'d> {
    /// Its certificates, in order.
    pub certificates: Vec<&'d [u8]>,
    /// The digest of the image that it signs.
    pub image_digest: &'d [u8],
}

/// Splits an embedded signature into its parts.
pub fn signature(data: &[u8]) -> Result<SignatureParts<'_>, AuthenticodeError> {
    let signature = Signature::parse(data)?;
    let certificates = signature.certificates().iter();
    Ok(SignatureParts {
        certificates: certificates.map(|certificate| certificate.raw).collect(),
        image_digest: signature.image_digest,
    })
}

/// Whether a certificate vouches for an embedded signature of an image with this digest.
///
/// # Errors
/// [`AuthenticodeError`] when that cannot be determined.
pub fn is_trusted_by(
    signature: &[u8],
    certificate: &[u8],
    image: &[u8; 32],
) -> Result<bool, AuthenticodeError> {
    let certificate = Certificate::parse(certificate).map_err(AuthenticodeError::Der)?;
    let image = BankDigests::from_sha256(Sha256Digest::new(*image));
    Signature::parse(signature)?.is_trusted_by(&certificate, &image)
}

/// The allowed and the revoked part of the section `.vendor_cert`.
pub fn vendor_keys(section: &[u8]) -> Result<(&[u8], &[u8]), ShimError> {
    let keys = VendorKeys::parse(section)?;
    Ok((keys.authorized, keys.deauthorized))
}

/// The revocation level that is in force after a shim with this section `.sbatlevel` has started.
pub fn sbat_level(
    section: &[u8],
    platform: &PlatformState,
    secure_boot: SecureBoot,
) -> Result<Vec<u8>, ShimError> {
    shim_variable::sbat_level(Some(section), true, platform, secure_boot)
}

/// What a GRUB script measures, if each path leads to a file with this script: commands, and paths of files
/// with `file ` before them.
pub fn grub_script(file: &str, script: &[u8]) -> Result<Vec<String>, Unpredictable> {
    let mut host = Everywhere { script, measured: Vec::new() };
    let mut grub = Interpreter::new(&mut host, "hd0,gpt1", "EFI/debian", Some("EFI/BOOT"));
    match grub.boot(file) {
        Ok(()) => Ok(host.measured),
        Err(Stop::Unpredictable(reason)) => Err(reason),
        Err(Stop::Unknown(reason)) => {
            Err(Unpredictable::Script { file: file.to_owned(), line: 0, reason })
        }
        Err(Stop::Failed(_)) => Err(Unpredictable::OperatingSystem),
    }
}

/// A machine where each path leads to the same script.
struct Everywhere<'s> {
    script: &'s [u8],
    measured: Vec<String>,
}

impl Host for Everywhere<'_> {
    fn find(&mut self, _: &str, path: &str) -> Result<Found, Stop> {
        Ok(Found::File(path.to_owned()))
    }

    fn entries(&mut self, _: &str, _: &str) -> Result<Option<Vec<String>>, Stop> {
        Ok(Some(vec!["a-1.conf".to_owned()]))
    }

    fn is_red_hat(&self) -> bool {
        true
    }

    fn command(&mut self, text: &str) -> Result<(), Stop> {
        self.measured.push(text.to_owned());
        Ok(())
    }

    fn open(&mut self, file: &str) -> Result<(), Stop> {
        self.command(&format!("file {file}"))
    }

    fn content(&mut self, _: &str) -> Result<Vec<u8>, Stop> {
        Ok(self.script.to_vec())
    }

    fn has_module(&mut self, name: &str) -> Result<bool, Stop> {
        Ok(!name.starts_with('x'))
    }

    fn search(&mut self, _: &str, hint: Option<&str>) -> Result<String, Stop> {
        Ok(hint.unwrap_or("hd0,gpt2").to_owned())
    }

    fn linux(&mut self, file: String, command_line: &str) -> Result<(), Stop> {
        self.open(&file)?;
        self.command(command_line)
    }

    fn initrd(&mut self, file: String) -> Result<(), Stop> {
        self.open(&file)
    }

    fn has_setup_screen(&self) -> bool {
        true
    }
}
