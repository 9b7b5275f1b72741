//! Where a key service or a store is, without credentials: an entry of an allow-list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use tec_core::secret::SecretBytes;

use super::query::{Extent, Parsed, Writer};
use super::{KmsUri, StorageUri, UriError};

const KMS: &str = "kms";
const STORAGE: &str = "storage";
const WHY: &str = "where it is, without credentials";
/// Parameters that contain credentials or keys.
const SECRETS: [&str; 9] = [
    "accessKey",
    "accessKeyID",
    "clientID",
    "clientSecret",
    "connectionString",
    "credentialsPath",
    "key",
    "salt",
    "token",
];

/// A key service or a store: the URI from a request, without credentials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePlace {
    scheme: &'static str,
    kind: String,
    parameters: BTreeMap<String, String>,
}

impl ServicePlace {
    fn new(scheme: &'static str, text: &str) -> Result<Self, UriError> {
        let parsed = Parsed::parse(scheme, text)?;
        let kind = match (scheme, parsed.kind) {
            // Both names mean the same.
            (STORAGE, "s3") => "aws",
            (_, kind) => kind,
        };
        let kind = kind.to_owned();
        let parameters = parsed.into_pairs(scheme)?;
        // A name is written verbatim.
        if !parameters.keys().chain([&kind]).all(|name| is_name(name)) {
            return Err(UriError::Malformed(scheme));
        }
        Ok(Self { scheme, kind, parameters })
    }

    /// The CA is part of the place: it determines which server is trusted.
    fn of(scheme: &'static str, named: &SecretBytes, ca: Option<&str>) -> Option<Self> {
        let text = std::str::from_utf8(named.expose(WHY)).ok()?;
        let mut place = Self::new(scheme, text).ok()?;
        let ca = ca.map(|ca| ("ca".to_owned(), ca.to_owned()));
        place.parameters.extend(ca);
        Some(place)
    }
}

fn is_name(text: &str) -> bool {
    let is_of_it = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_of_it)
}

impl FromStr for ServicePlace {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let place = match Self::new(KMS, text) {
            Err(UriError::Scheme(_)) => Self::new(STORAGE, text)?,
            place => place?,
        };
        let mut secrets = SECRETS.into_iter();
        match secrets.find(|one| place.parameters.contains_key(*one)) {
            Some(parameter) => {
                Err(UriError::Encoding { parameter, form: "left out: a place has no credentials" })
            }
            None => Ok(place),
        }
    }
}

impl fmt::Display for ServicePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer::new(self.scheme, &self.kind, Extent::Named);
        for (name, value) in &self.parameters {
            writer = writer.with(name, value.as_bytes());
        }
        let text = writer.finish();
        f.write_str(&String::from_utf8_lossy(text.expose(WHY)))
    }
}

/// A place that is not on the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not in the list of key services")]
#[non_exhaustive]
pub struct UnlistedPlace(pub ServicePlace);

/// Key services and stores that callers may name.
///
/// # Security
/// A caller who names a server makes the node connect to it and attest itself there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedPlaces(BTreeSet<ServicePlace>);

impl ListedPlaces {
    /// Allows these places. Keys derived from a master secret contact no service, and are always
    /// allowed.
    pub fn new(places: impl IntoIterator<Item = ServicePlace>) -> Self {
        Self(places.into_iter().collect())
    }

    /// Checks that both URIs lead to listed places only.
    ///
    /// # Errors
    /// [`UnlistedPlace`] with the first one.
    pub fn admit(&self, kms: &KmsUri, storage: &StorageUri) -> Result<(), UnlistedPlace> {
        // A master secret in the URI needs no store either.
        let Some(service) = kms.place() else {
            return Ok(());
        };
        let places = [Some(service), storage.place()];
        let mut unlisted = places.into_iter().flatten();
        match unlisted.find(|place| !self.0.contains(place)) {
            Some(place) => Err(UnlistedPlace(place)),
            None => Ok(()),
        }
    }
}

impl KmsUri {
    /// Where it leads; `None` for keys derived from a master secret in the URI.
    pub fn place(&self) -> Option<ServicePlace> {
        let ca = match self {
            Self::Cluster(_) => return None,
            Self::Trustee(key) => key.ca.as_deref(),
            Self::OpenBao(key) => key.ca.as_deref(),
            _ => None,
        };
        ServicePlace::of(KMS, &self.text(Extent::Named, WHY), ca)
    }
}

impl StorageUri {
    /// Where it leads; `None` without a store.
    pub fn place(&self) -> Option<ServicePlace> {
        match self {
            Self::NoStore => None,
            _ => ServicePlace::of(STORAGE, &self.text(Extent::Named, WHY), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(places: &[&str]) -> ListedPlaces {
        ListedPlaces::new(places.iter().map(|place| place.parse().unwrap()))
    }

    fn parsed(kms: &str, storage: &str) -> (KmsUri, StorageUri) {
        let storage = StorageUri::parse(storage).unwrap();
        (KmsUri::parse(kms).unwrap(), storage)
    }

    fn admit(list: &ListedPlaces, kms: &str, storage: &str) -> Result<(), String> {
        let (kms, storage) = parsed(kms, storage);
        let admitted = list.admit(&kms, &storage);
        admitted.map_err(|UnlistedPlace(place)| place.to_string())
    }

    const BAO: &str = "kms://openbao?url=https://bao:8200&mount=transit&keyName=kek";

    #[test]
    fn only_the_very_service_that_is_listed_is_admitted_with_whatever_credentials() {
        let list = listed(&[BAO]);
        let none = "storage://no-store";
        for token in ["one", "two"] {
            assert_eq!(admit(&list, &format!("{BAO}&token={token}"), none), Ok(()));
        }
        for other in [
            "kms://openbao?url=https://bao:8201&mount=transit&keyName=kek&token=t",
            "kms://openbao?url=https://bao:8200&mount=other&keyName=kek&token=t",
            "kms://openbao?url=https://bao:8200&mount=transit&keyName=kek&token=t&ca=mine",
            "kms://trustee?url=https://bao:8200&path=a/b/c",
        ] {
            let place = admit(&list, other, none).unwrap_err();
            // What is printed can be put on the list.
            assert_eq!(admit(&listed(&[&place]), other, none), Ok(()), "{place}");
            assert!(!place.contains("token"), "{place}");
        }
    }

    #[test]
    fn a_store_is_listed_like_a_service_and_a_master_secret_leads_nowhere() {
        let kms = format!("{BAO}&token=t");
        let s3 = "storage://s3?bucket=b&region=r&accessKeyID=i&accessKey=s";
        assert!(admit(&listed(&[BAO]), &kms, s3).is_err());
        let list = listed(&[BAO, "storage://s3?bucket=b&region=r"]);
        assert_eq!(admit(&list, &kms, s3), Ok(()));
        let elsewhere = format!("{s3}&endpoint=https://stranger");
        assert!(admit(&list, &kms, &elsewhere).is_err());
        let master = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                      &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";
        assert_eq!(admit(&listed(&[]), master, "storage://no-store"), Ok(()));
        assert!(admit(&listed(&[]), &kms, "storage://no-store").is_err());
    }

    #[test]
    fn an_entry_with_credentials_or_of_another_form_is_refused() {
        for text in [
            "https://bao:8200",
            "kms://openbao?url=https://bao&url=https://other",
            "kms://openbao?url=https://bao&mount=m&keyName=k&token=t",
            "storage://s3?bucket=b&region=r&accessKey=s",
        ] {
            assert!(text.parse::<ServicePlace>().is_err(), "{text}");
        }
    }
}
