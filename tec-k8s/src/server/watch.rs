//! Follows a kind of object.

use futures::StreamExt as _;
use kube::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};

use crate::client::Object;

/// Passes on every event of a kind, forever. The stream retries failures with growing pauses.
pub(super) async fn follow<K: Object + Send + 'static>(
    api: Api<K>,
    mut each: impl FnMut(Event<K>),
) {
    let kind = K::kind(&()).into_owned();
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
