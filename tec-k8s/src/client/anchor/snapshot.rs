//! Everything that a namespace trusts, as found by one pass of lists.

use std::collections::BTreeMap;
use std::ops::Bound;

use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt as _};
use tec_core::ak::{AkRecord, AkState, Fingerprint};
use tec_core::id::{ImageName, MachineId, ResourcePath};
use tec_core::image::ApprovedImage;
use tec_core::machine::Machine;
use tec_core::migrate::{MachineUnit, TrustUnit, UnitName};
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;

use super::ADOPTED;
use crate::api;
use crate::client::pages::{each, whole_pages};
use crate::client::recovery::none_if_unknown;
use crate::client::secret::path_of;
use crate::client::{KubeRegistry, SECRET_KEY};

/// Whether an object came from another anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Here,
    Adopted,
}

fn origin(object: &impl Resource) -> Origin {
    if object.annotations().contains_key(ADOPTED) { Origin::Adopted } else { Origin::Here }
}

/// A machine, and the name of its object.
#[derive(Debug)]
pub(super) struct HereMachine {
    pub(super) name: String,
    pub(super) machine: Machine,
    origin: Origin,
    /// Whether its status records that a disk key was generated.
    had_secret: bool,
}

/// A key, and the name of its object.
#[derive(Debug)]
pub(super) struct HereKey {
    pub(super) name: String,
    pub(super) record: AkRecord,
}

/// Everything that is trusted here. Objects that are malformed or being removed do not count.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) images: BTreeMap<ImageName, (ApprovedImage, Origin)>,
    machines: BTreeMap<MachineId, HereMachine>,
    pub(super) keys: BTreeMap<Fingerprint, HereKey>,
    of_machine: BTreeMap<MachineId, Vec<Fingerprint>>,
    /// Secrets named like a machine; empty ones hold no disk key, but occupy its name.
    pub(super) secrets: BTreeMap<MachineId, SecretBytes>,
    /// The recovery keys that machines deposited.
    escrows: BTreeMap<MachineId, BTreeMap<u32, SecretBytes>>,
}

impl Snapshot {
    pub(super) async fn read(registry: &KubeRegistry) -> Result<Self, PortError> {
        let mut snapshot = Self::default();
        // The objects of the machines are needed until the keys are known.
        let mut objects: BTreeMap<MachineId, api::Machine> = BTreeMap::new();
        each(registry.objects(), whole_pages(), |object: api::Machine| {
            keep_machine(&mut objects, object);
        })
        .await?;
        each(registry.objects(), whole_pages(), |object: api::AttestationKey| {
            let machine = object.machine_id().ok();
            let machine = machine.and_then(|id| objects.get(&id));
            if let Ok(record) = object.to_core(machine) {
                snapshot.keep_key(object.name_any(), record);
            }
        })
        .await?;
        for (id, object) in objects {
            if let Ok(machine) = object.to_core() {
                let status = object.status.as_ref();
                let here = HereMachine {
                    name: object.name_any(),
                    machine,
                    origin: origin(&object),
                    had_secret: status.is_some_and(|status| status.key_secret.is_some()),
                };
                snapshot.machines.insert(id, here);
            }
        }
        each(registry.objects(), whole_pages(), |object: Secret| snapshot.keep_secret(object))
            .await?;
        let recovery = each(registry.objects(), whole_pages(), |object: api::RecoveryKey| {
            snapshot.keep_recovery(object);
        });
        none_if_unknown(recovery.await)?;
        each(registry.objects(), whole_pages(), |object: api::ApprovedImage| {
            if let Ok(image) = object.to_core() {
                let origin = origin(&object);
                snapshot.images.insert(image.name.clone(), (image, origin));
            }
        })
        .await?;
        Ok(snapshot)
    }

    fn keep_key(&mut self, name: String, record: AkRecord) {
        let key = record.fingerprint();
        let same = self.of_machine.entry(record.machine).or_default();
        if !same.contains(&key) {
            same.push(key);
        }
        // Of several objects for one key, the one with a decision counts: revoked, else bound.
        let rank = |record: &AkRecord| match record.state {
            AkState::Revoked => 2,
            AkState::Bound => 1,
            _ => 0,
        };
        let known = self.keys.get(&key);
        if known.is_none_or(|known| rank(&known.record) < rank(&record)) {
            self.keys.insert(key, HereKey { name, record });
        }
    }

    fn keep_secret(&mut self, object: Secret) {
        let Some(path) = path_of(&object.name_any()) else {
            return;
        };
        let bytes = object.data.and_then(|mut data| data.remove(SECRET_KEY));
        let bytes = SecretBytes::new(bytes.map(|bytes| bytes.0).unwrap_or_default());
        if let Some((id, number)) = path.recovery_of() {
            self.escrows.entry(id).or_default().insert(number, bytes);
        } else if let Some(id) = path.machine() {
            self.secrets.insert(id, bytes);
        }
    }

    /// Read after the Secrets: it takes precedence over a Secret with the same number.
    fn keep_recovery(&mut self, object: api::RecoveryKey) {
        let path = path_of(&object.name_any());
        if let Some((id, number)) = path.and_then(|path| path.recovery_of()) {
            let sealed = SecretBytes::new(object.spec.sealed.into_bytes());
            self.escrows.entry(id).or_default().insert(number, sealed);
        }
    }

