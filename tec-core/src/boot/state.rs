//! A boot state in words and as JSON.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::ImageName;
use crate::image::ApprovedImage;
use crate::pcr::PcrIndex;

/// Components of a state that come from the same images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BootPart {
    /// The components in words, for example `kernel`; empty for a whole image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<String>,
    /// Pinned registers that the components are measured into.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pcrs: Vec<PcrIndex>,
    /// Images that have exactly these components, and are thus interchangeable. Empty for
    /// components that come from no image, such as a revocation level stored by the firmware.
    pub images: Vec<ImageName>,
}

impl BootPart {
    /// Components of images, and the registers they are measured into.
    pub fn new(
        components: Vec<String>,
        pcrs: impl IntoIterator<Item = PcrIndex>,
        images: Vec<ImageName>,
    ) -> Self {
        Self { components, pcrs: pcrs.into_iter().collect(), images }
    }
}

/// What a machine booted: one whole image, or parts of several.
///
/// As JSON `{"parts": [{"components": …, "pcrs": …, "images": …}]}`. The bare name of an image, as
/// earlier versions wrote it, is read as that whole image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct BootState {
    parts: Vec<BootPart>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Image(ImageName),
    State { parts: Vec<BootPart> },
}

impl From<Written> for BootState {
    fn from(written: Written) -> Self {
        match written {
            Written::Image(image) => Self::whole([image], []),
            Written::State { parts } => Self { parts },
        }
    }
}

impl BootState {
    /// A state of one whole image, or of several that agree in the pinned registers.
    pub fn whole(
        images: impl IntoIterator<Item = ImageName>,
        pcrs: impl IntoIterator<Item = PcrIndex>,
    ) -> Self {
        let images = images.into_iter().collect();
        Self { parts: vec![BootPart::new(Vec::new(), pcrs, images)] }
    }

    /// A state of these parts, in boot order.
    pub fn mixed(parts: Vec<BootPart>) -> Self {
        Self { parts }
    }

    /// Its parts; exactly one for a whole image.
    pub fn parts(&self) -> &[BootPart] {
        &self.parts
    }

    /// Whether the state consists of parts of different images.
    pub fn is_mixed(&self) -> bool {
        self.parts.len() > 1
    }

    /// All images that the state may consist of, without duplicates.
    pub fn images(&self) -> impl Iterator<Item = &ImageName> {
        let images: BTreeSet<_> = self.parts.iter().flat_map(|part| &part.images).collect();
        images.into_iter()
    }

    /// Whether one of its images holds machines to its first boot.
    pub(crate) fn is_held(&self, images: &[ApprovedImage]) -> bool {
        let mut holding = images.iter().filter(|image| image.expected.first_boot);
        holding.any(|image| self.images().any(|name| *name == image.name))
    }

    /// As a sentence: `boot of image 44.1`, `boot between images: bootloader of 44.2 + kernel of
    /// 44.1`.
    pub fn sentence(&self) -> String {
        if self.is_mixed() {
            format!("boot between images: {self}")
        } else {
            format!("{WHOLE}{self}")
        }
    }

    /// Parses what earlier versions wrote into the ladder instead: the sentence about a whole
    /// image.
    #[cfg(feature = "embedded")]
    pub(crate) fn from_sentence(sentence: &str) -> Option<Self> {
        let image = sentence.strip_prefix(WHOLE)?.parse().ok()?;
        Some(Self::whole([image], []))
    }
}

/// Beginning of the sentence about a whole image.
const WHOLE: &str = "boot of image ";

/// `44.1` for a whole image, `bootloader of 44.2 + kernel of 44.1` for a mix.
impl fmt::Display for BootState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.parts.iter().enumerate() {
            if number > 0 {
                f.write_str(" + ")?;
            }
            if self.is_mixed() {
                write!(f, "{} of ", part.components.join(" and "))?;
            }
            if part.images.is_empty() {
                f.write_str("no image")?;
            }
            for (number, image) in part.images.iter().enumerate() {
                let or = if number > 0 { " or " } else { "" };
                write!(f, "{or}{image}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ImageName {
        text.parse().unwrap()
    }

    fn mix() -> BootState {
        let pcrs = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK];
        BootState::mixed(vec![
            BootPart::new(vec!["bootloader".to_owned()], pcrs, vec![name("44.2")]),
            BootPart::new(
                vec!["kernel".to_owned()],
                [PcrIndex::BOOT_MANAGER],
                vec![name("44.0"), name("44.1")],
            ),
        ])
    }

    #[test]
    fn a_mix_is_told_part_by_part() {
        assert_eq!(
            mix().sentence(),
            "boot between images: bootloader of 44.2 + kernel of 44.0 or 44.1"
        );
        let whole = BootState::whole([name("44.1")], [PcrIndex::BOOT_MANAGER]);
        assert_eq!(whole.sentence(), "boot of image 44.1");
        let images: Vec<_> = mix().images().map(ToString::to_string).collect();
        assert_eq!(images, ["44.0", "44.1", "44.2"]);
    }

    #[test]
    fn a_state_comes_back_from_json_and_the_older_form_is_read() {
        let json = serde_json::to_value(mix()).unwrap();
        assert_eq!(json["parts"][0]["pcrs"], serde_json::json!([4, 14]));
        assert_eq!(serde_json::from_value::<BootState>(json).unwrap(), mix());
        let older: BootState = serde_json::from_value("44.1".into()).unwrap();
        assert_eq!(older, BootState::whole([name("44.1")], []));
    }
}
