//! Approval of images, and its revocation.

use crate::boot::{Pins, Unpinned};
use crate::id::ImageName;
use crate::image::ApprovedImage;
use crate::pcr::PcrIndex;
use crate::port::{AuditAction, AuditEvent, AuditSink, Clock, ImageRegistry, PortError};

/// An image cannot be approved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The image has no values of registers.
    #[error("the image {0} has no PCR values")]
    Empty(ImageName),
    /// Events and value of a register disagree.
    #[error("the events of PCR {pcr} of the image {image} do not produce its value")]
    Inconsistent {
        /// The image.
        image: ImageName,
        /// The register.
        pcr: PcrIndex,
    },
    /// No pinned register covers parts of the boot, and the admin did not accept that.
    #[error("{unpinned}: a machine gets its disk key whatever it boots there")]
    Unpinned {
        /// The image.
        image: ImageName,
        /// The parts.
        unpinned: Unpinned,
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

/// What happens to an image of whose boot parts are not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnpinnedInputs {
    /// It is not approved.
    #[default]
    Refuse,
    /// An admin accepts that these parts are not checked.
    Accept,
}

/// Checks that an image can be approved by a server that pins these registers.
pub fn check_image(
    image: &ApprovedImage,
    pins: Pins,
    inputs: UnpinnedInputs,
) -> Result<(), PublishError> {
    let name = || image.name.clone();
    if image.expected.pcrs.is_empty() {
        return Err(PublishError::Empty(name()));
    }
    if let Some(pcr) = image.expected.pcrs.iter().find(|pcr| !pcr.is_consistent()) {
        return Err(PublishError::Inconsistent { image: name(), pcr: pcr.id });
    }
    let unpinned = pins.unpinned(&image.expected);
    if inputs == UnpinnedInputs::Refuse && !unpinned.is_empty() {
        return Err(PublishError::Unpinned { image: name(), unpinned });
    }
    Ok(())
}

/// Approves an image from now on. Earlier approvals remain valid: during an update old and new both
/// count. `pins` are those of the server that judges its boots.
///
/// # Errors
/// A value that does not follow from its events is refused, since it could not be explained; so is
/// an image of whose boot parts are not checked, unless that is accepted.
pub async fn publish_image(
    images: &dyn ImageRegistry,
    audit: &dyn AuditSink,
    image: &ApprovedImage,
    pins: Pins,
    inputs: UnpinnedInputs,
) -> Result<(), PublishError> {
    check_image(image, pins, inputs)?;
    let name = || image.name.clone();
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