    pub(super) fn machine(&self, id: &MachineId) -> Option<&HereMachine> {
        self.machines.get(id)
    }

    pub(super) fn image(&self, name: &ImageName) -> Option<&ApprovedImage> {
        self.images.get(name).map(|(image, _)| image)
    }

    pub(super) fn key(&self, key: &Fingerprint) -> Option<&HereKey> {
        self.keys.get(key)
    }

    pub(super) fn has_secret(&self, id: &MachineId) -> bool {
        self.secrets.contains_key(id)
    }

    /// Paths of the disk keys and recovery keys that are here.
    pub(super) fn paths(&self) -> Vec<ResourcePath> {
        let real = self.secrets.iter().filter(|(_, secret)| !is_empty(secret));
        let disk = real.map(|(id, _)| ResourcePath::luks_root(id));
        let recovery = self.escrows.keys().flat_map(|id| self.recovery_paths(id));
        disk.chain(recovery).collect()
    }

    /// Paths of the recovery keys that a machine deposited.
    pub(super) fn recovery_paths(&self, id: &MachineId) -> Vec<ResourcePath> {
        let numbers = self.escrows.get(id).into_iter().flat_map(BTreeMap::keys);
        numbers.map(|number| ResourcePath::recovery(id, *number)).collect()
    }

    /// Whether a recovery key here has the same number as a different incoming one.
    pub(super) fn has_other_escrow(&self, comes: &MachineUnit) -> bool {
        let here = self.escrows.get(&comes.machine.id).into_iter().flatten();
        let mut pairs = here.filter_map(|(number, key)| Some((key, comes.escrows.get(number)?)));
        pairs.any(|(here, comes)| !here.ct_eq(comes))
    }

    pub(super) fn has_escrow(&self, id: &MachineId, number: u32) -> bool {
        let of_machine = self.escrows.get(id);
        of_machine.is_some_and(|escrows| escrows.contains_key(&number))
    }

    /// A machine whose disk key was generated and lost. Another anchor would assume that the machine never
    /// had a key, and generate one.
    pub(super) fn lost_secret(&self) -> Option<MachineId> {
        let is_lost = |(id, here): &(&MachineId, &HereMachine)| {
            here.had_secret
                && !here.machine.state.is_final()
                && self.secrets.get(*id).is_none_or(is_empty)
        };
        self.machines.iter().find(is_lost).map(|(id, _)| *id)
    }

    pub(super) fn machine_unit(&self, id: &MachineId) -> Option<MachineUnit> {
        let machine = self.machines.get(id)?.machine.clone();
        let keys = self.of_machine.get(id).into_iter().flatten();
        let keys = keys.filter_map(|key| self.keys.get(key));
        let keys = keys.filter(|here| here.record.machine == *id);
        let keys = keys.map(|here| here.record.clone()).collect();
        let secret = self.secrets.get(id);
        let copy = |key: &SecretBytes| key.duplicate("the other anchor keeps it");
        let escrows = self.escrows.get(id).into_iter().flatten();
        let escrows = escrows.map(|(number, key)| (*number, copy(key))).collect();
        Some(MachineUnit::new(machine, keys, secret.map(copy)).with_escrows(escrows))
    }

    /// At most `limit` units with names greater than `after`, in order.
    pub(super) fn units(&self, after: Option<&UnitName>, limit: usize) -> Vec<TrustUnit> {
        let from_image = match after {
            None => Some(Bound::Unbounded),
            Some(UnitName::Image(name)) => Some(Bound::Excluded(name)),
            Some(_) => None,
        };
        let from_machine = match after {
            Some(UnitName::Machine(id)) => Bound::Excluded(id),
            _ => Bound::Unbounded,
        };
        let images = from_image.map(|from| self.images.range((from, Bound::Unbounded)));
        let images = images.into_iter().flatten();
        let images = images.map(|(_, (image, _))| TrustUnit::Image(image.clone()));
        let machines = self.machines.range((from_machine, Bound::Unbounded));
        let machines = machines.filter_map(|(id, _)| self.machine_unit(id)).map(|mut unit| {
            unit.secret = unit.secret.filter(|secret| !is_empty(secret));
            TrustUnit::Machine(unit)
        });
        images.chain(machines).take(limit).collect()
    }

    /// Names in order: all, or only those that were adopted.
    pub(super) fn names(&self, everything: bool) -> impl Iterator<Item = UnitName> {
        let counts = move |origin: Origin| everything || origin == Origin::Adopted;
        let images = self.images.iter();
        let images = images
            .filter(move |(_, (_, origin))| counts(*origin))
            .map(|(name, _)| UnitName::Image(name.clone()));
        let machines = self.machines.iter();
        let machines = machines
            .filter(move |(_, here)| counts(here.origin))
            .map(|(id, _)| UnitName::Machine(*id));
        images.chain(machines)
    }
}

/// Of several objects with the same ID, only one counts; see [`api::Machine::precedence`].
fn keep_machine(objects: &mut BTreeMap<MachineId, api::Machine>, mut object: api::Machine) {
    let Ok(id) = object.machine_id() else { return };
    // The field managers are most of an object, and nobody here needs them.
    object.metadata.managed_fields = None;
    if objects.get(&id).is_none_or(|known| object.precedence() < known.precedence()) {
        objects.insert(id, object);
    }
}

fn is_empty(secret: &SecretBytes) -> bool {
    secret.expose("see whether it is one").is_empty()
}
