//! Proves whether two anchors hold the same units, without revealing them.

use std::collections::BTreeMap;

use hkdf::hmac::digest::InvalidLength;
use hkdf::hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Serialize;
use sha2::Sha256;

use super::{MachineUnit, TrustAnchor, TrustUnit, UnitName};
use crate::ak::AkState;
use crate::digest::Sha256Digest;
use crate::image::ApprovedImage;
use crate::port::{PortError, PortErrorKind};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// Domain of a proof: HMAC-SHA-256(nonce, label ‖ parts), each part preceded by its length as eight
/// bytes, big-endian.
const LABEL: &[u8] = b"tec migrate proof v1\0";
/// Units compared at a time.
const PAGE: usize = 256;

/// What an anchor has of one unit, without revealing it: equal digests under a fresh nonce mean
/// equal keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Proof {
    /// Keyed digest of the keys and measurements.
    pub digest: Sha256Digest,
    /// How far each part is revoked, or when it expires, one number per part; greater is stricter.
    pub states: Vec<i64>,
    /// Keyed digests of the recovery keys, by number. The target may have more of them.
    pub escrows: BTreeMap<u32, Sha256Digest>,
}

impl Proof {
    /// How the unit at the other anchor differs from this one.
    fn difference(&self, other: &Self) -> Option<Difference> {
        if self == other {
            return None;
        }
        let alike = self.digest == other.digest && self.states.len() == other.states.len();
        let escrows = self.escrows.iter();
        let mut escrows = escrows.map(|(number, key)| other.escrows.get(number) == Some(key));
        if alike && !escrows.all(|carried| carried) {
            return Some(Difference::RecoveryKeys);
        }
        let mut states = self.states.iter().zip(&other.states);
        Some(if alike && states.all(|(here, there)| here <= there) {
            Difference::Stricter
        } else {
            Difference::Differs
        })
    }
}

/// Computes the proof of a unit.
///
/// # Security
/// A disk key enters as its SHA-256 digest. Keys are random, so neither the digest nor the proof
/// helps to guess them.
pub fn prove(nonce: &[u8; 32], unit: &TrustUnit) -> Result<Proof, PortError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        let what = format!("compute the proof of {}", unit.name());
        PortError::new(PortErrorKind::Internal, what).because(error)
    };
    let keyed = |parts| keyed(nonce, parts).map_err(|error| failed(error.into()));
    let (parts, states) = match unit {
        TrustUnit::Image(image) => image_parts(image).map_err(|error| failed(error.into()))?,
        TrustUnit::Machine(unit) => machine_parts(unit),
    };
    let mut escrows = BTreeMap::new();
    if let TrustUnit::Machine(unit) = unit {
        for (number, key) in &unit.escrows {
            escrows.insert(*number, keyed(escrow_parts(unit, *number, key))?);
        }
    }
    Ok(Proof { digest: keyed(parts)?, states, escrows })
}

fn keyed(nonce: &[u8; 32], parts: Vec<Vec<u8>>) -> Result<Sha256Digest, InvalidLength> {
    let mut mac = Hmac::<Sha256>::new_from_slice(nonce)?;
    mac.update(LABEL);
    for part in parts {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        mac.update(&length.to_be_bytes());
        mac.update(&part);
    }
    Ok(Sha256Digest::new(mac.finalize().into_bytes().into()))
}

fn escrow_parts(unit: &MachineUnit, number: u32, key: &SecretBytes) -> Vec<Vec<u8>> {
    let key = Sha256Digest::of(key.expose("prove that the other anchor has the same"));
    vec![
        b"recovery".to_vec(),
        unit.machine.id.to_string().into_bytes(),
        number.to_be_bytes().to_vec(),
        key.as_bytes().to_vec(),
    ]
}

/// What is hashed, and what is revealed.
type Parts = (Vec<Vec<u8>>, Vec<i64>);

fn image_parts(image: &ApprovedImage) -> Result<Parts, serde_json::Error> {
    let expected = serde_json::to_vec(&image.expected)?;
    let name = image.name.as_str().as_bytes().to_vec();
    let end = image.expires_at.map_or(i64::MAX, Timestamp::unix_seconds);
    let revoked = i64::from(image.revoked_at.is_some());
    Ok((vec![b"image".to_vec(), name, expected], vec![revoked, -end]))
}

