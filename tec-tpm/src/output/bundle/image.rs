//! The image that a bundle is for.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tec_core::digest::Sha256Digest;

/// Longest reference; registries allow names of 255 characters (OCI distribution, "Pulling
/// manifests") and hosts of as many.
const MAX_REFERENCE: usize = 640;
/// Algorithm of the digest (OCI image, "Registered Algorithms").
const ALGORITHM: &str = "sha256:";

/// A reference to an image by digest: `registry.example/os@sha256:…`, or the digest alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    text: String,
    digest: Sha256Digest,
}

/// The string does not refer to an image by digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an image must be referenced by its digest: name@sha256:<64 hexadecimal digits>")]
#[non_exhaustive]
pub struct ParseImageReferenceError;

impl ImageReference {
    /// The whole reference.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The digest.
    pub fn digest(&self) -> &Sha256Digest {
        &self.digest
    }
}

impl FromStr for ImageReference {
    type Err = ParseImageReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = ParseImageReferenceError;
        let (name, digest) = match text.rsplit_once('@') {
            Some(("", _)) => return Err(refuse),
            Some((name, digest)) => (name, digest),
            None => ("", text),
        };
        let digits = digest.strip_prefix(ALGORITHM).ok_or(refuse)?;
        if text.len() > MAX_REFERENCE || !name.chars().all(|c| c.is_ascii_graphic()) {
            return Err(refuse);
        }
        Ok(Self { text: text.to_owned(), digest: digits.parse().map_err(|_| refuse)? })
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for ImageReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for ImageReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
