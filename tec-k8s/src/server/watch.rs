//! Follows a kind of object.

use std::fmt::Debug;

use futures::StreamExt as _;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Passes on every event of a kind, forever. The stream retries failures with growing pauses.
pub(super) async fn follow<K>(api: Api<K>, mut each: impl FnMut(Event<K>))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                is_failing = false;
                each(event);
            }
            // Once for each outage.
            Err(error) if !is_failing => {
                is_failing = true;
                let error = tec_core::port::chain(&error);
                tracing::warn!(kind, error, "watch failed, will be tried again");
            }
            Err(_) => {}
        }
    }
}