/// How a machine was registered decides nothing, so it is left out.
fn machine_parts(unit: &MachineUnit) -> Parts {
    let id = unit.machine.id.to_string().into_bytes();
    let mut parts = vec![b"machine".to_vec(), id];
    let mut states = vec![
        unit.machine.state.strictness().into(),
        // A machine that was never bound takes the next key by first use.
        i64::from(unit.machine.was_bound()),
    ];
    for key in &unit.keys {
        parts.push(key.fingerprint().to_string().into_bytes());
        states.push(match key.state {
            AkState::Pending => 0,
            AkState::Bound => 1,
            AkState::Revoked => 2,
        });
    }
    let why = "prove that the other anchor has the same";
    let secret = unit.secret.as_ref();
    let secret = secret.map(|secret| Sha256Digest::of(secret.expose(why)));
    parts.push(secret.map_or_else(Vec::new, |digest| digest.as_bytes().to_vec()));
    (parts, states)
}

/// How two anchors differ in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Difference {
    /// The target does not have it.
    Missing,
    /// The target has a different one, or admits what the source shut out.
    Differs,
    /// The target lacks a recovery key that the machine deposited, or has a different one.
    RecoveryKeys,
    /// The target shut out what the source admits, or has additional recovery keys.
    Stricter,
    /// The source does not have it.
    Foreign,
}

impl Difference {
    /// Whether the target lacks something that the source has.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Missing | Self::Differs | Self::RecoveryKeys)
    }
}

/// One unit that differs between the anchors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Mismatch {
    /// The unit.
    pub unit: UnitName,
    /// How it differs.
    pub difference: Difference,
}

/// Compares everything that two anchors hold, page by page, and returns the differences.
pub async fn verify(
    source: &dyn TrustAnchor,
    target: &dyn TrustAnchor,
    nonce: &[u8; 32],
) -> Result<Vec<Mismatch>, PortError> {
    let (mut left, mut right) = (Proofs::of(source, nonce), Proofs::of(target, nonce));
    let mut found = Vec::new();
    loop {
        let (one, two) = (left.peek().await?, right.peek().await?);
        let (unit, difference) = match (one, two) {
            (None, None) => return Ok(found),
            (Some((unit, proof)), Some((other, theirs))) if unit == other => {
                left.advance();
                right.advance();
                let Some(difference) = proof.difference(&theirs) else {
                    continue;
                };
                (unit, difference)
            }
            (Some((unit, _)), other) if other.as_ref().is_none_or(|(other, _)| unit < *other) => {
                left.advance();
                (unit, Difference::Missing)
            }
            (_, Some((unit, _))) | (Some((unit, _)), None) => {
                right.advance();
                (unit, Difference::Foreign)
            }
        };
        found.push(Mismatch { unit, difference });
    }
}

/// The proofs of an anchor, read on demand.
struct Proofs<'a> {
    anchor: &'a dyn TrustAnchor,
    nonce: &'a [u8; 32],
    page: std::vec::IntoIter<(UnitName, Proof)>,
    head: Option<(UnitName, Proof)>,
    after: Option<UnitName>,
    ended: bool,
}

impl<'a> Proofs<'a> {
    fn of(anchor: &'a dyn TrustAnchor, nonce: &'a [u8; 32]) -> Self {
        Self { anchor, nonce, page: Vec::new().into_iter(), head: None, after: None, ended: false }
    }

    async fn peek(&mut self) -> Result<Option<(UnitName, Proof)>, PortError> {
        if self.head.is_none() {
            if self.page.len() == 0 && !self.ended {
                self.read().await?;
            }
            self.head = self.page.next();
        }
        Ok(self.head.clone())
    }

    fn advance(&mut self) {
        self.head = None;
    }

    async fn read(&mut self) -> Result<(), PortError> {
        let units = self.anchor.export(self.after.as_ref(), PAGE).await?;
        self.ended = units.len() < PAGE;
        let proofs: Result<Vec<_>, PortError> =
            units.iter().map(|unit| Ok((unit.name(), prove(self.nonce, unit)?))).collect();
        let proofs = proofs?;
        self.after = proofs.last().map(|(name, _)| name.clone());
        self.page = proofs.into_iter();
        Ok(())
    }
}
