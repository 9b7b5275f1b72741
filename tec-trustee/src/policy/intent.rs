//! What policies should enforce.

use std::collections::{BTreeMap, BTreeSet};

use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::pcr::PcrIndex;

use super::name::path_of;

/// Name of the claim in the token that says which machine attested.
pub const MACHINE_CLAIM: &str = "tec.machine";

/// Claim with the error code in the token of a refused attestation, which obtains nothing.
pub const REFUSED_CLAIM: &str = "tec.refused";
/// Its integer key, in the private-use range of CWT claims (RFC 8392, section 9.1: below -65536).
pub(super) const MACHINE_CLAIM_KEY: i64 = -75_001;
/// Keys that an extension claim may have: the private-use range of CWT claims (RFC 8392, section 9.1),
/// limited to 32 bits, which is what a token holds.
const PRIVATE_KEYS: std::ops::RangeInclusive<i64> = -2_147_483_648..=-65_537;
/// Keys of the claims `ear.veraison.*` in that range.
const VERAISON_KEYS: std::ops::RangeInclusive<i64> = -70_002..=-70_000;
/// Longest name and longest text of a claim.
const MAX_TEXT: usize = 128;

/// Minimum firmware versions of a processor, as reported in the SNP report (`REPORTED_TCB`, SEV-SNP firmware
/// ABI specification, table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnpTcb {
    /// Boot loader of the security processor.
    pub bootloader: u8,
    /// Operating system of the security processor.
    pub tee: u8,
    /// SNP firmware.
    pub snp: u8,
    /// Microcode.
    pub microcode: u8,
}

/// Requirements on the SNP report beneath a vTPM. Debugging is never accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnpRequirement {
    pub(super) is_measured: bool,
    pub(super) minimum: Option<SnpTcb>,
}

impl SnpRequirement {
    /// The launch measurement must be one of the reference values under
    /// [`SNP_MEASUREMENT`](super::SNP_MEASUREMENT), in standard base64.
    pub fn with_approved_measurement(mut self) -> Self {
        self.is_measured = true;
        self
    }

    /// No part of the reported TCB may be older.
    pub fn with_minimum_tcb(mut self, minimum: SnpTcb) -> Self {
        self.minimum = Some(minimum);
        self
    }
}

/// Value of an extension claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimValue {
    /// The quoted value of a register, in hexadecimal.
    Register(PcrIndex),
    /// A fixed text, for example the name of a cluster.
    Text(String),
}

/// What the policies should enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyIntent {
    pub(super) pinned: PinnedPcrs,
    pub(super) tees: BTreeSet<Tee>,
    pub(super) snp: SnpRequirement,
    /// By name: integer key, and value.
    pub(super) claims: BTreeMap<String, (i64, ClaimValue)>,
}

/// An intent cannot be expressed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyIntentError {
    /// No type of evidence would be accepted.
    #[error("a policy must accept at least one type of evidence")]
    NoTee,
    /// This type of evidence carries no key and no registers.
    #[error("evidence of type {0} proves nothing that a policy could rely on")]
    Tee(Tee),
    /// Something is required of SNP reports, but no accepted evidence contains one.
    #[error("the policy checks SNP reports, but accepts no evidence that contains one")]
    NoSnp,
    /// An extension claim has the name or key of another one, or a form that tokens cannot carry.
    #[error("the extension claim {name:?} with the key {key} is not allowed")]
    Claim {
        /// Name of the claim.
        name: String,
        /// Integer key of the claim.
        key: i64,
    },
}

impl PolicyIntent {
    /// Policies that require approved values of `pinned`, in evidence of one of `tees`, and bind each machine
    /// to its own disk key.
    ///
    /// # Errors
    /// `NoTee`; `Tee` for `sample`.
    ///
    /// # Security
    /// Evidence of Azure virtual machines names its key (`ak_public`) only if this project's verifier checked
    /// it; with other verifiers the policy denies it.
    pub fn new(
        pinned: PinnedPcrs,
        tees: impl IntoIterator<Item = Tee>,
    ) -> Result<Self, PolicyIntentError> {
        let tees: BTreeSet<_> = tees.into_iter().collect();
        if tees.is_empty() {
            return Err(PolicyIntentError::NoTee);
        }
        match tees.iter().find(|tee| path_of(**tee).is_none()) {
            Some(tee) => Err(PolicyIntentError::Tee(*tee)),
            None => {
                Ok(Self { pinned, tees, snp: SnpRequirement::default(), claims: BTreeMap::new() })
            }
        }
    }

    /// Sets requirements on the SNP report beneath a vTPM.
    pub fn with_snp(mut self, snp: SnpRequirement) -> Result<Self, PolicyIntentError> {
        if !self.tees.contains(&Tee::AzSnpVtpm) {
            return Err(PolicyIntentError::NoSnp);
        }
        self.snp = snp;
        Ok(self)
    }

    /// Publishes an additional claim in the token, under a name of `[A-Za-z0-9._-]` and an integer key below
    /// -65536 (private use, RFC 8392, section 9.1).
    ///
    /// # Errors
    /// `Claim`: the name or key is taken or invalid, or the text is longer than 128 characters or has control
    /// characters.
    pub fn with_claim(
        mut self,
        name: &str,
        key: i64,
        value: ClaimValue,
    ) -> Result<Self, PolicyIntentError> {
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_name = (1..=MAX_TEXT).contains(&name.len())
            && name.chars().all(word)
            && !name.starts_with("ear.")
            && name != MACHINE_CLAIM;
        let is_key = PRIVATE_KEYS.contains(&key)
            && !VERAISON_KEYS.contains(&key)
            && key != MACHINE_CLAIM_KEY
            && self.claims.values().all(|(taken, _)| *taken != key);
        let is_text = match &value {
            ClaimValue::Text(text) => {
                text.len() <= MAX_TEXT && text.chars().all(|c| c.is_ascii_graphic() || c == ' ')
            }
            ClaimValue::Register(_) => true,
        };
        let (name, is_free) = (name.to_owned(), !self.claims.contains_key(name));
        if !(is_name && is_key && is_text && is_free) {
            return Err(PolicyIntentError::Claim { name, key });
        }
        self.claims.insert(name, (key, value));
        Ok(self)
    }

    /// The registers that are compared.
    pub fn pinned(&self) -> PinnedPcrs {
        self.pinned
    }
}
