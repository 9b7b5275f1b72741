//! Approved images, for people.

use std::fmt::Write as _;

use tec_core::id::ImageName;
use tec_core::image::ApprovedImage;
use tec_core::port::Clock as _;
use tec_support::SystemClock;

/// Whether it is approved, and until when.
pub(crate) fn image_state(image: &ApprovedImage) -> String {
    match (image.revoked_at, image.expires_at) {
        (Some(at), _) => format!("revoked {at}"),
        (None, Some(end)) if !image.is_live(SystemClock.now()) => format!("expired {end}"),
        (None, Some(end)) => format!("until {end}"),
        (None, None) => "approved".to_owned(),
    }
}

/// An image with all measurements.
pub(crate) fn render(image: &ApprovedImage) -> String {
    let mut text = format!("image {}  {}\n", image.name, image_state(image));
    let _ = writeln!(text, "  from {}", image.reference);
    for pcr in &image.expected.pcrs {
        let _ = writeln!(text, "  PCR {:2} = {}", pcr.id, pcr.value);
        for event in &pcr.events {
            let file = event.source.as_deref().unwrap_or("");
            let _ = writeln!(text, "    {}  {:15} {file}", event.hash, event.id);
        }
    }
    text
}

/// What it means that the last image is revoked.
pub(crate) fn last_image(name: &ImageName) -> String {
    format!(
        "Image {name} is the last approved image: without it no machine gets its disk key at its next boot."
    )
}
