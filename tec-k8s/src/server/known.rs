//! Machines and keys in compact form.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use tec_core::ak::{AkRecord, Shares, SourceNetwork};
use tec_core::id::MachineId;
use tec_core::machine::Machine;

use super::watch::follow;
use crate::api;

/// What is known about the machines and attestation keys of a namespace: about ten words for each.
#[derive(Debug, Default)]
pub struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By name of the object, so that a deletion finds it.
    machines: Table<Machine>,
    /// The networks that keys were submitted from, by name of the key's object.
    keys: Table<Option<SourceNetwork>>,
}

/// What is kept of an object, and the machine that it counts for.
type Row<R> = (Option<MachineId>, R);

/// Rows by name and by machine.
#[derive(Debug)]
struct Table<R> {
    rows: BTreeMap<String, Row<R>>,
    /// Set while a list is being received.
    initial: Option<BTreeMap<String, Row<R>>>,
    is_synced: bool,
    names: BTreeMap<MachineId, Vec<String>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), initial: None, is_synced: false, names: BTreeMap::new() }
    }
}

impl<R> Table<R> {
    fn put(&mut self, name: String, row: Row<R>) {
        self.remove(&name);
        if let Some(machine) = row.0 {
            self.names.entry(machine).or_default().push(name.clone());
        }
        self.rows.insert(name, row);
    }

    fn remove(&mut self, name: &str) {
        let Some((Some(machine), _)) = self.rows.remove(name) else {
            return;
        };
        if let Some(names) = self.names.get_mut(&machine) {
            names.retain(|other| other != name);
            if names.is_empty() {
                self.names.remove(&machine);
            }
        }
    }

    /// Processes an event; `row` returns what is kept of an object, if anything.
    fn take<K: kube::Resource>(&mut self, event: Event<K>, row: impl Fn(&K) -> Option<Row<R>>) {
        match event {
            Event::Init => self.initial = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                if let (Some(initial), Some(row)) = (&mut self.initial, row(&object)) {
                    initial.insert(object.name_any(), row);
                }
            }
            Event::InitDone => {
                let initial = self.initial.take().unwrap_or_default();
                (self.rows, self.names) = (BTreeMap::new(), BTreeMap::new());
                for (name, row) in initial {
                    self.put(name, row);
                }
                self.is_synced = true;
            }
            Event::Apply(object) => match row(&object) {
                Some(row) => self.put(object.name_any(), row),
                None => self.remove(&object.name_any()),
            },
            Event::Delete(object) => self.remove(&object.name_any()),
        }
    }

    fn of(&self, machine: &MachineId) -> &[String] {
        self.names.get(machine).map(Vec::as_slice).unwrap_or_default()
    }
}

/// An object that is malformed or being removed does not count.
fn machine_row(object: &api::Machine) -> Option<Row<Machine>> {
    let is_live = object.metadata.deletion_timestamp.is_none();
    let machine = object.to_core().ok().filter(|_| is_live)?;
    Some((Some(machine.id), machine))
}

impl Known {
    /// Follows the machines of a namespace forever.
    pub async fn follow_machines(&self, client: Client, namespace: &str) {
        follow(Api::namespaced(client, namespace), |event| {
            self.0.lock().machines.take(event, machine_row);
        })
        .await;
    }

    /// Follows the attestation keys of a namespace forever.
    pub async fn follow_keys(&self, client: Client, namespace: &str) {
        follow(Api::namespaced(client, namespace), |event| {
            let row = |key: &api::AttestationKey| Some(counted(key));
            self.0.lock().keys.take(event, row);
        })
        .await;
    }

    /// Whether every machine and key has been seen at least once.
    pub fn is_synced(&self) -> bool {
        let state = self.0.lock();
        state.machines.is_synced && state.keys.is_synced
    }

    /// The machine with this ID; if several objects have it, the first by name.
    pub(super) fn machine(&self, id: &MachineId) -> Option<Machine> {
        let state = self.0.lock();
        let name = state.machines.of(id).iter().min()?;
        state.machines.rows.get(name).map(|(_, machine)| machine.clone())
    }

    pub(super) fn has_key(&self, name: &str) -> bool {
        self.0.lock().keys.rows.contains_key(name)
    }

    /// Number of unrevoked keys of the machine of a key, and of those from the network of this key.
    pub(super) fn keys_beside(&self, key: &AkRecord) -> (u64, u64) {
        let state = self.0.lock();
        let (keys, mut shares) = (&state.keys, Shares::default());
        for (_, source) in keys.of(&key.machine).iter().filter_map(|name| keys.rows.get(name)) {
            shares.take(*source);
        }
        shares.take(key.source)
    }

    /// Adds a key before the watch reports it.
    pub(super) fn add_key(&self, name: String, key: &AkRecord) {
        self.0.lock().keys.put(name, (Some(key.machine), key.source));
    }
}

/// The machine that a key counts for; a revoked key counts for none.
fn counted(key: &api::AttestationKey) -> Row<Option<SourceNetwork>> {
    let machine = key.machine_id().ok();
    (machine.filter(|_| key.spec.revoked_at.is_none()), key.source())
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn key(name: &str) -> api::AttestationKey {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "AttestationKey",
            "metadata": { "name": name },
            "spec": { "publicKey": "any", "uuid": ID },
        }))
        .unwrap()
    }

    #[test]
    fn a_list_replaces_what_was_known_only_when_it_is_whole() {
        let machine = ID.parse().unwrap();
        let mut table = Table::default();
        let row = |key: &api::AttestationKey| Some(counted(key));
        table.take(Event::Apply(key("a")), row);
        table.take(Event::Init, row);
        table.take(Event::InitApply(key("b")), row);
        assert_eq!((table.of(&machine).len(), table.is_synced), (1, false));
        assert!(table.rows.contains_key("a"));
        table.take(Event::InitDone, row);
        assert_eq!(table.of(&machine), ["b"]);
        table.take(Event::Apply(key("b")), row);
        assert_eq!(table.of(&machine), ["b"]);
        table.take(Event::Delete(key("b")), row);
        assert_eq!((table.of(&machine).len(), table.names.len()), (0, 0));
    }

    #[test]
    fn keys_are_counted_by_network_before_the_watch_reports_them_and_after() {
        let known = Known::default();
        let key = |number: u64, network: u8| {
            let mut key = sample::ak(number, 1);
            key.source = Some(SourceNetwork::of([192, 0, 2, network].into()));
            key
        };
        known.add_key("a".to_owned(), &key(1, 1));
        for (name, key) in [("b", key(2, 1)), ("c", key(3, 2))] {
            let object = api::AttestationKey::from_core(&key);
            known.0.lock().keys.put(name.to_owned(), counted(&object));
        }
        assert_eq!(known.keys_beside(&key(9, 1)), (3, 2));
        assert_eq!(known.keys_beside(&key(9, 2)), (3, 1));
        assert_eq!(known.keys_beside(&key(9, 3)), (3, 0));
    }

    #[test]
    fn keys_that_were_revoked_make_room_for_others() {
        let machine = ID.parse().unwrap();
        let mut table = Table::default();
        let row = |key: &api::AttestationKey| Some(counted(key));
        for name in ["a", "b"] {
            table.take(Event::Apply(key(name)), row);
        }
        let mut revoked = key("a");
        revoked.spec.revoked_at = Some("2026-01-01T00:00:00Z".to_owned());
        table.take(Event::Apply(revoked), row);
        assert_eq!(table.of(&machine), ["b"]);
        assert!(table.rows.contains_key("a"), "it is known all the same");
    }
}
