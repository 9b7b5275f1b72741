//! Touches what is copied, so that a binding or an approval under way when the authority was given up fails:
//! its compare-and-swap refers to a version of the object that no longer exists.

use std::pin::pin;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tec_core::migrate::{Authority, Role};
use tec_core::port::PortError;

use super::{AT_ONCE, SEALED};
use crate::api;
use crate::client::error::{is_not_found, port_error};
use crate::client::{KubeRegistry, Object, metadata_pages};

impl KubeRegistry {
    /// Seals every machine and every image that is not sealed at the epoch at which this anchor gave up its
    /// authority. An active anchor is not sealed.
    pub(super) async fn seal(&self, record: &Authority) -> Result<(), PortError> {
        if record.role() != Role::ServeOnly {
            return Ok(());
        }
        let epoch = record.epoch().to_string();
        self.seal_all::<api::Machine>(&epoch).await?;
        self.seal_all::<api::ApprovedImage>(&epoch).await
    }

    async fn seal_all<K: Object>(&self, epoch: &str) -> Result<(), PortError> {
        let mut pages = pin!(metadata_pages(self.objects::<K>()));
        while let Some(page) = pages.try_next().await? {
            let open = |object: &kube::api::PartialObjectMeta<K>| {
                object.annotations().get(SEALED).map(String::as_str) != Some(epoch)
            };
            let open = page.into_iter().filter(open);
            let names = open.map(|object| Ok(object.name_any()));
            futures::stream::iter(names)
                .map(|name| async { self.seal_one::<K>(name?, epoch).await })
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<()>>()
                .await?;
        }
        Ok(())
    }

    async fn seal_one<K: Object>(&self, name: String, epoch: &str) -> Result<(), PortError> {
        let patch = json!({"metadata": {"annotations": {SEALED: epoch}}});
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        match self.objects::<K>().patch_metadata(&name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(port_error(format!("seal {name}"), error)),
        }
    }
}
