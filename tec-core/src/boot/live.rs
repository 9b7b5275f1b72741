//! The images whose approval is valid.

use crate::image::ApprovedImage;
use crate::time::Timestamp;

/// The images whose approval is valid at one moment, in registry order.
///
/// # Security
/// Can only be created for a given moment, so no state is ever built from an image whose approval
/// was revoked or expired by then.
#[derive(Clone, Debug)]
pub struct LiveImages<'a>(Vec<&'a ApprovedImage>);

impl<'a> LiveImages<'a> {
    /// The images that are live at `now`.
    pub fn at(images: &'a [ApprovedImage], now: Timestamp) -> Self {
        Self(images.iter().filter(|image| image.is_live(now)).collect())
    }

    /// Some images of such a set.
    pub(super) fn some_of(images: Vec<&'a ApprovedImage>) -> Self {
        Self(images)
    }

    /// The images in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a ApprovedImage> {
        self.0.iter().copied()
    }
}
