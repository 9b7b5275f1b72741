//! The changes to make in a cluster.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretBytes;

use super::form::Form;
use super::pod::Pod;

/// What happens to one key of an object.
#[derive(Debug)]
pub enum Change<T> {
    /// Its content is set to this.
    Set(T),
    /// It is removed.
    Remove,
}

/// What happens to an object.
#[derive(Debug)]
pub enum Object<T> {
    /// It is created if it does not exist, and these of its keys are changed. Other keys stay.
    Merge(BTreeMap<String, Change<T>>),
    /// It is deleted.
    Delete,
}

/// Digests of what is in a cluster, limited to our objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observed {
    /// ConfigMaps: SHA-256 of each value by name and key.
    pub config_maps: BTreeMap<String, BTreeMap<String, Sha256Digest>>,
    /// Secrets: the same.
    pub secrets: BTreeMap<String, BTreeMap<String, Sha256Digest>>,
    /// The annotation of the pod template.
    pub restart_digest: Option<Sha256Digest>,
}

/// The whole difference: however many machines came and went, it is one patch and at most one new pod.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Patch {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, Object<Vec<u8>>>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Object<SecretBytes>>,
    /// Our part of the pod template, if a new pod is needed.
    pub pod: Option<Pod>,
}

impl Patch {
    /// The patch from `observed` to `form`.
    pub fn between(observed: &Observed, form: Form) -> Self {
        let mut secrets = observed.secrets.clone();
        for (name, key) in &form.kept {
            let data = secrets.get_mut(name);
            let is_bare = data.is_some_and(|data| data.remove(key).is_some() && data.is_empty());
            if is_bare && !form.secrets.contains_key(name) {
                secrets.remove(name);
            }
        }
        let is_current = observed.restart_digest == Some(form.pod.restart_digest);
        Self {
            config_maps: objects(&observed.config_maps, form.config_maps, |value| {
                Sha256Digest::of(value)
            }),
            secrets: objects(&secrets, form.secrets, |value| {
                Sha256Digest::of(value.expose("its digest tells whether it changed"))
            }),
            pod: (!is_current).then_some(form.pod),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes() == 0
    }

    /// Number of keys and objects that change, plus one for the pod.
    pub fn changes(&self) -> usize {
        let config_maps = self.config_maps.values().map(weight);
        let secrets = self.secrets.values().map(weight);
        config_maps.chain(secrets).sum::<usize>() + usize::from(self.pod.is_some())
    }
}

fn weight<T>(object: &Object<T>) -> usize {
    match object {
        Object::Merge(keys) => keys.len().max(1),
        Object::Delete => 1,
    }
}

fn objects<T>(
    there: &BTreeMap<String, BTreeMap<String, Sha256Digest>>,
    wanted: BTreeMap<String, BTreeMap<String, T>>,
    digest: impl Fn(&T) -> Sha256Digest,
) -> BTreeMap<String, Object<T>> {
    let mut changes = BTreeMap::new();
    for name in there.keys().filter(|name| !wanted.contains_key(*name)) {
        changes.insert(name.clone(), Object::Delete);
    }
    for (name, data) in wanted {
        let known = there.get(&name);
        let at = |key: &String| known.and_then(|known| known.get(key));
        let gone = known.into_iter().flat_map(BTreeMap::keys);
        let gone = gone.filter(|key| !data.contains_key(*key)).cloned().collect::<Vec<_>>();
        let mut keys: BTreeMap<String, Change<T>> = data
            .into_iter()
            .filter(|(key, value)| at(key) != Some(&digest(value)))
            .map(|(key, value)| (key, Change::Set(value)))
            .collect();
        keys.extend(gone.into_iter().map(|key| (key, Change::Remove)));
        if !keys.is_empty() || known.is_none() {
            changes.insert(name, Object::Merge(keys));
        }
    }
    changes
}
