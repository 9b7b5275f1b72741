//! Verification of TPM quotes, without a TPM.
//!
//! ```text
//! UntrustedQuote ── verify(key, nonce) ──► VerifiedQuote
//!   1 bound all sizes        3 magic, type, nonce
//!   2 signature over the     4 one selection: SHA-256, PCRs 0 to 23
//!     raw message bytes      5 24 values, their digest is the quoted one
//! ```
//! No field of the message is read before its signature is verified, and nobody else can read a
//! field before all five steps have passed: [`VerifiedQuote`] has no other constructor.
//!
//! Keys are released only for quotes over all 24 registers. [`UntrustedQuote::verify_selection`]
//! accepts quotes of other agents, over any registers of the SHA-256 bank, and reports which
//! registers they prove; its result cannot be appraised.
//!
//! What is *not* checked here: whose key it is, and whether the values match an approved image.
//!
//! # Example
//! ```
//! # #[cfg(feature = "test-util")] {
//! use tec_core::digest::Sha256Digest;
//! use tec_core::pcr::PcrIndex;
//! use tec_tpm::quote::UntrustedQuote;
//! use tec_tpm::testing::SoftTpm;
//!
//! let nonce = [0x5a; 32]; // the verifier's, at random, for this quote only
//! let tpm = SoftTpm::p256(7); // in earnest, bytes from a node
//! tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
//! let sent = tpm.quote(&nonce);
//!
//! let quote = UntrustedQuote::new(&sent.message, &sent.signature, &sent.values);
//! let verified = quote.verify(&sent.ak, &nonce)?;
//! let booted = Sha256Digest::ZERO.extended(&Sha256Digest::of("shim"));
//! assert_eq!(verified.pcrs().value(PcrIndex::BOOT_MANAGER), &booted);
//!
//! assert!(quote.verify(&sent.ak, &[0; 32]).is_err()); // a quote for another verifier
//! # }
//! # Ok::<(), tec_tpm::quote::QuoteError>(())
//! ```

mod signature;

pub use self::signature::{PureRust, SignatureCheck};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tec_core::ak::{PublicKey, TpmClock};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};

use self::signature::Signature;
use crate::wire::{WireError, WireReader};

/// TPM_ST_ATTEST_QUOTE (TPM 2.0 Library Part 2, "TPM_ST").
pub(crate) const ST_ATTEST_QUOTE: u16 = 0x8018;
/// TPM_GENERATED_VALUE (Part 2, "TPM_GENERATED"): a restricted key signs data with this prefix only
/// if the TPM generated it.
pub(crate) const GENERATED: u32 = 0xff54_4347;
/// TPM_ALG_SHA256 (TCG Algorithm Registry, "TPM_ALG_ID").
pub(crate) const ALG_SHA256: u16 = 0x000b;
/// TPM_ALG_RSASSA (TCG Algorithm Registry).
pub(crate) const ALG_RSASSA: u16 = 0x0014;
/// TPM_ALG_ECDSA (TCG Algorithm Registry).
pub(crate) const ALG_ECDSA: u16 = 0x0018;
/// PCRs 0 to 23, one bit each, least significant first (Part 2, "TPMS_PCR_SELECT").
pub(crate) const ALL_PCRS: [u8; 3] = [0xff, 0xff, 0xff];

/// Maximum size of a TPMS_ATTEST; a quote with one selection takes at most 209 bytes.
pub const MAX_MESSAGE: usize = 1024;
/// Maximum size of a TPMT_SIGNATURE; RSA-4096 takes 518 bytes.
pub const MAX_SIGNATURE: usize = 1024;
/// TPM2B_NAME: algorithm and SHA-512 digest (Part 2, "TPM2B_NAME").
const MAX_NAME: usize = 2 + 64;
/// TPM2B_DATA: algorithm and SHA-512 digest (Part 2, "TPM2B_DATA").
const MAX_EXTRA_DATA: usize = 2 + 64;
/// SHA-512 digest.
const MAX_DIGEST: usize = 64;
/// Number of hash banks that a TPM may have (Part 2, "TPML_PCR_SELECTION": HASH_COUNT; at most 16
/// in the reference code).
const MAX_SELECTIONS: u32 = 16;

/// A quote as received: nothing in it can be read.
#[derive(Clone, Copy)]
pub struct UntrustedQuote<'a> {
    message: &'a [u8],
    signature: &'a [u8],
    values: &'a [Sha256Digest],
}

impl std::fmt::Debug for UntrustedQuote<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UntrustedQuote").finish_non_exhaustive()
    }
}

