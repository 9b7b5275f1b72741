//! Approval of images, and its revocation.

use crate::id::ImageName;
use crate::image::ApprovedImage;
use crate::pcr::PcrIndex;
use crate::port::{AuditAction, AuditEvent, AuditSink, Clock, ImageRegistry, PortError};

/// An image cannot be approved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The image has no values of registers.
    #[error("the image {image} has no PCR values")]
    Empty {
        /// The image.
        image: ImageName,
    },
    /// Events and value of a register disagree.
    #[error("the events of PCR {pcr} of the image {image} do not produce its value")]
    Inconsistent {
        /// The image.
        image: ImageName,
        /// The register.
        pcr: PcrIndex,
    },
    /// The registry returned an error.
    #[error("cannot store the image {image}")]
    Store {
        /// The image.
        image: ImageName,
        /// The cause.
        #[source]
        source: PortError,
    },
}

/// Approves an image from now on. Earlier approvals remain valid: during an update old and new both
/// count.
///
/// # Errors
/// A value that does not follow from its events is refused, since it could not be explained.
pub async fn publish_image(
    images: &dyn ImageRegistry,
    audit: &dyn AuditSink,
    image: &ApprovedImage,
) -> Result<(), PublishError> {
    let name = || image.name.clone();
    if image.expected.pcrs.is_empty() {
        return Err(PublishError::Empty { image: name() });
    }
    if let Some(pcr) = image.expected.pcrs.iter().find(|pcr| !pcr.is_consistent()) {
        return Err(PublishError::Inconsistent { image: name(), pcr: pcr.id });
    }
    let stored = |source| PublishError::Store { image: name(), source };
    let event =
        AuditEvent::new(image.approved_at, AuditAction::ImageApproved, None, image.name.as_str());
    audit.append(&event).await.map_err(stored)?;
    images.put(image).await.map_err(stored)
}

/// Revokes the approval of an image: from now on its boots obtain no key.
pub async fn revoke_image(
    images: &dyn ImageRegistry,
    clock: &dyn Clock,
    name: &ImageName,
) -> Result<(), PortError> {
    let (now, action) = (clock.now(), AuditAction::ImageRevoked);
    let line = AuditEvent::new(now, action, None, name.as_str());
    images.revoke(name, &line).await
}
