//! What an anchor holds, as units that move one at a time.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ak::AkRecord;
use crate::id::{ImageName, MachineId};
use crate::image::ApprovedImage;
use crate::machine::Machine;
use crate::secret::SecretBytes;

/// Name of a unit. Images sort before machines, so that what a boot is checked against arrives
/// before the keys that the boot may obtain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "name")]
#[non_exhaustive]
pub enum UnitName {
    /// An approved image.
    Image(ImageName),
    /// A machine with its attestation keys, its disk key and its recovery keys.
    Machine(MachineId),
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(name) => write!(f, "image {name}"),
            Self::Machine(id) => write!(f, "machine {id}"),
        }
    }
}

/// A machine with everything that is trusted about it. No part of it means anything without the
/// others.
#[derive(Debug)]
#[non_exhaustive]
pub struct MachineUnit {
    /// The machine.
    pub machine: Machine,
    /// Its attestation keys, in order of their fingerprints.
    pub keys: Vec<AkRecord>,
    /// Its disk key, if one was generated.
    pub secret: Option<SecretBytes>,
    /// The recovery keys that it deposited, sealed to an admin, by number.
    pub escrows: BTreeMap<u32, SecretBytes>,
}

impl MachineUnit {
    /// A machine with its keys, without recovery keys.
    pub fn new(machine: Machine, mut keys: Vec<AkRecord>, secret: Option<SecretBytes>) -> Self {
        keys.sort_by_key(AkRecord::fingerprint);
        Self { machine, keys, secret, escrows: BTreeMap::new() }
    }

    /// Adds recovery keys.
    pub fn with_escrows(mut self, escrows: BTreeMap<u32, SecretBytes>) -> Self {
        self.escrows = escrows;
        self
    }

    /// A second copy, made explicitly.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let copy = |secret: &SecretBytes| secret.duplicate("the other anchor keeps it");
        let escrows = self.escrows.iter();
        Self {
            machine: self.machine.clone(),
            keys: self.keys.clone(),
            secret: self.secret.as_ref().map(copy),
            escrows: escrows.map(|(number, key)| (*number, copy(key))).collect(),
        }
    }
}

/// One unit.
#[derive(Debug)]
#[non_exhaustive]
pub enum TrustUnit {
    /// An approved image.
    Image(ApprovedImage),
    /// A machine.
    Machine(MachineUnit),
}

impl TrustUnit {
    /// Its name.
    pub fn name(&self) -> UnitName {
        match self {
            Self::Image(image) => UnitName::Image(image.name.clone()),
            Self::Machine(unit) => UnitName::Machine(unit.machine.id),
        }
    }
}
