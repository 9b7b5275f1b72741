//! Verification of what an attestation key certifies about another key, without a TPM.
//!
//! ```text
//! UntrustedCertification ── verify(signer, qualifying data, public area) ──► Certified
//!   1 bound all sizes                          4 qualifying data
//!   2 signature over the raw message bytes     5 name of the public area
//!   3 magic, type                              6 attributes and scheme of an attestation key
//! ```
//! A TPM certifies only objects that are loaded in it (TPM 2.0 Library Part 3, "TPM2_Certify"). Together with
//! `fixedTPM` in its public area, the new key is one of the TPM that holds the signer.
//!
//! # Example
//! ```
//! # #[cfg(feature = "test-util")] {
//! use tec_tpm::certify::UntrustedCertification;
//! use tec_tpm::testing::SoftTpm;
//!
//! let (bound, new) = (SoftTpm::p256(1), SoftTpm::p256(2));
//! let (message, signature) = bound.certify(&new.ak_public_area(), b"session");
//! let statement = UntrustedCertification::new(&message, &signature);
//! let certified = statement.verify(&bound.public_key(), b"session", &new.ak_public_area())?;
//! assert_eq!(certified.key().public(), &new.public_key());
//! # }
//! # Ok::<(), tec_tpm::certify::CertifyError>(())
//! ```

use subtle::ConstantTimeEq as _;
use tec_core::ak::{PublicKey, TpmClock};

use crate::ak::{AkError, AttestationKey};
use crate::quote;
use crate::quote::{Head, PureRust, QuoteError};
use crate::wire::{WireError, WireReader};

/// TPM_ST_ATTEST_CERTIFY (TPM 2.0 Library Part 2, "TPM_ST").
pub(crate) const ST_ATTEST_CERTIFY: u16 = 0x8017;
/// TPM2B_NAME: algorithm and SHA-512 digest (Part 2, "TPM2B_NAME").
const MAX_NAME: usize = 2 + 64;

/// A certification was refused: the first check that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertifyError {
    /// The signature, or what every statement of a TPM has in common.
    #[error("it is not a certification by the bound key")]
    Statement(#[source] QuoteError),
    /// It was created for another session or another machine.
    #[error("the certification is for another session or another machine")]
    Qualifying,
    /// It is about another object.
    #[error("the certification is about another key")]
    Name,
    /// The certified object is not an attestation key.
    #[error("the certified key is not acceptable")]
    Key(#[source] AkError),
}

/// Proof that a TPM certified an attestation key for this qualifying data.
#[derive(Clone, Debug)]
pub struct Certified {
    key: AttestationKey,
    clock: TpmClock,
}

impl Certified {
    /// The certified key.
    pub fn key(&self) -> &AttestationKey {
        &self.key
    }

    /// Clock and counters at the time of the certification, as the signer's statements show them.
    pub fn clock(&self) -> TpmClock {
        self.clock
    }
}

/// A certification as received: nothing in it can be read.
#[derive(Clone, Copy)]
pub struct UntrustedCertification<'a> {
    message: &'a [u8],
    signature: &'a [u8],
}

impl std::fmt::Debug for UntrustedCertification<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UntrustedCertification").finish_non_exhaustive()
    }
}

impl<'a> UntrustedCertification<'a> {
    /// Takes a TPMS_ATTEST and a TPMT_SIGNATURE.
    pub fn new(message: &'a [u8], signature: &'a [u8]) -> Self {
        Self { message, signature }
    }

    /// Verifies the certification of the key with this TPM2B_PUBLIC; see the steps in the [module](self)
    /// documentation.
    ///
    /// # Errors
    /// The first check that failed.
    ///
    /// # Security
    /// The signer is an argument: the caller decides whether it is the right one.
    pub fn verify(
        self,
        signer: &PublicKey,
        qualifying: &[u8],
        tpm2b_public: &[u8],
    ) -> Result<Certified, CertifyError> {
        let (head, reader) =
            quote::open((self.message, self.signature), signer, &PureRust, ST_ATTEST_CERTIFY)
                .map_err(CertifyError::Statement)?;
        let Head { extra_data, clock, .. } = head;
        let malformed = |error| CertifyError::Statement(QuoteError::Message(error));
        let name = certified_name(reader).map_err(malformed)?;
        // Slices of unequal length compare as unequal.
        if !bool::from(extra_data.ct_eq(qualifying)) {
            return Err(CertifyError::Qualifying);
        }
        let key = AttestationKey::from_tpm2b(tpm2b_public).map_err(CertifyError::Key)?;
        if name != key.name().as_bytes() {
            return Err(CertifyError::Name);
        }
        Ok(Certified { key, clock })
    }
}

