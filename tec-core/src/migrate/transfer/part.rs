//! What a part holds: JSON without secrets, then the secrets as raw bytes.
//!
//! ```text
//! length of the JSON, four bytes big-endian ‖ JSON ‖ secrets one after the other
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::TransferError;
use crate::ak::AkRecord;
use crate::image::ApprovedImage;
use crate::machine::Machine;
use crate::migrate::{MachineUnit, TrustUnit};
use crate::secret::SecretBytes;

/// A file of the source that is not a unit, such as the key of its CA.
#[derive(Debug)]
pub struct Document {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: SecretBytes,
}

/// The content of one part.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Part {
    /// Units, in order.
    pub units: Vec<TrustUnit>,
    /// Files.
    pub documents: Vec<Document>,
}

/// One item of a part, without its secret.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Thing {
    Image(ApprovedImage),
    Machine {
        machine: Machine,
        keys: Vec<AkRecord>,
        key_bytes: Option<usize>,
        /// Numbers and lengths of the recovery keys, which follow the disk key.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        recovery_bytes: Vec<(u32, usize)>,
    },
    Document {
        name: String,
        bytes: usize,
    },
}

pub(super) fn encode(
    units: &[TrustUnit],
    documents: &[Document],
) -> Result<Zeroizing<Vec<u8>>, TransferError> {
    const WHY: &str = "seal it for the other anchor";
    let mut things = Vec::new();
    let mut secrets: Vec<&SecretBytes> = Vec::new();
    for unit in units {
        things.push(match unit {
            TrustUnit::Image(image) => Thing::Image(image.clone()),
            TrustUnit::Machine(unit) => {
                secrets.extend(&unit.secret);
                secrets.extend(unit.escrows.values());
                let recovery = unit.escrows.iter();
                Thing::Machine {
                    machine: unit.machine.clone(),
                    keys: unit.keys.clone(),
                    key_bytes: unit.secret.as_ref().map(SecretBytes::len),
                    recovery_bytes: recovery.map(|(at, key)| (*at, key.len())).collect(),
                }
            }
        });
    }
    for document in documents {
        secrets.push(&document.content);
        things.push(Thing::Document { name: document.name.clone(), bytes: document.content.len() });
    }
    let json = serde_json::to_vec(&things)
        .map_err(|error| TransferError::malformed(format!("a part: {error}")))?;
    let length =
        u32::try_from(json.len()).map_err(|_| TransferError::malformed("a part is too long"))?;
    let total = secrets.iter().map(|secret| secret.len()).sum::<usize>();
    // Allocated in one go, so that a growing vector leaves no copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(4 + json.len() + total));
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&json);
    for secret in secrets {
        bytes.extend_from_slice(secret.expose(WHY));
    }
    Ok(bytes)
}

pub(super) fn decode(bytes: &[u8], number: u64) -> Result<Part, TransferError> {
    let broken = |what: &str| TransferError::malformed(format!("part {number}: {what}"));
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| broken("no length"))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    let (json, secrets) =
        rest.split_at_checked(length).ok_or_else(|| broken("the length is too great"))?;
    let things: Vec<Thing> =
        serde_json::from_slice(json).map_err(|error| broken(&error.to_string()))?;
    let mut secrets = Secrets(secrets);
    let mut part = Part::default();
    for thing in things {
        let short = || broken("a secret is missing");
        match thing {
            Thing::Image(image) => part.units.push(TrustUnit::Image(image)),
            Thing::Machine { machine, keys, key_bytes, recovery_bytes } => {
                let secret = match key_bytes {
                    Some(length) => Some(secrets.take(length).ok_or_else(short)?),
                    None => None,
                };
                if keys.iter().any(|key| key.machine != machine.id) {
                    return Err(broken("a key of another machine"));
                }
                let mut escrows = BTreeMap::new();
                for (number, length) in recovery_bytes {
                    let key = secrets.take(length).ok_or_else(short)?;
                    if escrows.insert(number, key).is_some() {
                        return Err(broken("two recovery keys of one number"));
                    }
                }
                let unit = MachineUnit::new(machine, keys, secret).with_escrows(escrows);
                part.units.push(TrustUnit::Machine(unit));
            }
            Thing::Document { name, bytes } => {
                let content = secrets.take(bytes).ok_or_else(short)?;
                part.documents.push(Document { name, content });
            }
        }
    }
    if secrets.0.is_empty() { Ok(part) } else { Err(broken("a secret of nobody")) }
}

struct Secrets<'a>(&'a [u8]);

impl Secrets<'_> {
    fn take(&mut self, length: usize) -> Option<SecretBytes> {
        let (secret, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(SecretBytes::new(secret.to_vec()))
    }
}
