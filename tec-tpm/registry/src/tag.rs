//! References of tags, which move.

use std::fmt;
use std::str::FromStr;

use tec_core::digest::Sha256Digest;

use crate::reference::{ImageReference, MAX_NAME, Place, is_host, is_repository, split};

/// A tag in a registry: `registry.example:5000/os:44`. Where it points to may change at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagReference {
    place: Place,
    tag: String,
}

/// The text is not such a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TagReferenceError {
    /// It has a digest.
    #[error("{0:?} names a digest, which never moves: name a tag, such as registry.example/os:44")]
    Digest(String),
    /// It has no tag.
    #[error("{0:?} names no tag: use a reference such as registry.example/os:44")]
    NoTag(String),
    /// The text before the tag is not the name of an image.
    #[error("{0:?} names no registry and repository")]
    Name(String),
}

/// Maximum length of a tag (Distribution Specification 1.1, "Pulling manifests").
const MAX_TAG: usize = 128;

impl FromStr for TagReference {
    type Err = TagReferenceError;

    fn from_str(text: &str) -> Result<Self, TagReferenceError> {
        let reference = text.chars().take(MAX_NAME).collect::<String>();
        if text.contains('@') {
            return Err(TagReferenceError::Digest(reference));
        }
        let Some((name, tag)) = text.rsplit_once(':').filter(|(_, tag)| is_tag(tag)) else {
            return Err(TagReferenceError::NoTag(reference));
        };
        let has_other_tag = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
        let (host, repository) = split(name);
        let is_name = is_host(&host) && is_repository(&repository);
        if has_other_tag || name.len() > MAX_NAME || !is_name {
            return Err(TagReferenceError::Name(reference));
        }
        Ok(Self { place: Place { host, repository }, tag: tag.to_owned() })
    }
}

/// Distribution Specification 1.1, "Pulling manifests": `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
fn is_tag(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() <= MAX_TAG
        && text.bytes().all(is_fine)
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
}

impl TagReference {
    /// The tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The image with this digest in the same repository.
    pub fn with_digest(&self, digest: Sha256Digest) -> ImageReference {
        ImageReference::at(self.place.clone(), digest)
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }
}

impl fmt::Display for TagReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.place.host, self.place.repository, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, TagReferenceError> {
        text.parse().map(|tag: TagReference| tag.to_string())
    }

    #[test]
    fn a_tag_is_found_behind_the_last_colon() {
        for (text, whole) in [
            ("registry.example/os:44", "registry.example/os:44"),
            ("registry.example:5000/a/b:v1.2-rc_3", "registry.example:5000/a/b:v1.2-rc_3"),
            ("[::1]:5000/os:stable", "[::1]:5000/os:stable"),
            ("debian:stable", "docker.io/library/debian:stable"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(whole), "{text}");
        }
        let tag: TagReference = "registry.example/os:44".parse().unwrap();
        let digest = Sha256Digest::of("manifest");
        let expected = format!("registry.example/os@sha256:{digest}");
        assert_eq!(tag.with_digest(digest).to_string(), expected);
        assert_eq!(expected.parse::<ImageReference>().as_ref(), Ok(&tag.with_digest(digest)));
    }

    #[test]
    fn what_is_no_tag_is_refused_and_named() {
        let digest = format!("registry.example/os:44@sha256:{}", "ab".repeat(32));
        assert!(matches!(parse(&digest), Err(TagReferenceError::Digest(_))));
        let long = format!("registry.example/os:{}", "x".repeat(129));
        for text in
            ["registry.example/os", "registry.example:5000/os", "r.example/os:", "r/os:-a", &long]
        {
            assert!(matches!(parse(text), Err(TagReferenceError::NoTag(_))), "{text}");
        }
        for text in
            [":44", "r.example/Os:44", "r.example/:44", "a b/c:44", "r.example/../x:44", "a/b:c:d"]
        {
            assert!(matches!(parse(text), Err(TagReferenceError::Name(_))), "{text}");
        }
    }
}
