//! The CAs through which AMD certifies the keys that sign reports.

use std::collections::BTreeMap;

use p256::pkcs8::DecodePublicKey as _;
use rsa::signature::Verifier as _;
use rsa::traits::PublicKeyParts as _;
use rsa::{RsaPublicKey, pss};
use sha2::Sha384;
use tec_core::time::Timestamp;
use x509_cert::der::oid::ObjectIdentifier;

use super::finding::shortened;
use super::{Finding, Product, SigningKey};
use crate::ek::{CertificateError, Parsed};

/// RSASSA-PSS (RFC 4055, section 3.1).
const RSASSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
/// Bytes of salt in AMD's signatures (VCEK Certificate and KDS Interface Specification, "VCEK
/// Certificate").
pub(crate) const SALT: usize = 48;
/// Bytes of an RSA-4096 modulus, which all of AMD's CAs have.
const MODULUS: usize = 4096 / 8;

/// Certificates of one product, in DER.
#[derive(Clone, Copy, Debug)]
pub struct ProductCertificates<'a> {
    /// AMD Root Key; self-signed.
    pub ark: &'a [u8],
    /// AMD SEV Key: signs VCEKs.
    pub ask: &'a [u8],
    /// AMD SEV VLEK Key: signs VLEKs.
    pub asvk: &'a [u8],
}

/// Certificates of a product are invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The certificate cannot be read.
    #[error("the {which} certificate cannot be read")]
    Certificate {
        /// `ARK`, `ASK` or `ASVK`.
        which: &'static str,
        /// The cause.
        #[source]
        source: CertificateError,
    },
    /// The key is not a 4096-bit RSA key.
    #[error("the {0} is not a 4096-bit RSA key")]
    Key(&'static str),
    /// The key may not sign certificates.
    #[error("the {0} certificate is not a CA certificate")]
    NotCa(&'static str),
    /// The ARK did not sign the certificate.
    #[error("the {0} certificate is not signed by the ARK")]
    Signature(&'static str),
}

/// A CA, its name and key.
#[derive(Clone, Debug)]
struct Authority {
    parsed: Parsed,
    key: pss::VerifyingKey<Sha384>,
}

impl Authority {
    fn from_der(der: &[u8], which: &'static str) -> Result<Self, RootError> {
        let wrong = |source| RootError::Certificate { which, source };
        let parsed = Parsed::from_der(der).map_err(wrong)?;
        let limits = parsed.ca().map_err(wrong)?;
        if !limits.is_some_and(|limits| limits.signs_certificates) {
            return Err(RootError::NotCa(which));
        }
        let key = parsed
            .public_key_der()
            .ok()
            .and_then(|der| RsaPublicKey::from_public_key_der(&der).ok())
            .filter(|key| key.size() == MODULUS)
            .ok_or(RootError::Key(which))?;
        Ok(Self { parsed, key: pss::VerifyingKey::new_with_salt_len(key, SALT) })
    }

    /// Whether this CA's name is that of the issuer, and its key signed the certificate. Whatever
    /// parameters the certificate states, only SHA-384 with 48 bytes of salt is accepted.
    fn signed(&self, child: &Parsed) -> bool {
        let certificate = child.certificate();
        let algorithm = certificate.signature_algorithm();
        let tbs = certificate.tbs_certificate();
        // RFC 5280, section 4.1.1.2: both places name the same algorithm.
        let signature = certificate
            .signature()
            .as_bytes()
            .filter(|_| algorithm == tbs.signature() && algorithm.oid == RSASSA_PSS)
            .and_then(|bytes| pss::Signature::try_from(bytes).ok());
        child.names_issuer(&self.parsed)
            && signature
                .is_some_and(|signature| self.key.verify(child.signed(), &signature).is_ok())
    }
}

#[derive(Clone, Debug)]
struct Family {
    ark: Authority,
    ask: Authority,
    asvk: Authority,
}

/// The CAs that are trusted, by product.
#[derive(Clone, Debug, Default)]
pub struct Roots(BTreeMap<Product, Family>);

/// Who signed a key's certificate.
pub(super) struct Issuer<'a> {
    pub(super) product: Product,
    pub(super) kind: SigningKey,
    authority: &'a Authority,
    ark: &'a Authority,
}

impl Roots {
    /// Trusts no CA.
    pub fn new() -> Self {
        Self::default()
    }

    /// AMD's own CAs, for all products known here.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the certificates are constants, which a test reads"
    )]
    pub fn amd() -> Self {
        let mut roots = Self::new();
        for (product, certificates) in AMD {
            roots.add(product, certificates).expect("certificates that were looked at");
        }
        roots
    }

    /// Trusts an ARK for a product, in place of the previous one; ASK and ASVK must be signed by
    /// it.
    pub fn add(
        &mut self,
        product: Product,
        certificates: ProductCertificates<'_>,
    ) -> Result<(), RootError> {
        let family = Family {
            ark: Authority::from_der(certificates.ark, "ARK")?,
            ask: Authority::from_der(certificates.ask, "ASK")?,
            asvk: Authority::from_der(certificates.asvk, "ASVK")?,
        };
        for (child, which) in [(&family.ark, "ARK"), (&family.ask, "ASK"), (&family.asvk, "ASVK")] {
            if !family.ark.signed(&child.parsed) {
                return Err(RootError::Signature(which));
            }
        }
        self.0.insert(product, family);
        Ok(())
    }

    /// The CA that a certificate names as its issuer.
    pub(super) fn issuer(&self, child: &Parsed) -> Option<Issuer<'_>> {
        self.0.iter().find_map(|(product, family)| {
            let of =
                |authority, kind| Issuer { product: *product, kind, authority, ark: &family.ark };
            if child.names_issuer(&family.ask.parsed) {
                Some(of(&family.ask, SigningKey::Vcek))
            } else if child.names_issuer(&family.asvk.parsed) {
                Some(of(&family.asvk, SigningKey::Vlek))
            } else {
                None
            }
        })
    }
}

impl Issuer<'_> {
    /// Signature and dates of a certificate and of those above it.
    pub(super) fn findings(&self, child: &Parsed, now: Timestamp) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !self.authority.signed(child) {
            findings.push(Finding::CertificateSignature);
        }
        for certificate in [child, &self.authority.parsed, &self.ark.parsed] {
            let (from, until) = certificate.validity();
            let subject = shortened(&certificate.subject());
            if now < from {
                findings.push(Finding::NotYetValid { subject, from });
            } else if until < now {
                findings.push(Finding::Expired { subject, until });
            }
        }
        findings
    }
}

/// As AMD's key distribution service provides them; `amd/README.md` says where.
const AMD: [(Product, ProductCertificates<'static>); 3] = [
    (
        Product::Milan,
        ProductCertificates {
            ark: include_bytes!("amd/milan-ark.der"),
            ask: include_bytes!("amd/milan-ask.der"),
            asvk: include_bytes!("amd/milan-asvk.der"),
        },
    ),
    (
        Product::Genoa,
        ProductCertificates {
            ark: include_bytes!("amd/genoa-ark.der"),
            ask: include_bytes!("amd/genoa-ask.der"),
            asvk: include_bytes!("amd/genoa-asvk.der"),
        },
    ),
    (
        Product::Turin,
        ProductCertificates {
            ark: include_bytes!("amd/turin-ark.der"),
            ask: include_bytes!("amd/turin-ask.der"),
            asvk: include_bytes!("amd/turin-asvk.der"),
        },
    ),
];
