//! References of images.

use std::fmt;
use std::str::FromStr;

use tec_core::digest::Sha256Digest;

/// An image in a registry, by digest: `registry.example:5000/os@sha256:…`. A tag before the digest is
/// ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    place: Place,
    digest: Sha256Digest,
}

/// A place where an image may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) repository: String,
}

/// The text is not such a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// It has no digest.
    #[error("{0:?} has no digest: it must end in @sha256: and 64 lowercase hexadecimal digits")]
    NoDigest(String),
    /// The text before the digest is not the name of an image.
    #[error("{0:?} names no registry and repository")]
    Name(String),
}

/// Default host of references, and the repository of its official images.
const DEFAULT_HOST: &str = "docker.io";
const DEFAULT_FOLDER: &str = "library/";
/// Maximum length of a name, host and repository together, as recommended for paths of the protocol
/// (Distribution Specification 1.1, "Pulling manifests").
pub(crate) const MAX_NAME: usize = 255;

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let shown = || text.chars().take(MAX_NAME).collect::<String>();
        let no_digest = || ReferenceError::NoDigest(shown());
        let (name, digest) = text.split_once("@sha256:").ok_or_else(no_digest)?;
        let is_lower = !digest.bytes().any(|byte| byte.is_ascii_uppercase());
        let digest = digest.parse().ok().filter(|_| is_lower);
        let digest = digest.ok_or_else(no_digest)?;
        let (host, repository) = split(name);
        if name.len() > MAX_NAME || !is_host(&host) || !is_repository(&repository) {
            return Err(ReferenceError::Name(shown()));
        }
        Ok(Self { place: Place { host, repository }, digest })
    }
}

/// Host and repository. The first part is a host if it looks like one.
pub(crate) fn split(name: &str) -> (String, String) {
    let (first, rest) = name.split_once('/').unwrap_or(("", name));
    let (host, rest) = if first.contains(['.', ':']) || first == "localhost" {
        (first, rest)
    } else {
        (DEFAULT_HOST, name)
    };
    // A colon behind the last slash begins a tag.
    let (folder, last) = rest.rsplit_once('/').unwrap_or(("", rest));
    let last = last.split_once(':').map_or(last, |(last, _tag)| last);
    let repository = match (host, folder) {
        (DEFAULT_HOST, "") => format!("{DEFAULT_FOLDER}{last}"),
        (_, "") => last.to_owned(),
        _ => format!("{folder}/{last}"),
    };
    (host.to_owned(), repository)
}

/// A name or an address, with or without a port, and without characters that would end the host in a URL.
pub(crate) fn is_host(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(is_fine)
}

/// Distribution Specification 1.1, "Pulling manifests": lower-case words, with separators between
/// them.
pub(crate) fn is_repository(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('/').all(|part| {
        let edges = part.as_bytes().first().zip(part.as_bytes().last());
        edges.is_some_and(|(first, last)| is_fine(*first) && is_fine(*last))
            && part.bytes().all(|b| is_fine(b) || b"._-".contains(&b))
    })
}

impl ImageReference {
    /// Host of the registry, with its port if one is named.
    pub fn host(&self) -> &str {
        &self.place.host
    }

    /// Repository in the registry.
    pub fn repository(&self) -> &str {
        &self.place.repository
    }

    /// Digest of the manifest or index.
    pub fn digest(&self) -> Sha256Digest {
        self.digest
    }

    pub(crate) fn at(place: Place, digest: Sha256Digest) -> Self {
        Self { place, digest }
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@sha256:{}", self.host(), self.repository(), self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "@sha256:3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";

    fn parse(name: &str) -> Result<String, ReferenceError> {
        let parsed: Result<ImageReference, _> = format!("{name}{DIGEST}").parse();
        parsed.map(|reference| reference.to_string().replace(DIGEST, ""))
    }

    #[test]
    fn hosts_and_repositories_are_told_apart() {
        for (name, whole) in [
            ("registry.example/os", "registry.example/os"),
            ("registry.example:5000/a/b:tag", "registry.example:5000/a/b"),
            ("localhost/os", "localhost/os"),
            ("[::1]:5000/os", "[::1]:5000/os"),
            ("debian:stable", "docker.io/library/debian"),
            ("team/os", "docker.io/team/os"),
        ] {
            assert_eq!(parse(name).as_deref(), Ok(whole), "{name}");
        }
    }

    #[test]
    fn what_is_no_reference_by_digest_is_refused() {
        for name in
            ["", "a b/c", "r.example/", "r.example/Os", "r.example/../x", "r.e/a//b", "a@b/c"]
        {
            assert!(matches!(parse(name), Err(ReferenceError::Name(_))), "{name}");
        }
        assert!(parse(&"x".repeat(300)).is_err());
        for text in
            ["r.example/os", "r.example/os:1", "r.example/os@sha256:", "r.example/os@sha256:ab"]
        {
            let parsed: Result<ImageReference, _> = text.parse();
            assert!(matches!(parsed, Err(ReferenceError::NoDigest(_))), "{text}");
        }
        let upper = format!("r.example/os{}", DIGEST.to_uppercase().replace("SHA", "sha"));
        assert!(upper.parse::<ImageReference>().is_err());
    }
}
