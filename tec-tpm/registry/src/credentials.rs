//! Pull secrets.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use crate::reference::Place;

/// Credentials of registries, in the form of Secrets of type `kubernetes.io/dockerconfigjson`.
#[derive(Debug, Default)]
pub struct Credentials {
    /// By host and path; the longest match is used.
    entries: Vec<(String, Login)>,
}

/// The file is not a pull secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The file is not the expected JSON. The message does not quote it.
    #[error("the pull secret is not a valid .dockerconfigjson (line {0})")]
    Json(usize),
    /// An entry has no user and password.
    #[error("the entry {0:?} of the pull secret has no user and password")]
    Login(String),
}

/// How to authenticate.
pub(crate) struct Login {
    user: String,
    password: SecretBytes,
}

#[derive(Deserialize)]
struct File {
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    username: Option<String>,
    password: Option<Zeroizing<String>>,
    /// `user:password` in base64.
    auth: Option<Zeroizing<String>>,
}

/// Docker's name for its own registry.
const DOCKER_HUB: [&str; 3] = ["index.docker.io", "registry-1.docker.io", "docker.io"];

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a `.dockerconfigjson`.
    ///
    /// # Errors
    /// It is not a pull secret, or an entry has no user and password.
    pub fn parse(json: &[u8]) -> Result<Self, CredentialsError> {
        let file: File =
            serde_json::from_slice(json).map_err(|error| CredentialsError::Json(error.line()))?;
        let mut entries = Vec::new();
        for (name, entry) in file.auths {
            let login = entry.login();
            let login = login.ok_or_else(|| CredentialsError::Login(name.clone()))?;
            entries.push((place_name(&name), login));
        }
        Ok(Self { entries })
    }

    /// Adds the credentials of another secret; if both have an entry, the earlier one is used.
    pub fn and(mut self, other: Self) -> Self {
        self.entries.extend(other.entries);
        self
    }

    pub(crate) fn of(&self, place: &Place) -> Option<&Login> {
        let name = format!("{}/{}", hub(&place.host), place.repository);
        let fits = |key: &str| {
            let rest = name.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let fitting = self.entries.iter().rev().filter(|(key, _)| fits(key));
        let longest = fitting.max_by_key(|(key, _)| key.len());
        longest.map(|(_, login)| login)
    }
}

/// Keys may be URLs, as Docker writes them.
fn place_name(key: &str) -> String {
    let key = key.trim_start_matches("https://").trim_start_matches("http://");
    let key = key.trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    // The versions of the protocol are no part of a repository's name.
    let path = path.trim_start_matches("v1").trim_start_matches("v2");
    let path = path.trim_matches('/');
    let separator = if path.is_empty() { "" } else { "/" };
    format!("{}{separator}{path}", hub(host))
}

fn hub(host: &str) -> &str {
    if DOCKER_HUB.contains(&host) { "docker.io" } else { host }
}

impl Entry {
    fn login(self) -> Option<Login> {
        if let (Some(user), Some(password)) = (self.username, self.password) {
            let password = SecretBytes::new(password.as_bytes().to_vec());
            return Some(Login { user, password });
        }
        let decoded = Zeroizing::new(STANDARD.decode(self.auth?.trim()).ok()?);
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        let (user, password) = decoded.split_at_checked(colon)?;
        Some(Login {
            user: std::str::from_utf8(user).ok()?.to_owned(),
            password: SecretBytes::new(password.get(1..)?.to_vec()),
        })
    }
}

impl Login {
    /// Value of the header `Authorization` (RFC 7617, 2).
    pub(crate) fn basic(&self) -> Zeroizing<String> {
        let password = self.password.expose("sent to the registry over TLS");
        let mut plain = Zeroizing::new(format!("{}:", self.user).into_bytes());
        plain.extend_from_slice(password);
        Zeroizing::new(format!("Basic {}", STANDARD.encode(&*plain)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(json: &str, host: &str, repository: &str) -> Option<String> {
        let credentials = Credentials::parse(json.as_bytes()).unwrap();
        let place = Place { host: host.to_owned(), repository: repository.to_owned() };
        let header = credentials.of(&place)?.basic();
        let decoded = STANDARD.decode(header.strip_prefix("Basic ")?).unwrap();
        Some(String::from_utf8(decoded).unwrap())
    }

    #[test]
    fn the_longest_entry_that_fits_counts() {
        let json = r#"{"auths":{
            "r.example": {"username":"u","password":"p:w"},
            "r.example/team": {"auth":"dGVhbTpzM2NyZXQ="},
            "https://index.docker.io/v1/": {"auth":"aHViOng="}}}"#;
        let of = |host, repository| basic(json, host, repository);
        assert_eq!(of("r.example", "os").as_deref(), Some("u:p:w"));
        assert_eq!(of("r.example", "team/os").as_deref(), Some("team:s3cret"));
        assert_eq!(of("r.example", "teams/os").as_deref(), Some("u:p:w"));
        assert_eq!(of("docker.io", "library/debian").as_deref(), Some("hub:x"));
        assert_eq!(of("r.example.org", "os"), None);
        assert_eq!(of("other.example", "os"), None);
    }

    #[test]
    fn errors_and_debug_tell_nothing_of_passwords() {
        let error = Credentials::parse(br#"{"auths":{"r":{"auth":"c2VjcmV0"}}}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the entry \"r\" of the pull secret has no user and password"
        );
        let error = Credentials::parse(b"{\"auths\": \"hunter2\"}").unwrap_err();
        assert!(!format!("{error:?}{error}").contains("hunter2"));
        let good = br#"{"auths":{"r":{"username":"u","password":"hunter2"}}}"#;
        let good = format!("{:?}", Credentials::parse(good).unwrap());
        assert!(!good.contains("hunter2"), "{good}");
    }
}