/// A quote was refused: the first check that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuoteError {
    /// The message or the signature is larger than any valid one.
    #[error("the message or signature has {length} bytes, which is too large for a quote")]
    TooLarge {
        /// Size of the one that is too large.
        length: usize,
    },
    /// The signature is not a TPMT_SIGNATURE.
    #[error("the signature is malformed")]
    SignatureFormat(#[source] WireError),
    /// The scheme of the signature is not that of the key, or its hash is not SHA-256.
    #[error("the signature scheme {scheme:#06x} with hash {hash:#06x} does not match the key")]
    SignatureScheme {
        /// TPM_ALG_ID of the scheme.
        scheme: u16,
        /// TPM_ALG_ID of the hash.
        hash: u16,
    },
    /// The key cannot verify anything, for example a point that is not on the curve.
    #[error("the key is not usable")]
    Key,
    /// The key did not sign this message.
    #[error("the signature was not created by this key for this message")]
    Signature,
    /// The signed message is not a TPMS_ATTEST of a quote, or has trailing bytes.
    #[error("the signed message is malformed")]
    Message(#[source] WireError),
    /// The message was not generated by a TPM.
    #[error("the message does not begin with the magic number of a TPM attestation")]
    Magic,
    /// The message is an attestation, but not a quote.
    #[error("the message is an attestation of type {0:#06x}, not a quote")]
    Type(u16),
    /// The quote was created for a different nonce.
    #[error("the quote is for another nonce")]
    Nonce,
    /// The number of selected banks is not one.
    #[error("{0} PCR selections; exactly one is required")]
    SelectionCount(u32),
    /// A bank other than SHA-256 was selected.
    #[error("the bank {0:#06x} is selected, not SHA-256")]
    Bank(u16),
    /// The selection is not exactly registers 0 to 23 or, where any are allowed, is empty or has
    /// one above 23.
    #[error("the selection is not exactly PCRs 0 to 23")]
    Bitmap,
    /// The number of values does not match the number of selected registers.
    #[error("{0} PCR values; one for each selected register is required")]
    ValueCount(usize),
    /// The values do not match the quoted digest.
    #[error("the PCR values do not match the quote")]
    Digest,
}

/// Proof that a key signed this quote for this nonce over exactly these 24 values.
#[derive(Clone, Debug)]
pub struct VerifiedQuote {
    pcrs: PcrValues,
    clock: TpmClock,
    firmware_version: u64,
    qualified_signer: Vec<u8>,
}

impl VerifiedQuote {
    /// The quoted values.
    pub fn pcrs(&self) -> &PcrValues {
        &self.pcrs
    }

    /// Clock and counters at the time of the quote.
    pub fn clock(&self) -> TpmClock {
        self.clock
    }

    /// Vendor-specific version of the TPM's firmware.
    pub fn firmware_version(&self) -> u64 {
        self.firmware_version
    }

    /// Qualified name of the signing key (Part 1, "Qualified Name").
    pub fn qualified_signer(&self) -> &[u8] {
        &self.qualified_signer
    }
}

/// Proof that a key signed this quote for this nonce over the values of some registers of the
/// SHA-256 bank, as other agents quote them, for example `tpm2_quote -l sha256:0-15`.
///
/// # Security
/// It proves nothing about the registers that it does not contain, so no key is released for it: it
/// is not a [`VerifiedQuote`], and cannot be turned into one.
#[derive(Clone, Debug)]
pub struct PartialQuote {
    values: Vec<(PcrIndex, Sha256Digest)>,
    clock: TpmClock,
    firmware_version: u64,
    qualified_signer: Vec<u8>,
}

impl PartialQuote {
    /// The registers that it proves; never empty.
    pub fn proven(&self) -> PcrSet {
        self.values.iter().map(|(pcr, _)| *pcr).collect()
    }

    /// The value of a register; `None` if it does not prove that register.
    pub fn value(&self, pcr: PcrIndex) -> Option<&Sha256Digest> {
        let mut values = self.values.iter();
        values.find(|(one, _)| *one == pcr).map(|(_, value)| value)
    }

    /// Clock and counters at the time of the quote.
    pub fn clock(&self) -> TpmClock {
        self.clock
    }

    /// Vendor-specific version of the TPM's firmware.
    pub fn firmware_version(&self) -> u64 {
        self.firmware_version
    }

    /// Qualified name of the signing key (Part 1, "Qualified Name").
    pub fn qualified_signer(&self) -> &[u8] {
        &self.qualified_signer
    }
}

impl<'a> UntrustedQuote<'a> {
    /// Takes a TPMS_ATTEST, a TPMT_SIGNATURE, and the PCR values sent with them.
    pub fn new(message: &'a [u8], signature: &'a [u8], values: &'a [Sha256Digest]) -> Self {
        Self { message, signature, values }
    }

    /// Verifies the quote; see the steps in the [module](self) documentation.
    ///
    /// # Errors
    /// The first check that failed.
    ///
    /// # Security
    /// The key is an argument: the caller decides whether it is the right one.
    pub fn verify(self, key: &PublicKey, nonce: &[u8]) -> Result<VerifiedQuote, QuoteError> {
        self.verify_by(&PureRust, key, nonce)
    }

    /// Like [`Self::verify`], with another implementation of signature verification.
    ///
    /// # Errors
    /// The first check that failed.
    ///
    /// # Security
    /// Same as for [`Self::verify`]; in addition, `signatures` decides which signatures are valid.
    pub fn verify_by(
        self,
        signatures: &dyn SignatureCheck,
        key: &PublicKey,
        nonce: &[u8],
    ) -> Result<VerifiedQuote, QuoteError> {
        self.signed_by(signatures, key)?.check(nonce, self.values)
    }

    /// Verifies a quote over any registers of the SHA-256 bank, 0 to 23; `values` are the values of
    /// these registers, in register order.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")] {
    /// use tec_core::pcr::PcrIndex;
    /// use tec_tpm::quote::UntrustedQuote;
    /// use tec_tpm::testing::SoftTpm;
    ///
    /// let tpm = SoftTpm::p256(7);
    /// let sent = tpm.quote_of([PcrIndex::BOOT_MANAGER], b"nonce");
    /// let quote = UntrustedQuote::new(&sent.message, &sent.signature, &sent.values);
    /// let some = quote.verify_selection(&sent.ak, b"nonce")?;
    /// assert!(some.value(PcrIndex::BOOT_MANAGER).is_some());
    /// assert!(some.value(PcrIndex::MOK).is_none()); // nothing is known of it
    /// assert!(quote.verify(&sent.ak, b"nonce").is_err()); // no key for that
    /// # }
    /// # Ok::<(), tec_tpm::quote::QuoteError>(())
    /// ```
    ///
    /// # Errors
    /// The first check that failed.
    ///
    /// # Security
    /// Same as for [`Self::verify`].
    pub fn verify_selection(
        self,
        key: &PublicKey,
        nonce: &[u8],
    ) -> Result<PartialQuote, QuoteError> {
        self.signed_by(&PureRust, key)?.prove(nonce, self.values)
    }

    /// What a TPM attested, once its signature is verified.
    fn signed_by(
        self,
        signatures: &dyn SignatureCheck,
        key: &PublicKey,
    ) -> Result<Attest<'a>, QuoteError> {
        for (part, limit) in [(self.message, MAX_MESSAGE), (self.signature, MAX_SIGNATURE)] {
            if part.len() > limit {
                return Err(QuoteError::TooLarge { length: part.len() });
            }
        }
        SignedMessage::verify(self.message, self.signature, key, signatures)?.parse()
    }
}