/// TPMS_CERTIFY_INFO: name and qualified name (Part 2, "TPMS_CERTIFY_INFO").
fn certified_name(mut reader: WireReader<'_>) -> Result<&[u8], WireError> {
    let name = reader.sized(MAX_NAME)?;
    reader.sized(MAX_NAME)?;
    reader.finish()?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::public::ObjectAttributes;
    use crate::testing::{AttestFields, SoftTpm};

    const DATA: &[u8] = b"this session of this machine";

    struct World {
        bound: SoftTpm,
        new: SoftTpm,
    }

    impl World {
        fn new() -> Self {
            Self { bound: SoftTpm::p256(1), new: SoftTpm::p256(2) }
        }

        fn name(&self) -> Vec<u8> {
            let key = AttestationKey::from_tpm2b(&self.new.ak_public_area()).unwrap();
            key.name().as_bytes().to_vec()
        }

        fn verify(&self, message: &[u8], area: &[u8]) -> Result<Certified, CertifyError> {
            let signature = self.bound.sign(message);
            let statement = UntrustedCertification::new(message, &signature);
            statement.verify(&self.bound.public_key(), DATA, area)
        }

        /// With one field changed, and signed by the bound key.
        fn changed(&self, change: impl FnOnce(&mut AttestFields)) -> CertifyError {
            let mut fields = self.bound.attest_fields(DATA);
            fields.kind = ST_ATTEST_CERTIFY;
            change(&mut fields);
            let message = fields.certification(&self.name());
            self.verify(&message, &self.new.ak_public_area()).unwrap_err()
        }
    }

    #[test]
    fn a_key_of_either_kind_certifies_another() {
        for bound in [SoftTpm::p256(1), SoftTpm::rsa(1)] {
            let area = SoftTpm::rsa(2).ak_public_area();
            let (message, signature) = bound.certify(&area, DATA);
            let statement = UntrustedCertification::new(&message, &signature);
            let certified = statement.verify(&bound.public_key(), DATA, &area).unwrap();
            assert_eq!(certified.key().public(), &SoftTpm::rsa(2).public_key());
            assert_eq!(certified.clock().reset_count, 1);
        }
    }

    #[test]
    fn a_statement_of_another_key_or_with_another_content_is_refused() {
        let world = World::new();
        let area = world.new.ak_public_area();
        let (message, signature) = world.bound.certify(&area, DATA);
        let by = |signer: &SoftTpm| {
            let statement = UntrustedCertification::new(&message, &signature);
            statement.verify(&signer.public_key(), DATA, &area).unwrap_err()
        };
        // The new key cannot vouch for itself, nor can a key of another TPM.
        for signer in [&world.new, &SoftTpm::p256(3), &SoftTpm::rsa(1)] {
            assert!(matches!(by(signer), CertifyError::Statement(_)));
        }
        let magic = world.changed(|fields| fields.magic ^= 1);
        assert!(matches!(magic, CertifyError::Statement(QuoteError::Magic)));
        let kind = world.changed(|fields| fields.kind = quote::ST_ATTEST_QUOTE);
        assert!(matches!(kind, CertifyError::Statement(QuoteError::Type { found: 0x8018 })));
        let data = world.changed(|fields| fields.extra_data.push(0));
        assert!(matches!(data, CertifyError::Qualifying));
        let trailing = world.changed(|fields| fields.trailing.push(0));
        let is_malformed =
            |error: &CertifyError| matches!(error, CertifyError::Statement(QuoteError::Message(_)));
        assert!(is_malformed(&trailing));
        let long = world.changed(|fields| fields.qualified_signer = vec![0; MAX_NAME + 1]);
        assert!(is_malformed(&long));
        let quote = world.bound.quote(&[7; 32]);
        let statement = UntrustedCertification::new(&quote.message, &quote.signature);
        let error = statement.verify(&world.bound.public_key(), &[7; 32], &area).unwrap_err();
        assert!(matches!(error, CertifyError::Statement(QuoteError::Type { .. })), "a quote");
    }

    #[test]
    fn a_key_of_another_name_or_without_an_attribute_is_refused() {
        let world = World::new();
        let (message, _) = world.bound.certify(&world.new.ak_public_area(), DATA);
        let other = world.verify(&message, &SoftTpm::p256(3).ak_public_area());
        assert!(matches!(other, Err(CertifyError::Name)));
        for missing in [
            ObjectAttributes::RESTRICTED,
            ObjectAttributes::FIXED_TPM,
            ObjectAttributes::FIXED_PARENT,
            ObjectAttributes::SENSITIVE_DATA_ORIGIN,
        ] {
            // Such an object exists in the TPM, and the TPM certifies what it really is.
            let mut area = world.new.ak_public_area();
            let bits = u32::from_be_bytes(area[6..10].try_into().unwrap()) & !missing.bits();
            area[6..10].copy_from_slice(&bits.to_be_bytes());
            let (message, _) = world.bound.certify(&area, DATA);
            assert!(matches!(world.verify(&message, &area), Err(CertifyError::Key(_))));
        }
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_refused() {
        let world = World::new();
        let area = world.new.ak_public_area();
        let (message, signature) = world.bound.certify(&area, DATA);
        for cut in 0..message.len() {
            assert!(world.verify(&message[..cut], &area).is_err(), "{cut}");
        }
        for cut in 0..area.len() {
            assert!(world.verify(&message, &area[..cut]).is_err(), "{cut}");
        }
        for at in 0..message.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            let statement = UntrustedCertification::new(&changed, &signature);
            let error = statement.verify(&world.bound.public_key(), DATA, &area).unwrap_err();
            assert!(matches!(error, CertifyError::Statement(QuoteError::Signature)), "{at}");
        }
        let long = vec![0; quote::MAX_MESSAGE + 1];
        assert!(matches!(
            world.verify(&long, &area),
            Err(CertifyError::Statement(QuoteError::TooLarge { .. }))
        ));
    }
}
