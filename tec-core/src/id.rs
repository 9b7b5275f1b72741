//! Identifiers and names, parsed once at the edge.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::text::{debug_form, text_form};

/// Identifier of a machine: a UUID in hyphenated lowercase form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(Uuid);

/// The string is not a hyphenated UUID.
#[derive(Debug, thiserror::Error)]
#[error("a machine ID must be a hyphenated UUID such as 7c9e6679-7425-40de-944b-e07fc1f90ae7")]
#[non_exhaustive]
pub struct ParseMachineIdError;

fn random_uuid(rng: &mut dyn rand_core::CryptoRng) -> Uuid {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// Accepts exactly the 36-character hyphenated form in either case: other spellings would give one
/// machine two names in paths and files.
fn parse_uuid(text: &str) -> Option<Uuid> {
    if text.len() == 36 { Uuid::try_parse(text).ok() } else { None }
}

impl MachineId {
    /// A new random (version 4) ID.
    pub fn random(rng: &mut dyn rand_core::CryptoRng) -> Self {
        Self(random_uuid(rng))
    }

    /// The ID as a UUID.
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl FromStr for MachineId {
    type Err = ParseMachineIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_uuid(text).map(Self).ok_or(ParseMachineIdError)
    }
}

text_form!(MachineId, ParseMachineIdError);

impl From<Uuid> for MachineId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

debug_form!(MachineId);

/// Identifier of one attestation attempt; a refused node prints it, and an admin looks it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(Uuid);

impl AttemptId {
    /// A new random ID.
    pub fn random(rng: &mut dyn rand_core::CryptoRng) -> Self {
        Self(random_uuid(rng))
    }
}

impl FromStr for AttemptId {
    type Err = ParseAttemptIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_uuid(text).map(Self).ok_or(ParseAttemptIdError)
    }
}

/// The string is not an attempt ID.
#[derive(Debug, thiserror::Error)]
#[error("an attempt ID must be a hyphenated UUID")]
#[non_exhaustive]
pub struct ParseAttemptIdError;

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Name of an approved image: a Kubernetes object name (RFC 1123 subdomain, at most 253
/// characters), so that it survives a move to a cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName(String);

/// The string is not an image name.
#[derive(Debug, thiserror::Error)]
#[error(
    "an image name must have 1 to 253 characters of a-z, 0-9, '-' and '.', and begin and end with \
     a letter or digit"
)]
#[non_exhaustive]
pub struct ParseImageNameError;

impl FromStr for ImageName {
    type Err = ParseImageNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let label_ok = |label: &str| {
            label.starts_with(alphanumeric)
                && label.ends_with(alphanumeric)
                && label.chars().all(|c| alphanumeric(c) || c == '-')
        };
        if text.len() <= 253 && text.split('.').all(label_ok) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseImageNameError)
        }
    }
}

text_form!(ImageName, ParseImageNameError);

impl ImageName {
    /// The name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

debug_form!(ImageName);

/// Path of a KBS resource: `<repository>/<type>/<tag>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourcePath {
    text: String,
}

/// The string is not a resource path.
#[derive(Debug, thiserror::Error)]
#[error("a resource path must have three segments of A-Z, a-z, 0-9, '_', '-' and (not first) '.'")]
#[non_exhaustive]
pub struct ParseResourcePathError;

impl ResourcePath {
    /// Path of the key of a machine's root volume: `default/<uuid>/root`.
    pub fn luks_root(machine: &MachineId) -> Self {
        Self { text: format!("default/{machine}/root") }
    }

    /// Path of a recovery key that a machine deposited: `default/<uuid>/recovery-<number>`. It is
    /// not the path of a disk key, and so is never released.
    pub fn recovery(machine: &MachineId, number: u32) -> Self {
        Self { text: format!("default/{machine}/recovery-{number}") }
    }

    /// Path of a new key that waits until the machine's disk has a slot for it: `default/<uuid>/pending`. It
    /// is released to the machine alone, as [`Self::luks_root`]; a boot never asks for it.
    pub fn luks_pending(machine: &MachineId) -> Self {
        Self { text: format!("default/{machine}/pending") }
    }

    /// Path of the key that was replaced, until the machine has removed its slots: `default/<uuid>/previous`.
    pub fn luks_previous(machine: &MachineId) -> Self {
        Self { text: format!("default/{machine}/previous") }
    }

