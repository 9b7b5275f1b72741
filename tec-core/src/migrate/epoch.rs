//! Names of anchors, and numbers of transfers and passes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identifier of a trust anchor: a random UUID that it generates when it is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AnchorId(Uuid);

impl AnchorId {
    /// Generates an identifier.
    pub fn random(rng: &mut dyn rand_core::CryptoRng) -> Self {
        let mut bytes = [0; 16];
        rng.fill_bytes(&mut bytes);
        Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }

    /// The 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl From<Uuid> for AnchorId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for AnchorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The string is not an anchor ID.
#[derive(Debug, thiserror::Error)]
#[error("the ID of a trust anchor must be a UUID such as 7c9e6679-7425-40de-944b-e07fc1f90ae7")]
#[non_exhaustive]
pub struct ParseAnchorIdError;

impl FromStr for AnchorId {
    type Err = ParseAnchorIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = Uuid::try_parse(text).map_err(|_| ParseAnchorIdError)?;
        Ok(Self(uuid))
    }
}

/// Number of a transfer of authority; it only increases.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// Creates an epoch from its number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The next epoch.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One pass of copying; pages of an earlier pass are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intake {
    pub(super) epoch: Epoch,
    pub(super) pass: u64,
}

impl Intake {
    /// Epoch of the giver.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}
