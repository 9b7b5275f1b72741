//! Index, manifest and configuration of an image (OCI Image Specification 1.1).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use tec_core::time::Timestamp;

/// Operating system and architecture, as Go names them: `linux/amd64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    os: String,
    architecture: String,
}

/// The platform for which boots are predicted.
impl Default for Platform {
    fn default() -> Self {
        Self { os: "linux".to_owned(), architecture: "amd64".to_owned() }
    }
}

/// The text is not a platform.
#[derive(Debug, thiserror::Error)]
#[error("a platform must be OS/ARCHITECTURE, such as linux/amd64")]
#[non_exhaustive]
pub struct PlatformError;

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let (os, architecture) = text.split_once('/').ok_or(PlatformError)?;
        if os.is_empty() || architecture.is_empty() || architecture.contains('/') {
            return Err(PlatformError);
        }
        Ok(Self { os: os.to_owned(), architecture: architecture.to_owned() })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
    pub(crate) size: u64,
    platform: Option<WirePlatform>,
}

#[derive(Clone, Debug, Deserialize)]
struct WirePlatform {
    os: String,
    architecture: String,
}

impl Descriptor {
    pub(crate) fn is_for(&self, platform: &Platform) -> bool {
        let own = self.platform.as_ref();
        own.is_some_and(|own| own.os == platform.os && own.architecture == platform.architecture)
    }

    pub(crate) fn platform(&self) -> String {
        self.platform.as_ref().map_or_else(
            || "no platform".to_owned(),
            |own| format!("{}/{}", own.os, own.architecture),
        )
    }
}

#[derive(Deserialize)]
struct Either {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

/// The document that a digest leads to.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest { config: Descriptor, layers: Vec<Descriptor> },
}

impl Document {
    /// The members determine the type. A document that could be both is refused, since programs would
    /// disagree on what it is (OCI Image Specification 1.1, manifest.md, "mediaType").
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        let either: Either = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        match (either.manifests, either.config, either.layers) {
            (Some(manifests), None, None) => Ok(Self::Index(manifests)),
            (None, Some(config), Some(layers)) => Ok(Self::Manifest { config, layers }),
            _ => Err("it is neither an index nor a manifest of an image".to_owned()),
        }
    }
}

/// The parts of a configuration that are needed.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ImageConfig {
    created: Option<String>,
    #[serde(default)]
    config: Inner,
}

#[derive(Debug, Default, Deserialize)]
struct Inner {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

impl ImageConfig {
    /// The time in the member `created` (OCI Image Specification 1.1, config.md), if it is one.
    pub(crate) fn built_at(&self) -> Option<Timestamp> {
        self.created.as_deref().and_then(|text| text.parse().ok())
    }

    pub(crate) fn labels(self) -> BTreeMap<String, String> {
        self.config.labels.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_two_things_is_refused() {
        let both = br#"{"manifests":[],"config":{"digest":"x","size":1},"layers":[]}"#;
        assert!(Document::parse(both).is_err());
        assert!(Document::parse(b"{}").is_err());
        assert!(Document::parse(b"[]").is_err());
        assert!(matches!(Document::parse(br#"{"manifests":[]}"#), Ok(Document::Index(_))));
    }

    #[test]
    fn platforms_are_two_words() {
        let platform: Platform = "linux/arm64".parse().unwrap();
        assert_eq!(platform.to_string(), "linux/arm64");
        for text in ["linux", "/", "linux/", "linux/arm/v7"] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }
}
