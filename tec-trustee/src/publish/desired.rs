//! What every Trustee should hold.

mod state;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tec_core::ak::PublicKey;
use tec_core::digest::Sha256Digest;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::ApprovedImage;
use tec_core::pcr::PcrIndex;
use tec_core::secret::SecretBytes;
use tokio::sync::watch;

pub(super) use self::state::{Content, Entry, State, canonical};
use super::index;
use super::item::{Item, ParseItemError, ReferenceName};
use crate::policy::{PolicyIntent, ak_reference_name, ak_reference_value, pcr_reference_name};

/// The desired state of every target: policies, reference values, secrets, and for the mounted form images.
///
/// Share it: all methods take `&self`. A change takes effect immediately, costs O(log n) in the number of
/// items, and waits for no target. Setting a value that is already set changes nothing. Every change has a
/// number, the [`revision`](Self::revision), by which the latest change of each item is indexed, so that a
/// publisher looks only at what changed since it last finished.
///
/// # State everything first
/// Items that are not desired are withdrawn from every target. After a restart, state what all registries
/// hold before the first call of [`publish`](super::Publisher::publish).
pub struct Desired {
    state: Mutex<State>,
    /// The revision, for callers that wait for the next one.
    latest: watch::Sender<u64>,
}

/// Something cannot be part of the desired state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DesiredError {
    /// The name is not legal for every storage back end.
    #[error("the name of a reference value is invalid")]
    Name(#[source] ParseItemError),
    /// The name is one under which publishers keep their own notes.
    #[error("the name {0} is reserved for the publisher")]
    Reserved(ReferenceName),
    /// Another key has the same name; its value must not be overwritten.
    #[error("another attestation key is stored under the name {0}")]
    KeyNameTaken(ReferenceName),
}

impl fmt::Debug for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desired")
            .field("revision", &self.revision())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Desired {
    /// Contains only the two policies.
    pub fn new(attestation: impl Into<String>, resource: impl Into<String>) -> Self {
        let desired = Self { state: Mutex::default(), latest: watch::Sender::default() };
        desired.set_policies(attestation, resource);
        desired
    }

    /// Contains only the policies of `intent`.
    pub fn from_intent(intent: &PolicyIntent) -> Self {
        Self::new(intent.render_attestation(), intent.render_resource())
    }

    /// Number of changes so far.
    pub fn revision(&self) -> u64 {
        self.state.lock().revision()
    }

    /// Waits until there is a change after `revision`, and returns the number of the latest.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn changed(&self, revision: u64) -> u64 {
        let mut latest = self.latest.subscribe();
        match latest.wait_for(|latest| *latest > revision).await {
            Ok(latest) => *latest,
            // The sender is part of this value, so it still exists.
            Err(_) => self.revision(),
        }
    }

    /// Number of policies, reference values and secrets.
    pub fn len(&self) -> usize {
        self.state.lock().len()
    }

    /// Whether there is nothing but policies.
    pub fn is_empty(&self) -> bool {
        self.state.lock().items().all(|(item, _)| item.is_policy())
    }

    /// Replaces both policies.
    pub fn set_policies(&self, attestation: impl Into<String>, resource: impl Into<String>) {
        let (attestation, resource) = (attestation.into(), resource.into());
        self.change(|state| {
            state.set(Item::AttestationPolicy, Content::Policy(attestation));
            state.set(Item::ResourcePolicy, Content::Policy(resource));
        });
    }

    /// Sets a reference value of any name.
    pub fn set_reference(&self, name: &str, value: Value) -> Result<(), DesiredError> {
        let name: ReferenceName = name.parse().map_err(DesiredError::Name)?;
        if index::is_reserved(&name) {
            return Err(DesiredError::Reserved(name));
        }
        self.change(|state| state.set(Item::Reference(name), Content::Reference(value)));
        Ok(())
    }

    /// Removes a reference value; targets then hold an empty one under its name.
    pub fn remove_reference(&self, name: &ReferenceName) {
        self.change(|state| state.remove(&Item::Reference(name.clone())));
    }

    /// Sets the values that a register may have, sorted and without duplicates. No values means an empty
    /// list: no boot is accepted.
    ///
    /// # Errors
    /// Never: the names of registers are legal.
    pub fn set_pcr(
        &self,
        pcr: PcrIndex,
        values: impl IntoIterator<Item = Sha256Digest>,
    ) -> Result<(), DesiredError> {
        let mut values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
        values.sort_unstable();
        values.dedup();
        self.set_reference(&pcr_reference_name(pcr), values.into())
    }

    /// Binds an attestation key to a machine: one small value.
    ///
    /// # Errors
    /// A different key with the same name is bound.
    pub fn bind_key(&self, ak: &PublicKey, machine: &MachineId) -> Result<(), DesiredError> {
        let name = ak_reference_name(ak).parse().map_err(DesiredError::Name)?;
        let item = Item::Reference(name);
        self.change(|state| match (state.reference(&item), &item) {
            (Some(known), Item::Reference(name)) if !is_of(known, ak) => {
                Err(DesiredError::KeyNameTaken(name.clone()))
            }
            _ => {
                state.set(item, Content::Reference(ak_reference_value(ak, machine)));
                Ok(())
            }
        })
    }

    /// Removes the binding of a key; that of another machine with the same name stays.
    pub fn unbind_key(&self, ak: &PublicKey) {
        let Ok(name) = ak_reference_name(ak).parse() else {
            return;
        };
        let item = Item::Reference(name);
        self.change(|state| {
            if state.reference(&item).is_some_and(|known| is_of(known, ak)) {
                state.remove(&item);
            }
        });
    }

    /// Sets a secret.
    ///
    /// # Security
    /// A plain hash of it is also stored in the targets, to be compared after a restart. It reveals nothing
    /// about a secret that nobody can guess, such as a disk key.
    pub fn put_secret(&self, path: ResourcePath, secret: SecretBytes) {
        self.change(|state| state.set(Item::Secret(path), Content::Secret(secret)));
    }

    /// Leaves what targets hold under a path as it is: nothing is sent or removed. Use it for a secret that
    /// was lost here and that only targets still have. A secret that is set stays set.
    pub fn keep_secret(&self, path: ResourcePath) {
        self.change(|state| state.keep(Item::Secret(path)));
    }

    /// Removes a secret, including one that was only kept.
    pub fn remove_secret(&self, path: &ResourcePath) {
        self.change(|state| state.remove(&Item::Secret(path.clone())));
    }

    /// Sets the images listed in the ConfigMap `image-pcrs`. Only the mounted form has one.
    pub fn set_images(&self, images: impl IntoIterator<Item = ApprovedImage>) {
        let mut images: Vec<_> = images.into_iter().collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        self.change(|state| state.set_images(images));
    }

    /// The desired state at this moment. Changes wait in the meantime, so the reader must be quick.
    pub(super) fn read<T>(&self, reader: impl FnOnce(&State) -> T) -> T {
        reader(&self.state.lock())
    }

    /// The content of an item at this moment.
    pub(super) fn entry(&self, item: &Item) -> Option<Arc<Entry>> {
        self.state.lock().entry(item).map(Arc::clone)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let outcome = change(&mut state);
        let revision = state.revision();
        self.latest.send_if_modified(|latest| std::mem::replace(latest, revision) != revision);
        outcome
    }
}

/// Whether the reference value under a key's name belongs to exactly this key.
fn is_of(known: &Value, ak: &PublicKey) -> bool {
    known.get("ak").and_then(Value::as_str) == Some(ak.to_base64().as_str())
}
