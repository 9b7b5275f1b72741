//! Objects as last reported by the watch.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The index value of an object, besides its name; `None` if it has none.
type IndexOf<K> = fn(&K) -> Option<String>;

/// Objects of one kind, by name and by one more string.
#[derive(derive_more::Debug)]
#[debug("Cache {{ .. }}")]
pub(super) struct Cache<K> {
    state: Mutex<State<K>>,
    index_of: IndexOf<K>,
    is_synced: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<String, Arc<K>>,
    index: BTreeMap<String, BTreeSet<String>>,
    /// Names reported so far by a list that is under way.
    listed: BTreeSet<String>,
}

impl<K: Resource> Cache<K> {
    pub(super) fn new(index_of: IndexOf<K>) -> Self {
        Self {
            state: Mutex::new(State {
                objects: BTreeMap::new(),
                index: BTreeMap::new(),
                listed: BTreeSet::new(),
            }),
            index_of,
            is_synced: watch::Sender::new(false),
        }
    }

    /// The object with this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.state.lock().objects.get(name).cloned()
    }

    /// Every object, ordered by name.
    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.state.lock().objects.values().cloned().collect()
    }

    /// The objects that the index has under this string, ordered by name.
    pub(super) fn indexed(&self, text: &str) -> Vec<Arc<K>> {
        let state = self.state.lock();
        let names = state.index.get(text).into_iter().flatten();
        names.filter_map(|name| state.objects.get(name).cloned()).collect()
    }

    /// Waits until the first list is complete.
    pub(super) async fn synced(&self) {
        // The sender lives as long as this value.
        let _ = self.is_synced.subscribe().wait_for(|is_synced| *is_synced).await;
    }

    pub(super) fn is_synced(&self) -> bool {
        *self.is_synced.borrow()
    }

    /// Follows a watch forever; calls `changed` for each object that appeared, changed or was removed.
    pub(super) async fn follow(
        &self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
        changed: impl Fn(&K),
    ) where
        K: Clone + 'static,
    {
        // A watch that is interrupted or too old (410) starts anew after a while.
        let mut events = pin!(events.default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    for object in self.apply(event) {
                        changed(&object);
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %error, "a watch broke off and begins anew");
                }
            }
        }
    }

    fn apply(&self, event: Event<K>) -> Vec<Arc<K>>
    where
        K: Clone,
    {
        let mut state = self.state.lock();
        match event {
            Event::Init => {
                state.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                state.listed.insert(object.name_any());
                self.insert(&mut state, object).into_iter().collect()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut state.listed);
                let gone: Vec<String> =
                    state.objects.keys().filter(|name| !listed.contains(*name)).cloned().collect();
                let gone = gone.iter().filter_map(|name| self.remove(&mut state, name)).collect();
                self.is_synced.send_replace(true);
                gone
            }
            Event::Apply(object) => self.insert(&mut state, object).into_iter().collect(),
            Event::Delete(object) => {
                self.remove(&mut state, &object.name_any());
                vec![Arc::new(object)]
            }
        }
    }

    /// Stores the object; `None` if exactly this version was known.
    fn insert(&self, state: &mut State<K>, mut object: K) -> Option<Arc<K>> {
        // The field managers are most of an object, and nobody here needs them.
        object.meta_mut().managed_fields = None;
        let name = object.name_any();
        let known = state.objects.get(&name);
        if known.is_some_and(|known| known.resource_version() == object.resource_version()) {
            return None;
        }
        self.remove(state, &name);
        if let Some(text) = (self.index_of)(&object) {
            state.index.entry(text).or_default().insert(name.clone());
        }
        let object = Arc::new(object);
        state.objects.insert(name, Arc::clone(&object));
        Some(object)
    }

    fn remove(&self, state: &mut State<K>, name: &str) -> Option<Arc<K>> {
        let object = state.objects.remove(name)?;
        if let Some(text) = (self.index_of)(&object)
            && let Some(names) = state.index.get_mut(&text)
        {
            names.remove(name);
            if names.is_empty() {
                state.index.remove(&text);
            }
        }
        Some(object)
    }
}
