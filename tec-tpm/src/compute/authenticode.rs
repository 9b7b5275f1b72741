//! Embedded signatures, verified like firmware does: is there a path from the signer to this one certificate?
//! (Authenticode PE 1.0, "PKCS #7 SignedData Structure"; RFC 2315.)

use super::der;
use super::der::{Der, DerError};
use super::hash::BankDigests;
use super::x509::{Certificate, UnsupportedSignature, hash_of};
use crate::event_log::Bank;

/// One embedded signature.
#[derive(Clone, Debug)]
pub(super) struct Signature<'d> {
    certificates: Vec<Certificate<'d>>,
    image_hash: &'d [u8],
    pub(super) image_digest: &'d [u8],
    /// The signed data: the content of the SpcIndirectDataContent.
    content: &'d [u8],
    signer_issuer: &'d [u8],
    signer_serial: &'d [u8],
    signer_hash: &'d [u8],
    attributes: Option<&'d [u8]>,
    value: &'d [u8],
}

/// It cannot be determined whether a certificate verifies a signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticodeError {
    /// The structure cannot be read.
    #[error("a signature or certificate cannot be read")]
    Der(#[source] DerError),
    /// There are more certificates than the limit.
    #[error("the signature holds more than {0} certificates")]
    TooManyCertificates(usize),
    /// An algorithm that is not implemented.
    #[error("the signature cannot be verified")]
    Unsupported(#[source] UnsupportedSignature),
    /// A hash algorithm that is not implemented.
    #[error("the hash algorithm {0} is not supported")]
    Hash(String),
    /// The search for a path took too many steps.
    #[error("more than {0} checks were needed to find a certificate path")]
    TooManyChecks(usize),
}

/// Maximum number of certificates in one signature; real ones have up to four.
const MAX_CERTIFICATES: usize = 16;
/// Maximum number of checks of a signature by a certificate in one search.
const MAX_CHECKS: usize = 64;
/// Maximum length of a certificate path.
const MAX_DEPTH: usize = 6;
/// RFC 2315, 14: `signedData`.
const SIGNED_DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
/// Authenticode PE, "SpcIndirectDataContent": `SPC_INDIRECT_DATA_OBJID`.
const SPC_INDIRECT_DATA: &[u8] = b"\x2b\x06\x01\x04\x01\x82\x37\x02\x01\x04";
/// RFC 2985, 5.3: `messageDigest`.
const MESSAGE_DIGEST: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x04";
const STRUCTURE: &str = "signature";

/// What a signature signs (Authenticode PE, "SpcIndirectDataContent").
pub(super) struct SignedContent<'d> {
    /// The fields of the signed data that follow it.
    fields: Der<'d>,
    content: &'d [u8],
    pub(super) image_hash: &'d [u8],
    pub(super) image_digest: &'d [u8],
}

impl<'d> SignedContent<'d> {
    /// ContentInfo → SignedData → SpcIndirectDataContent → DigestInfo; what follows the first is padding.
    pub(super) fn read(data: &'d [u8]) -> Result<Self, DerError> {
        let mut content_info = Der::new(data, STRUCTURE).within(der::SEQUENCE)?;
        expect(&mut content_info, SIGNED_DATA)?;
        let mut fields = content_info.within(der::CONTEXT_0)?.within(der::SEQUENCE)?;
        fields.element(der::INTEGER)?; // version
        fields.element(der::SET)?; // digest algorithms

        let mut encapsulated = fields.within(der::SEQUENCE)?;
        expect(&mut encapsulated, SPC_INDIRECT_DATA)?;
        let content = encapsulated.within(der::CONTEXT_0)?.element(der::SEQUENCE)?.value;
        let mut indirect = Der::new(content, STRUCTURE);
        indirect.element(der::SEQUENCE)?; // SpcAttributeTypeAndOptionalValue
        let mut image = indirect.within(der::SEQUENCE)?;
        let image_hash = image.within(der::SEQUENCE)?.element(der::OID)?.value;
        let image_digest = image.element(der::OCTET_STRING)?.value;
        Ok(Self { fields, content, image_hash, image_digest })
    }
}

impl<'d> Signature<'d> {
    /// Reads the content of an entry of the certificate table.
    pub(super) fn parse(data: &'d [u8]) -> Result<Self, AuthenticodeError> {
        Self::read(data).map_err(AuthenticodeError::Der)
    }

