//! Approved images, and the measurements made when they boot.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::id::ImageName;
use crate::pcr::PcrIndex;
use crate::time::Timestamp;

/// One measurement made when an image boots.
///
/// The JSON form is that of the image label `org.coreos.pcrs` (`name`, `pcr`, `hash`, `id`), with
/// `source` added when the file is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ImageEvent {
    /// Name of the event for humans, for example `EV_EFI_BOOT_SERVICES_APPLICATION`.
    pub name: String,
    /// Register that it extends.
    pub pcr: PcrIndex,
    /// Digest that it extends the register with.
    pub hash: Sha256Digest,
    /// Part of the boot chain that causes it, for example `Pcr4Shim`.
    pub id: String,
    /// File that the digest was computed from, relative to the image's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl ImageEvent {
    /// An event; `source` is set with [`from_file`](Self::from_file).
    pub fn new(
        name: impl Into<String>,
        pcr: PcrIndex,
        hash: Sha256Digest,
        id: impl Into<String>,
    ) -> Self {
        Self { name: name.into(), pcr, hash, id: id.into(), source: None }
    }

    /// Records which file the digest was computed from.
    pub fn from_file(mut self, path: impl Into<String>) -> Self {
        self.source = Some(path.into());
        self
    }
}

/// The value of one register after an image booted, with the events that produce it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpectedPcr {
    /// Register.
    pub id: PcrIndex,
    /// Its value.
    pub value: Sha256Digest,
    /// The measurements in order.
    pub events: Vec<ImageEvent>,
}

impl ExpectedPcr {
    /// Folds `events` into the value of register `id`, ignoring events of other registers.
    pub fn from_events(id: PcrIndex, events: impl IntoIterator<Item = ImageEvent>) -> Self {
        let events: Vec<_> = events.into_iter().filter(|e| e.pcr == id).collect();
        let value = events.iter().fold(Sha256Digest::ZERO, |pcr, e| pcr.extended(&e.hash));
        Self { id, value, events }
    }

    /// Whether folding the events gives this value.
    pub fn is_consistent(&self) -> bool {
        let folded = self.events.iter().fold(Sha256Digest::ZERO, |pcr, e| pcr.extended(&e.hash));
        self.events.iter().all(|e| e.pcr == self.id) && folded == self.value
    }
}

/// The label form: `{"pcrs":[…]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpectedPcrs {
    /// One entry per register, in index order.
    pub pcrs: Vec<ExpectedPcr>,
    /// Whether every command line of the boot names a hash of its root file system; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_hash: Option<bool>,
    /// Whether a machine is held to its first accepted boot of the image, for the registers that are not stated:
    /// see [`ImageBoot`](crate::platform::ImageBoot).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_boot: bool,
}

impl ExpectedPcrs {
    /// Sorts by register.
    pub fn new(mut pcrs: Vec<ExpectedPcr>) -> Self {
        pcrs.sort_by_key(|p| p.id);
        Self { pcrs, root_hash: None, first_boot: false }
    }

    /// Whether no register is covered.
    pub fn is_empty(&self) -> bool {
        self.pcrs.is_empty()
    }

    /// Whether each register occurs once and its events fold to its value. Unsound measurements are
    /// ignored: no boot can produce them.
    pub fn is_sound(&self) -> bool {
        let ids: BTreeSet<PcrIndex> = self.pcrs.iter().map(|pcr| pcr.id).collect();
        ids.len() == self.pcrs.len() && self.pcrs.iter().all(ExpectedPcr::is_consistent)
    }

    /// What booting the image leaves in one register, if the measurements cover it.
    pub fn pcr(&self, id: PcrIndex) -> Option<&ExpectedPcr> {
        self.pcrs.iter().find(|p| p.id == id)
    }
}

/// An image whose boots may obtain keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ApprovedImage {
    /// Name, unique in the registry.
    pub name: ImageName,
    /// Where it came from: an image reference with digest, or a directory.
    pub reference: String,
    /// What booting it measures.
    #[serde(flatten)]
    pub expected: ExpectedPcrs,
    /// When it was approved.
    pub approved_at: Timestamp,
    /// When the approval expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When the approval was revoked; kept so that a refusal can give the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl ApprovedImage {
    /// An approval that never expires.
    pub fn new(
        name: ImageName,
        reference: impl Into<String>,
        expected: ExpectedPcrs,
        approved_at: Timestamp,
    ) -> Self {
        Self {
            name,
            reference: reference.into(),
            expected,
            approved_at,
            expires_at: None,
            revoked_at: None,
        }
    }

    /// Whether boots of this image may obtain keys at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain whose digests are those of a real Fedora boot.
    #[test]
    fn folding_the_events_gives_the_register() {
        let digests = [
            "3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba",
            "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119",
            "94896c17d49fc8c8df0cc2836611586edab1615ce7cb58cf13fc5798de56b367",
            "bc6844fc7b59b4f0c7da70a307fc578465411d7a2c34b0f4dc2cc154c873b644",
            "72c613f1b4d60dcf51f82f3458cca246580d23150130ec6751ac6fa62c867364",
        ];
        let events =
            digests.map(|d| ImageEvent::new("E", PcrIndex::BOOT_MANAGER, d.parse().unwrap(), "Id"));
        let pcr = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, events);
        assert_eq!(
            pcr.value.to_string(),
            "ff2b357be4a4bc66be796d4e7b2f1f27077dc89b96220aae60b443bcf4672525"
        );
        assert!(pcr.is_consistent());
    }

    #[test]
    fn an_approval_ends_by_expiry_and_by_revocation() {
        let at = Timestamp::from_unix_seconds;
        let mut image =
            ApprovedImage::new("a".parse().unwrap(), "ref", ExpectedPcrs::default(), at(0));
        assert!(image.is_live(at(10)));
        image.expires_at = Some(at(10));
        assert!(image.is_live(at(9)) && !image.is_live(at(10)));
        image.expires_at = None;
        image.revoked_at = Some(at(5));
        assert!(!image.is_live(at(4)));
    }
}