/// Bytes with a verified signature.
struct SignedMessage<'a>(&'a [u8]);

impl<'a> SignedMessage<'a> {
    fn verify(
        message: &'a [u8],
        signature: &[u8],
        key: &PublicKey,
        by: &dyn SignatureCheck,
    ) -> Result<Self, QuoteError> {
        Signature::parse(signature)
            .map_err(QuoteError::SignatureFormat)?
            .verify(message, key, by)?;
        Ok(Self(message))
    }

    fn parse(self) -> Result<Attest<'a>, QuoteError> {
        let mut reader = WireReader::new(self.0);
        let malformed = QuoteError::Message;
        if reader.u32().map_err(malformed)? != GENERATED {
            return Err(QuoteError::Magic);
        }
        let found = reader.u16().map_err(malformed)?;
        if found != ST_ATTEST_QUOTE {
            return Err(QuoteError::Type(found));
        }
        Attest::read(reader).map_err(malformed)
    }
}

struct Selection<'a> {
    bank: u16,
    bitmap: &'a [u8],
}

/// TPMS_ATTEST of a quote after magic and type (Part 2, "TPMS_ATTEST").
struct Attest<'a> {
    qualified_signer: &'a [u8],
    extra_data: &'a [u8],
    clock: TpmClock,
    firmware_version: u64,
    selection_count: u32,
    first: Option<Selection<'a>>,
    pcr_digest: &'a [u8],
}