    fn read(data: &'d [u8]) -> Result<Self, DerError> {
        let SignedContent { mut fields, content, image_hash, image_digest } =
            SignedContent::read(data)?;
        let mut certificates = Vec::new();
        if let Some(list) = fields.optional(der::CONTEXT_0)? {
            let mut list = Der::new(list.value, STRUCTURE);
            while !list.is_empty() && certificates.len() <= MAX_CERTIFICATES {
                // Anything but an X.509 certificate has another tag, and does not count.
                let element = list.any()?;
                if element.tag == der::SEQUENCE {
                    certificates.push(Certificate::parse(element.raw)?);
                }
            }
        }
        fields.optional(der::CONTEXT_0 + 1)?; // revocation lists
        let mut signer = fields.within(der::SET)?.within(der::SEQUENCE)?;
        signer.element(der::INTEGER)?; // version
        let mut identifier = signer.within(der::SEQUENCE)?;
        let signer_issuer = identifier.element(der::SEQUENCE)?.raw;
        let signer_serial = identifier.element(der::INTEGER)?.raw;
        let signer_hash = signer.within(der::SEQUENCE)?.element(der::OID)?.value;
        let attributes = signer.optional(der::CONTEXT_0)?.map(|element| element.raw);
        signer.element(der::SEQUENCE)?; // signature algorithm: the key says it too
        let value = signer.element(der::OCTET_STRING)?.value;
        Ok(Self {
            certificates,
            image_hash,
            image_digest,
            content,
            signer_issuer,
            signer_serial,
            signer_hash,
            attributes,
            value,
        })
    }

    /// The certificates included in the signature.
    pub(super) fn certificates(&self) -> &[Certificate<'d>] {
        &self.certificates
    }

    /// Whether this is a signature of an image with these digests, by a signer whose certificate path leads to
    /// `trusted`. One over another algorithm, or over SHA-1, is none.
    pub(super) fn is_trusted_by(
        &self,
        trusted: &Certificate<'_>,
        image: &BankDigests,
    ) -> Result<bool, AuthenticodeError> {
        if self.certificates.len() > MAX_CERTIFICATES {
            return Err(AuthenticodeError::TooManyCertificates(MAX_CERTIFICATES));
        }
        let unknown = |oid| AuthenticodeError::Hash(hex::encode(oid));
        let signed = hash_of(self.image_hash).ok_or_else(|| unknown(self.image_hash))?;
        if signed == Bank::Sha1 || image.get(signed) != Some(self.image_digest) {
            return Ok(false);
        }
        let hash = hash_of(self.signer_hash).ok_or_else(|| unknown(self.signer_hash))?;
        if !self.names(trusted) {
            return Ok(false);
        }
        let Some(digest) = self.signed_digest(hash).map_err(AuthenticodeError::Der)? else {
            return Ok(false);
        };
        let is_signer = |certificate: &&Certificate<'_>| {
            certificate.issuer == self.signer_issuer && certificate.serial == self.signer_serial
        };
        let Some(signer) = self.certificates.iter().find(is_signer) else {
            return Ok(false);
        };
        let signed = signer.verifies(hash, &digest, self.value);
        if !signed.map_err(AuthenticodeError::Unsupported)? {
            return Ok(false);
        }
        let mut checks = 0;
        self.leads_to(signer, trusted, MAX_DEPTH, &mut checks)
    }

    /// Whether a path could end at `trusted`, judging by the names only. This rules out nearly all entries of
    /// a database without verifying signatures.
    fn names(&self, trusted: &Certificate<'_>) -> bool {
        let mut certificates = self.certificates.iter();
        certificates.any(|one| one.raw == trusted.raw || one.issuer == trusted.subject)
    }

    /// The digest that the signer signs; `None` if it is not the digest of the content.
    fn signed_digest(&self, hash: Bank) -> Result<Option<Vec<u8>>, DerError> {
        let content = hash.hash(self.content);
        let Some(attributes) = self.attributes else {
            return Ok(Some(content));
        };
        let mut list = Der::new(attributes, STRUCTURE).within(der::CONTEXT_0)?;
        while !list.is_empty() {
            let mut attribute = list.within(der::SEQUENCE)?;
            if attribute.element(der::OID)?.value != MESSAGE_DIGEST {
                continue;
            }
            let mut values = attribute.within(der::SET)?;
            if values.element(der::OCTET_STRING)?.value != content {
                return Ok(None);
            }
            // RFC 2315, 9.3: signed with the tag of a SET OF.
            let mut signed = vec![der::SET];
            signed.extend(attributes.iter().skip(1));
            return Ok(Some(hash.hash(&signed)));
        }
        Ok(None)
    }

    fn leads_to(
        &self,
        from: &Certificate<'_>,
        trusted: &Certificate<'_>,
        depth: usize,
        checks: &mut usize,
    ) -> Result<bool, AuthenticodeError> {
        if from.raw == trusted.raw {
            return Ok(true);
        }
        *checks += 1;
        if *checks > MAX_CHECKS {
            return Err(AuthenticodeError::TooManyChecks(MAX_CHECKS));
        }
        if from.is_signed_by(trusted).map_err(AuthenticodeError::Unsupported)? {
            return Ok(true);
        }
        if depth == 0 {
            return Ok(false);
        }
        for issuer in &self.certificates {
            if issuer.subject == from.issuer
                && issuer.raw != from.raw
                && from.is_signed_by(issuer).map_err(AuthenticodeError::Unsupported)?
                && self.leads_to(issuer, trusted, depth - 1, checks)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn expect(reader: &mut Der<'_>, oid: &[u8]) -> Result<(), DerError> {
    if reader.element(der::OID)?.value == oid {
        Ok(())
    } else {
        Err(DerError { structure: STRUCTURE })
    }
}
