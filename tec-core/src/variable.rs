//! Variables of the Secure Boot policy, as logs prove them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;

/// A variable of the Secure Boot policy, as measured into PCR 7.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "variable", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PolicyVariable {
    /// `SecureBoot`: whether signatures are checked.
    SecureBoot {
        /// The state.
        state: SecureBootState,
    },
    /// A key database.
    Keys {
        /// Name of the database.
        name: KeyDatabase,
        /// Digests of its entries, each with type and owner.
        entries: BTreeSet<Sha256Digest>,
    },
    /// The entry of a key database, or the revocation level, that a program was verified with.
    Authority,
}

/// State of Secure Boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecureBootState {
    /// The firmware runs only signed programs.
    On,
    /// It runs any program.
    Off,
}

/// A variable that holds signature lists (UEFI 2.10, 32.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyDatabase {
    /// `PK`: the platform key.
    Pk,
    /// `KEK`: the keys that sign changes of `db` and `dbx`.
    Kek,
    /// `db`: what may run.
    Db,
    /// `dbx`: what may not run.
    Dbx,
    /// `dbt`: who stamps the times of signatures.
    Dbt,
    /// `dbr`: what may recover the operating system.
    Dbr,
}

impl SecureBootState {
    /// `on` or `off`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl KeyDatabase {
    /// Name of the variable.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pk => "PK",
            Self::Kek => "KEK",
            Self::Db => "db",
            Self::Dbx => "dbx",
            Self::Dbt => "dbt",
            Self::Dbr => "dbr",
        }
    }

    /// Whether entries may be added without an approval: the firmware accepts an update of KEK only if PK signed
    /// it, and of the others only if a key in KEK did (UEFI 2.10, 8.2.2 and 32.5).
    pub(crate) fn may_grow(self) -> bool {
        self != Self::Pk
    }

    /// Whether firmware measures the variable only once it is set.
    pub(crate) fn may_appear(self) -> bool {
        matches!(self, Self::Dbt | Self::Dbr)
    }
}

/// A variable that the data of an event proves: the digest of the event is that of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedVariable {
    /// Number of the event.
    pub event: u32,
    /// The variable.
    pub variable: PolicyVariable,
}

impl LoggedVariable {
    /// A variable of an event.
    pub fn new(event: u32, variable: PolicyVariable) -> Self {
        Self { event, variable }
    }
}
