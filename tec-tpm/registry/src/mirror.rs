//! Mirrors: other locations of the same images.

use std::fmt;
use std::str::FromStr;

use crate::reference::{Place, is_host, is_repository};

/// Images whose name begins with the first prefix are looked for below the second prefix first:
/// `registry.example/team=mirror.local:5000/copies`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    from: String,
    host: String,
    folder: String,
}

/// The text is not a mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a mirror: use FROM=TO, each a host and optionally a path")]
#[non_exhaustive]
pub struct MirrorError {
    /// The text.
    pub text: String,
}

impl FromStr for Mirror {
    type Err = MirrorError;

    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let refuse = || MirrorError { text: text.to_owned() };
        let (from, to) = text.split_once('=').ok_or_else(refuse)?;
        let (host, folder) = to.split_once('/').unwrap_or((to, ""));
        let (from_host, from_folder) = from.split_once('/').unwrap_or((from, ""));
        let is_place =
            |host, folder: &str| is_host(host) && (folder.is_empty() || is_repository(folder));
        if !is_place(host, folder) || !is_place(from_host, from_folder) {
            return Err(refuse());
        }
        Ok(Self { from: from.to_owned(), host: host.to_owned(), folder: folder.to_owned() })
    }
}

/// Formats a mirror in the form in which it is parsed.
impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.host)?;
        if self.folder.is_empty() {
            return Ok(());
        }
        write!(f, "/{}", self.folder)
    }
}

impl Mirror {
    fn place(&self, name: &str) -> Option<Place> {
        let rest = name.strip_prefix(&self.from)?;
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        let repository = format!("{}{rest}", self.folder);
        let repository = repository.trim_start_matches('/').to_owned();
        (!repository.is_empty()).then(|| Place { host: self.host.clone(), repository })
    }
}

/// The places of an image: mirrors in their order, then its origin, the registry itself.
pub(crate) fn places(mirrors: &[Mirror], origin: Place) -> Vec<Place> {
    let name = format!("{}/{}", origin.host, origin.repository);
    let mirrored = mirrors.iter().filter_map(|mirror| mirror.place(&name));
    mirrored.chain([origin]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_first_and_only_for_whole_parts_of_a_name() {
        let place = |host: &str, repository: &str| Place {
            host: host.to_owned(),
            repository: repository.to_owned(),
        };
        let mirrors: Vec<Mirror> = [
            "r.example=m.local:5000",
            "r.example/team=m.local/copies",
            "r.example/team/os=n.local/one",
            "r.example/te=wrong.local",
            "other.example=wrong.local",
        ]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
        let names: Vec<_> = places(&mirrors, place("r.example", "team/os"))
            .into_iter()
            .map(|place| format!("{}/{}", place.host, place.repository))
            .collect();
        assert_eq!(
            names,
            ["m.local:5000/team/os", "m.local/copies/os", "n.local/one", "r.example/team/os"]
        );
        for text in ["", "a", "a=", "=b", "a=b/C", "a=b?c", "a/B=c"] {
            assert!(text.parse::<Mirror>().is_err(), "{text}");
        }
    }
}
