//! Objects as the last watch told of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt as _};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource, ResourceExt as _};
use tokio::sync::watch;

/// What an object is found by beside its name; empty for none.
type IndexOf<K> = fn(&K) -> Option<String>;

/// Objects of one kind by name, and by one more text.
pub(super) struct Cache<K> {
    state: Mutex<State<K>>,
    index_of: IndexOf<K>,
    is_synced: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<String, Arc<K>>,
    index: BTreeMap<String, BTreeSet<String>>,
    /// Names that a list that is under way has told of.
    listed: BTreeSet<String>,
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
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

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object of this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.state().objects.get(name).cloned()
    }

    /// Every object, in order of the names.
    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.state().objects.values().cloned().collect()
    }

    /// The objects that the index has under this text, in order of the names.
    pub(super) fn indexed(&self, text: &str) -> Vec<Arc<K>> {
        let state = self.state();
        let names = state.index.get(text).into_iter().flatten();
        names.filter_map(|name| state.objects.get(name).cloned()).collect()
    }

    /// Waits until the first list is complete.
    pub(super) async fn synced(&self) {
        // The sender lives as long as this value.
        let _ = self.is_synced.subscribe().wait_for(|is_synced| *is_synced).await;
    }

    /// Follows a watch for good; `changed` is called for each object that came, changed or went.
    pub(super) async fn follow(
        &self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
        changed: impl Fn(&K),
    ) where
        K: Clone + 'static,
    {
        // A watch that breaks off, or is too old (410), begins anew after a while.
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
        let mut state = self.state();
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

    /// Keeps the object; `None` when this very version was known.
    fn insert(&self, state: &mut State<K>, mut object: K) -> Option<Arc<K>> {
        // Who wrote which field is most of an object, and nobody here asks.
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
