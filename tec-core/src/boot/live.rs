//! The images whose approval stands.

use crate::image::ApprovedImage;
use crate::time::Timestamp;

/// The images whose approval stands at one moment, in the order of the registry.
///
/// # Security
/// It can only be made from a moment, so states are never made of an image that was revoked or has
/// expired by then.
#[derive(Clone, Debug)]
pub struct LiveImages<'a>(Vec<&'a ApprovedImage>);

impl<'a> LiveImages<'a> {
    /// Those of `images` that are live at `now`.
    pub fn at(images: &'a [ApprovedImage], now: Timestamp) -> Self {
        Self(images.iter().filter(|image| image.is_live(now)).collect())
    }

    /// Some of the images of such a set.
    pub(super) fn some_of(images: Vec<&'a ApprovedImage>) -> Self {
        Self(images)
    }

    /// The images in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a ApprovedImage> {
        self.0.iter().copied()
    }
}
