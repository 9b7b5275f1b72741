//! Approved images as objects, with the measurements of their boots in the status.

use async_trait::async_trait;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use tec_core::id::ImageName;
use tec_core::image::ApprovedImage;
use tec_core::migrate::Deed;
#[cfg(feature = "controller")]
use tec_core::port::AuditAction;
use tec_core::port::{AuditEvent, ImageRegistry, PortError, PortErrorKind};

use super::error::{is_conflict, is_not_found, port_error};
use super::{ATTEMPTS, AUDIT, KubeRegistry, is_terminating, note};
use crate::api;

impl KubeRegistry {
    async fn image_object(
        &self,
        name: &ImageName,
    ) -> Result<Option<api::ApprovedImage>, PortError> {
        let found = self.images().get_opt(name.as_str()).await;
        let found = found.map_err(|error| port_error(format!("look up image {name}"), error))?;
        Ok(found.filter(|object| !is_terminating(object)))
    }

    /// Creates or updates the object. The reference of an object cannot change, so an object with a different
    /// reference is recreated; until then, no image with that name is approved.
    async fn try_put(&self, wanted: &api::ApprovedImage) -> Result<(), kube::Error> {
        let name = wanted.name_any();
        let images = self.images();
        let spec_of = |object: &api::ApprovedImage| {
            (object.spec.image.clone(), object.spec.revoked_at.clone())
        };
        match images.get_opt(&name).await? {
            Some(known) if spec_of(&known) == spec_of(wanted) => {
                let patch = json!({
                    "metadata": {"annotations": wanted.annotations()},
                    "spec": {"expiresAt": wanted.spec.expires_at},
                });
                let params = PatchParams::default();
                images.patch(&name, &params, &Patch::Merge(patch)).await?;
            }
            Some(_) => {
                images.delete(&name, &DeleteParams::default()).await?;
                images.create(&PostParams::default(), wanted).await?;
            }
            None => {
                images.create(&PostParams::default(), wanted).await?;
            }
        }
        let status = wanted.status.clone().unwrap_or_default();
        let status = json!({"pcrs": status.pcrs, "rootHash": status.root_hash});
        let patch = Patch::Merge(json!({"status": status}));
        images.patch_status(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(super) async fn put_object(&self, wanted: &api::ApprovedImage) -> Result<(), PortError> {
        let name = wanted.name_any();
        for _ in 0..ATTEMPTS {
            match self.try_put(wanted).await {
                Ok(()) => return Ok(()),
                Err(error) if is_conflict(&error) || is_not_found(&error) => {}
                Err(error) => return Err(port_error(format!("store image {name}"), error)),
            }
        }
        let why = format!("store image {name}: others were faster each time");
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }
}

#[cfg(feature = "controller")]
impl KubeRegistry {
    /// Creates the object of an image that is approved automatically, with an audit line, and without
    /// measurements. Returns whether there was none of this name before.
    pub(crate) async fn approve_object(
        &self,
        wanted: &api::ApprovedImage,
    ) -> Result<bool, PortError> {
        let name = wanted.name_any();
        let operation = || format!("approve image {name}");
        self.permit(Deed::Admit, operation).await?;
        let (mut wanted, now) = (wanted.clone(), self.clock.now());
        let line = AuditEvent::new(now, AuditAction::ImageApproved, None, name.as_str());
        self.complete(wanted.meta_mut(), Some(&line));
        match self.images().create(&PostParams::default(), &wanted).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(port_error(operation(), error)),
        }
    }
}

/// The image that an object stands for; `None` if it is malformed or being removed.
pub(crate) fn image_of(object: &api::ApprovedImage) -> Option<ApprovedImage> {
    Some(object).filter(|object| !is_terminating(*object))?.to_core().ok()
}

#[async_trait]
impl ImageRegistry for KubeRegistry {
    /// An image counts once its measurements are stored, which happens after its object is created.
    async fn put(&self, image: &ApprovedImage) -> Result<(), PortError> {
        let operation = || format!("store image {}", image.name);
        self.permit(Deed::Admit, operation).await?;
        let mut wanted = api::ApprovedImage::from_core(image);
        self.complete(wanted.meta_mut(), None);
        let was_there = self.image_object(&image.name).await?.is_some();
        self.put_object(&wanted).await?;
        let late = self.permit(Deed::Admit, operation).await;
        // Only if the record refuses; see `put_new` of secrets.
        if !was_there && late.as_ref().is_err_and(|late| late.code().is_some()) {
            self.delete_image(&image.name).await?;
        }
        late
    }

    async fn find(&self, name: &ImageName) -> Result<Option<ApprovedImage>, PortError> {
        let object = self.image_object(name).await?;
        let failed = |error| {
            PortError::new(PortErrorKind::Invalid, format!("read image {name}")).because(error)
        };
        object.map(|object| object.to_core().map_err(failed)).transpose()
    }

    /// Malformed objects are left out.
    async fn list(&self) -> Result<Vec<ApprovedImage>, PortError> {
        let list = self.images().list(&ListParams::default()).await;
        let list = list.map_err(|error| port_error("list the images", error))?;
        let mut images: Vec<_> = list.items.iter().filter_map(image_of).collect();
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    async fn revoke(&self, name: &ImageName, line: &AuditEvent) -> Result<(), PortError> {
        let operation = || format!("revoke image {name}");
        self.permit(Deed::ShutOut, operation).await?;
        let object = self.image_object(name).await?;
        let object = object.ok_or_else(|| PortError::new(PortErrorKind::NotFound, operation()))?;
        let since = object.spec.revoked_at.unwrap_or_else(|| line.at.to_string());
        let patch = json!({
            "metadata": {"annotations": {AUDIT: note(line)}},
            "spec": {"revokedAt": since},
        });
        self.images()
            .patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(|error| port_error(operation(), error))?;
        Ok(())
    }
}
