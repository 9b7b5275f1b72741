//! Approved images from a watch that proves it is alive.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::TryStreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use tec_core::id::ImageName;
use tec_core::image::ApprovedImage;
use tec_core::port::{AuditEvent, ImageRegistry, PortError, PortErrorKind, chain};
use tokio::time::{Instant, sleep};

use crate::api;
use crate::client::{KubeRegistry, image_of, port_error};

/// Lifetime of one watch in seconds. The API server ends it on time, which proves that everything up to then
/// was delivered.
const WATCH_SECONDS: u32 = 5;
/// How long the known state is trusted after the last sign of life: the duration of two watches.
const FRESH: Duration = Duration::from_secs(2 * WATCH_SECONDS as u64);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// The images of a namespace, read from memory while [`run`](Self::run) is polled and its watch is alive, and
/// from the API server otherwise.
///
/// # Security
/// A revocation takes effect when the API server delivers it, usually within milliseconds. If it delivers
/// nothing although the connection is up, the known state is trusted for 10 seconds and is then queried at
/// each use.
#[derive(Debug)]
pub struct WatchedImages {
    registry: KubeRegistry,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By name of the object; malformed objects and those being removed are left out.
    images: BTreeMap<String, ApprovedImage>,
    version: Option<String>,
    /// Time up to which the state is known for certain.
    complete_at: Option<Instant>,
}

impl Known {
    fn put(&mut self, object: &api::ApprovedImage) {
        match image_of(object) {
            Some(image) => self.images.insert(object.name_any(), image),
            None => self.images.remove(&object.name_any()),
        };
    }

    fn fresh(&self, now: Instant) -> Option<Vec<ApprovedImage>> {
        let age = now.checked_duration_since(self.complete_at?)?;
        (age <= FRESH).then(|| {
            let mut images: Vec<_> = self.images.values().cloned().collect();
            images.sort_by(|a, b| a.name.cmp(&b.name));
            images
        })
    }
}

impl WatchedImages {
    /// Reads from a registry; nothing is known yet.
    pub fn new(registry: KubeRegistry) -> Self {
        Self { registry, known: Mutex::default() }
    }

    /// Follows the images forever.
    pub async fn run(&self) {
        let mut is_failing = false;
        loop {
            match self.follow().await {
                Ok(()) => is_failing = false,
                Err(error) => {
                    // Once for each outage.
                    if !is_failing {
                        let error = chain(&error);
                        tracing::warn!(error, "watch of images failed, will be tried again");
                    }
                    is_failing = true;
                    self.known.lock().version = None;
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Runs one watch, preceded by a list if there was none.
    async fn follow(&self) -> Result<(), PortError> {
        let failed = |error| port_error("watch the images", error);
        let objects: Api<api::ApprovedImage> = self.registry.objects();
        let known = self.known.lock().version.clone();
        let version = match known {
            Some(version) => version,
            None => self.list_objects(&objects).await?,
        };
        let lasting = WatchParams::default().timeout(WATCH_SECONDS);
        let events = objects.watch(&lasting, &version).await.map_err(failed)?;
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.try_next().await.map_err(failed)? {
            self.take(event)?;
        }
        self.known.lock().complete_at = Some(Instant::now());
        Ok(())
    }

    async fn list_objects(&self, objects: &Api<api::ApprovedImage>) -> Result<String, PortError> {
        let begun = Instant::now();
        let listed = objects.list(&ListParams::default()).await;
        let listed = listed.map_err(|error| port_error("list the images", error))?;
        let version = listed.metadata.resource_version.unwrap_or_default();
        let mut known = self.known.lock();
        known.images.clear();
        listed.items.iter().for_each(|object| known.put(object));
        known.version = Some(version.clone());
        known.complete_at = Some(begun);
        Ok(version)
    }

    fn take(&self, event: WatchEvent<api::ApprovedImage>) -> Result<(), PortError> {
        let mut known = self.known.lock();
        let version = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                known.put(&object);
                object.resource_version()
            }
            WatchEvent::Deleted(object) => {
                known.images.remove(&object.name_any());
                object.resource_version()
            }
            WatchEvent::Bookmark(mark) => Some(mark.metadata.resource_version),
            WatchEvent::Error(status) => {
                let failed = PortError::new(PortErrorKind::Unavailable, "watch the images");
                return Err(failed.because(kube::Error::Api(status)));
            }
        };
        if version.is_some() {
            known.version = version;
        }
        Ok(())
    }

    /// A caller must be able to read back what it wrote, so the API server is queried until the watch is
    /// known to be current.
    fn doubt(&self) {
        self.known.lock().complete_at = None;
    }
}

#[async_trait]
impl ImageRegistry for WatchedImages {
    async fn put(&self, image: &ApprovedImage) -> Result<(), PortError> {
        let written = ImageRegistry::put(&self.registry, image).await;
        self.doubt();
        written
    }

    async fn find(&self, name: &ImageName) -> Result<Option<ApprovedImage>, PortError> {
        ImageRegistry::find(&self.registry, name).await
    }

    async fn list(&self) -> Result<Vec<ApprovedImage>, PortError> {
        let fresh = self.known.lock().fresh(Instant::now());
        match fresh {
            Some(images) => Ok(images),
            None => ImageRegistry::list(&self.registry).await,
        }
    }

    async fn revoke(&self, name: &ImageName, line: &AuditEvent) -> Result<(), PortError> {
        let written = ImageRegistry::revoke(&self.registry, name, line).await;
        self.doubt();
        written
    }
}

#[cfg(test)]
mod tests;