    /// The machine whose disk key is stored here, whether it is the current one, a pending one or a previous
    /// one.
    pub fn disk_key_of(&self) -> Option<MachineId> {
        let (id, _) = self.text.strip_prefix("default/")?.split_once('/')?;
        let machine: MachineId = id.parse().ok()?;
        // One key has one path.
        let paths = [Self::luks_root, Self::luks_pending, Self::luks_previous];
        paths.iter().any(|path| path(&machine) == *self).then_some(machine)
    }

    /// The machine that deposited the recovery key stored here, and its number, if this is such a
    /// path.
    pub fn recovery_of(&self) -> Option<(MachineId, u32)> {
        let (id, number) = self.text.strip_prefix("default/")?.split_once("/recovery-")?;
        let (machine, number) = (id.parse().ok()?, number.parse().ok()?);
        // One key has one path.
        (Self::recovery(&machine, number) == *self).then_some((machine, number))
    }

    /// The machine whose disk key is stored here, if this is such a path.
    pub fn machine(&self) -> Option<MachineId> {
        let id = self.text.strip_prefix("default/")?.strip_suffix("/root")?;
        // Parsing accepts upper case, but a path must not: one machine has one path.
        let machine: MachineId = id.parse().ok()?;
        (machine.to_string() == id).then_some(machine)
    }

    /// The whole path as a string.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The three segments.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.text.split('/')
    }
}

impl FromStr for ResourcePath {
    type Err = ParseResourcePathError;

    /// Rules of the KBS: a segment never starts with a dot, so no segment can be `.` or `..`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let segment_ok = |segment: &str| {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            segment.starts_with(word) && segment.chars().all(|c| word(c) || c == '.')
        };
        if text.len() <= 768 && text.split('/').count() == 3 && text.split('/').all(segment_ok) {
            Ok(Self { text: text.to_owned() })
        } else {
            Err(ParseResourcePathError)
        }
    }
}

text_form!(ResourcePath, ParseResourcePathError);

impl fmt::Display for ResourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

debug_form!(ResourcePath);

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    #[test]
    fn only_the_hyphenated_form_is_a_machine_id() {
        assert_eq!(ID.parse::<MachineId>().unwrap().to_string(), ID);
        assert_eq!(ID.to_uppercase().parse::<MachineId>().unwrap().to_string(), ID);
        for bad in ["", "x", "7c9e6679742540de944be07fc1f90ae7", &format!("{{{ID}}}"), "../../etc"]
        {
            assert!(bad.parse::<MachineId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_machine_has_one_path() {
        let machine: MachineId = ID.parse().unwrap();
        let path = ResourcePath::luks_root(&machine);
        assert_eq!(path.as_str().parse::<ResourcePath>().unwrap().machine(), Some(machine));
        let upper: ResourcePath = format!("default/{}/root", ID.to_uppercase()).parse().unwrap();
        assert_eq!(upper.machine(), None);
    }

    #[test]
    fn keys_of_a_rotation_belong_to_the_machine_and_recovery_keys_are_no_disk_keys() {
        let machine: MachineId = ID.parse().unwrap();
        let paths =
            [ResourcePath::luks_root, ResourcePath::luks_pending, ResourcePath::luks_previous];
        for path in paths.map(|path| path(&machine)) {
            let parsed: ResourcePath = path.as_str().parse().unwrap();
            assert_eq!(parsed.disk_key_of(), Some(machine), "{path}");
        }
        assert_eq!(ResourcePath::luks_pending(&machine).machine(), None, "no boot asks for it");
        let upper: ResourcePath = format!("default/{}/pending", ID.to_uppercase()).parse().unwrap();
        for path in [ResourcePath::recovery(&machine, 1), upper] {
            assert_eq!(path.disk_key_of(), None, "{path}");
        }
    }

    #[test]
    fn paths_cannot_climb() {
        for bad in ["a/b", "a/b/c/d", "a//c", "../b/c", "a/.b/c", "a/b/c?", "a/b/\u{e9}"] {
            assert!(bad.parse::<ResourcePath>().is_err(), "{bad}");
        }
        assert!("default/x.y/tag-1".parse::<ResourcePath>().is_ok());
    }

    #[test]
    fn image_names_are_object_names() {
        assert!("fedora-44.20261101".parse::<ImageName>().is_ok());
        for bad in ["", "A", "-a", "a-", "a..b", "a/b", &"a".repeat(254)] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad}");
        }
    }
}
