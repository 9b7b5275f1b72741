//! Certificates of the keys that sign reports.

use p256::pkcs8::DecodePublicKey as _;
use p384::ecdsa::VerifyingKey;
use tec_core::port::chain;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::Ia5StringRef;
use x509_cert::der::oid::ObjectIdentifier;

use super::{Product, Tcb};
use crate::ek::Parsed;

// Extensions (VCEK Certificate and KDS Interface Specification, "VCEK Certificate"; "VLEK
// Certificate" of the same).
const PRODUCT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.2");
const BOOTLOADER: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.1");
const TEE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.2");
const SNP: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.3");
const MICROCODE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.8");
const FMC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.9");
const HARDWARE_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.4");
const CSP_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.5");

/// A certificate cannot be that of a VCEK or VLEK.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyCertificateError {
    /// Not an acceptable X.509 certificate.
    #[error("the certificate is not acceptable: {0}")]
    Certificate(String),
    /// The key is not on P-384.
    #[error("the certified key is not on the curve P-384")]
    Key,
    /// An AMD extension is missing, duplicated or malformed.
    #[error("the certificate's extension {0} is missing or invalid")]
    Extension(&'static str),
}

/// Certificate of a VCEK or VLEK, well formed in itself. Who signed it has not been checked.
#[derive(Clone, Debug)]
pub struct KeyCertificate {
    parsed: Parsed,
    key: VerifyingKey,
    product_name: String,
    tcb: Tcb,
    hardware_id: Option<Vec<u8>>,
    csp_id: Option<String>,
}

impl KeyCertificate {
    /// Parses the DER form.
    pub fn from_der(der: &[u8]) -> Result<Self, KeyCertificateError> {
        let parsed = Parsed::from_der(der)
            .map_err(|error| KeyCertificateError::Certificate(chain(&error)))?;
        let spki = parsed.public_key_der().map_err(|_| KeyCertificateError::Key)?;
        let key = VerifyingKey::from_public_key_der(&spki).map_err(|_| KeyCertificateError::Key)?;
        let extensions = Extensions(&parsed);
        let tcb = Tcb {
            fmc: extensions.number(FMC, "fmcSPL")?.unwrap_or(0),
            bootloader: extensions.required_number(BOOTLOADER, "blSPL")?,
            tee: extensions.required_number(TEE, "teeSPL")?,
            snp: extensions.required_number(SNP, "snpSPL")?,
            microcode: extensions.required_number(MICROCODE, "ucodeSPL")?,
        };
        Ok(Self {
            key,
            product_name: extensions.required_text(PRODUCT_NAME, "productName")?,
            tcb,
            // The one extension that is not DER in an OCTET STRING, but the bytes themselves.
            hardware_id: extensions.only(HARDWARE_ID, "hwID")?.map(<[u8]>::to_vec),
            csp_id: extensions.text(CSP_ID, "cspID")?,
            parsed,
        })
    }

    /// The product's name, such as `Milan-B0`.
    pub fn product_name(&self) -> &str {
        &self.product_name
    }

    /// The product, by its name.
    pub fn product(&self) -> Option<Product> {
        Product::of_name(&self.product_name)
    }

    /// The versions that the key is derived from.
    pub fn tcb(&self) -> &Tcb {
        &self.tcb
    }

    /// ID of the chip; a VLEK has none.
    pub fn hardware_id(&self) -> Option<&[u8]> {
        self.hardware_id.as_deref()
    }

    /// Recipient of the key; a VCEK has none.
    pub fn csp_id(&self) -> Option<&str> {
        self.csp_id.as_deref()
    }

    /// Name of the issuer, for display.
    pub fn issuer(&self) -> String {
        self.parsed.issuer()
    }

    pub(super) fn parsed(&self) -> &Parsed {
        &self.parsed
    }

    pub(super) fn key(&self) -> &VerifyingKey {
        &self.key
    }
}

struct Extensions<'a>(&'a Parsed);

impl<'a> Extensions<'a> {
    /// Content of an extension that occurs at most once.
    fn only(
        &self,
        oid: ObjectIdentifier,
        extension: &'static str,
    ) -> Result<Option<&'a [u8]>, KeyCertificateError> {
        let all = self.0.certificate().tbs_certificate().extensions();
        let mut found = all.into_iter().flatten().filter(|one| one.extn_id == oid);
        let first = found.next().map(|one| one.extn_value.as_bytes());
        match found.next() {
            Some(_) => Err(KeyCertificateError::Extension(extension)),
            None => Ok(first),
        }
    }

    /// An INTEGER of 0 to 255; from 128 on it takes two bytes.
    fn number(
        &self,
        oid: ObjectIdentifier,
        extension: &'static str,
    ) -> Result<Option<u8>, KeyCertificateError> {
        let wrong = |_| KeyCertificateError::Extension(extension);
        self.only(oid, extension)?.map(|der| u8::from_der(der).map_err(wrong)).transpose()
    }

    fn required_number(
        &self,
        oid: ObjectIdentifier,
        extension: &'static str,
    ) -> Result<u8, KeyCertificateError> {
        self.number(oid, extension)?.ok_or(KeyCertificateError::Extension(extension))
    }

    fn text(
        &self,
        oid: ObjectIdentifier,
        extension: &'static str,
    ) -> Result<Option<String>, KeyCertificateError> {
        let wrong = |_| KeyCertificateError::Extension(extension);
        self.only(oid, extension)?
            .map(|der| Ia5StringRef::from_der(der).map_err(wrong))
            .transpose()
            .map(|text| text.map(|text| text.as_str().to_owned()))
    }

    fn required_text(
        &self,
        oid: ObjectIdentifier,
        extension: &'static str,
    ) -> Result<String, KeyCertificateError> {
        self.text(oid, extension)?.ok_or(KeyCertificateError::Extension(extension))
    }
}