impl<'a> Attest<'a> {
    fn read(mut reader: WireReader<'a>) -> Result<Self, WireError> {
        let qualified_signer = reader.sized(MAX_NAME)?;
        let extra_data = reader.sized(MAX_EXTRA_DATA)?;
        let clock = TpmClock {
            clock_ms: reader.u64()?,
            reset_count: reader.u32()?,
            restart_count: reader.u32()?,
            safe: reader.yes_no()?,
        };
        let firmware_version = reader.u64()?;
        let (selection_count, first) = read_selections(&mut reader)?;
        let pcr_digest = reader.sized(MAX_DIGEST)?;
        reader.finish()?;
        Ok(Self {
            qualified_signer,
            extra_data,
            clock,
            firmware_version,
            selection_count,
            first,
            pcr_digest,
        })
    }

    /// A quote over all registers.
    fn check(self, nonce: &[u8], values: &[Sha256Digest]) -> Result<VerifiedQuote, QuoteError> {
        self.check_nonce(nonce)?;
        if self.bitmap()? != ALL_PCRS {
            return Err(QuoteError::Bitmap);
        }
        let found = values.len();
        let pcrs = <[Sha256Digest; PCR_COUNT]>::try_from(values)
            .map_err(|_| QuoteError::ValueCount(found))?;
        self.check_digest(values)?;
        Ok(VerifiedQuote {
            pcrs: PcrValues::new(pcrs),
            clock: self.clock,
            firmware_version: self.firmware_version,
            qualified_signer: self.qualified_signer.to_vec(),
        })
    }

    /// A quote over some registers.
    fn prove(self, nonce: &[u8], values: &[Sha256Digest]) -> Result<PartialQuote, QuoteError> {
        self.check_nonce(nonce)?;
        let selected = selected(self.bitmap()?)?;
        let found = values.len();
        if selected.len() != found {
            return Err(QuoteError::ValueCount(found));
        }
        self.check_digest(values)?;
        Ok(PartialQuote {
            values: selected.into_iter().zip(values.iter().copied()).collect(),
            clock: self.clock,
            firmware_version: self.firmware_version,
            qualified_signer: self.qualified_signer.to_vec(),
        })
    }

    fn check_nonce(&self, nonce: &[u8]) -> Result<(), QuoteError> {
        // Slices of unequal length compare as unequal.
        if bool::from(self.extra_data.ct_eq(nonce)) { Ok(()) } else { Err(QuoteError::Nonce) }
    }

    fn check_digest(&self, values: &[Sha256Digest]) -> Result<(), QuoteError> {
        let hash =
            values.iter().fold(Sha256::new(), |hash, value| hash.chain_update(value.as_bytes()));
        if bool::from(hash.finalize().as_slice().ct_eq(self.pcr_digest)) {
            Ok(())
        } else {
            Err(QuoteError::Digest)
        }
    }

    /// The registers of the one selection, of the SHA-256 bank, as a bitmap.
    fn bitmap(&self) -> Result<&'a [u8], QuoteError> {
        let (1, Some(selection)) = (self.selection_count, &self.first) else {
            return Err(QuoteError::SelectionCount(self.selection_count));
        };
        if selection.bank != ALG_SHA256 {
            return Err(QuoteError::Bank(selection.bank));
        }
        Ok(selection.bitmap)
    }
}

/// Registers of a bitmap in order: at least one, and none above 23.
fn selected(bitmap: &[u8]) -> Result<Vec<PcrIndex>, QuoteError> {
    let mut all = Vec::new();
    for (byte, bits) in (0_u8..).zip(bitmap) {
        for bit in (0..8).filter(|bit| bits & (1 << bit) != 0) {
            let pcr = byte.checked_mul(8).map(|first| first | bit);
            let pcr = pcr.and_then(|pcr| PcrIndex::new(pcr).ok());
            all.push(pcr.ok_or(QuoteError::Bitmap)?);
        }
    }
    if all.is_empty() {
        return Err(QuoteError::Bitmap);
    }
    Ok(all)
}

/// Number of entries and the first of them (Part 2, "TPML_PCR_SELECTION").
fn read_selections<'a>(
    reader: &mut WireReader<'a>,
) -> Result<(u32, Option<Selection<'a>>), WireError> {
    let offset = reader.offset();
    let count = reader.u32()?;
    if count > MAX_SELECTIONS {
        return Err(WireError::Value { offset, value: count.into() });
    }
    let mut first = None;
    for _ in 0..count {
        let bank = reader.u16()?;
        let size = reader.u8()?;
        let bitmap = reader.bytes(size)?;
        first.get_or_insert(Selection { bank, bitmap });
    }
    Ok((count, first))
}

#[cfg(test)]
mod tests;
