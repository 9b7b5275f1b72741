//! URIs of key services and stores, and the places named in a list of them.

use tec_node::uri::{KmsUri, ListedPlaces, ServicePlace, StorageUri};

use crate::{Seed, outcome};

/// What is written parses again to the same value; a URI refers to its place and no other.
pub(crate) fn service_uri(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(place) = text.parse::<ServicePlace>() {
        check_place(&place);
    }
    let trustee = KmsUri::parse("kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc");
    let trustee = trustee.expect("a URI");
    if let Ok(kms) = KmsUri::parse(text) {
        check_listed(&kms, &StorageUri::NoStore);
    }
    if let Ok(storage) = StorageUri::parse(text) {
        check_listed(&trustee, &storage);
    }
}

fn check_place(place: &ServicePlace) {
    let again = place.to_string().parse::<ServicePlace>();
    assert_eq!(again.as_ref(), Ok(place));
}

fn check_listed(kms: &KmsUri, storage: &StorageUri) {
    let Some(service) = kms.place() else {
        return;
    };
    check_place(&service);
    assert!(ListedPlaces::default().admit(kms, storage).is_err());
    let places: Vec<ServicePlace> =
        [Some(service), storage.place()].into_iter().flatten().collect();
    for place in &places {
        check_place(place);
        let others = places.iter().filter(|other| *other != place).cloned();
        assert!(ListedPlaces::new(others).admit(kms, storage).is_err());
    }
    assert!(ListedPlaces::new(places).admit(kms, storage).is_ok());
}

pub(crate) fn seeds() -> Vec<Seed> {
    let place = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        outcome(text.parse::<ServicePlace>())
    };
    vec![
        Seed::new("trustee", "kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc"),
        Seed::new("trustee_with_ca", "kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc&ca=UEVN"),
        Seed::new("openbao", "kms://openbao?url=https%3A%2F%2Fbao&mount=m&keyName=k&token=t"),
        Seed::new("no_store", "storage://no-store"),
        Seed::new("bucket", "storage://aws?bucket=b&region=eu-central-1&accessKeyID=a&accessKey=c"),
        Seed::new("place_of_a_bucket", "storage://s3?bucket=b&region=eu-central-1"),
        Seed::new("place_with_a_name_that_is_none", "kms://trustee?u%26l=x").refused(place),
        Seed::new("place_with_a_token", "kms://openbao?url=https%3A%2F%2Fbao&token=t")
            .refused(place),
    ]
}
