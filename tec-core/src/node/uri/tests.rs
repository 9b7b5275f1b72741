use proptest::prelude::*;

use super::*;
use crate::node::derive::DataKeyId;

/// Master key 40..5f, salt 60..7f (contract, appendix A).
const CLUSTER: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                       &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";

fn text(secret: &crate::secret::SecretBytes) -> String {
    String::from_utf8(secret.expose("compare").to_vec()).unwrap()
}

#[test]
fn the_uri_of_a_cluster_kms_gives_the_keys_of_the_contract() {
    let KmsUri::Cluster(master) = KmsUri::parse(CLUSTER).unwrap() else {
        panic!("another type");
    };
    let key = master
        .data_key(&DataKeyId::measurement_secret(), 32)
        .unwrap();
    assert_eq!(
        hex::encode(key.expose("compare")),
        "4790578891f3fe6cc22cb661ecdc1b7e33121b1287546a52ba33a9136719c213"
    );
}

#[test]
fn every_way_to_be_wrong_has_its_error_and_tells_no_value() {
    let missing = |parameter| UriError::Missing { parameter };
    for (uri, expected) in [
        ("nonsense", UriError::Malformed { scheme: "kms" }),
        ("storage://no-store", UriError::Scheme { scheme: "kms" }),
        ("kms://canary", UriError::UnknownType { scheme: "kms" }),
        ("kms://cluster-kms?key=Y2FuYXJ5", missing("salt")),
        ("kms://cluster-kms?key=&salt=Y2FuYXJ5", missing("key")),
        (
            "kms://cluster-kms?key=canary!&salt=Y2FuYXJ5",
            UriError::Encoding {
                parameter: "key",
                form: "base64 of the URL-safe alphabet, padded",
            },
        ),
        (
            "kms://cluster-kms?key=Y2FuYXJ5&key=Y2FuYXJ5&salt=Y2FuYXJ5",
            UriError::Duplicate { parameter: "key" },
        ),
        (
            "kms://cluster-kms?key=Y2FuYXJ5&salt=Y2FuYXJ5&canary=1",
            UriError::Unknown { count: 1 },
        ),
        (
            "kms://trustee?url=%zz&path=a",
            UriError::Malformed { scheme: "kms" },
        ),
    ] {
        let error = KmsUri::parse(uri).unwrap_err();
        assert_eq!(error, expected, "{uri}");
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
    let relative = StorageUri::parse("storage://file?path=canary").unwrap_err();
    assert!(matches!(
        relative,
        UriError::Encoding {
            parameter: "path",
            ..
        }
    ));
}

#[test]
fn nothing_that_goes_into_a_url_can_climb_or_leave_the_machine_in_plain_text() {
    for (uri, expected) in [
        (
            "kms://openbao?url=https://b&mount=..&keyName=k&token=t",
            "mount",
        ),
        (
            "kms://openbao?url=https://b&mount=a//b&keyName=k&token=t",
            "mount",
        ),
        (
            "kms://openbao?url=https://b&mount=m&keyName=a/b&token=t",
            "keyName",
        ),
        (
            "kms://openbao?url=http://b&mount=m&keyName=k&token=t",
            "url",
        ),
        (
            "kms://openbao?url=http://127.0.0.1.b&mount=m&keyName=k&token=t",
            "url",
        ),
        (
            "kms://openbao?url=https://b/path&mount=m&keyName=k&token=t",
            "url",
        ),
        ("kms://trustee?url=http://10.0.0.1&path=a/b/c", "url"),
        ("kms://trustee?url=https://kbs&path=a/b", "path"),
        (
            "kms://aws?region=a.b/&accessKeyID=i&accessKey=a&keyName=n",
            "region",
        ),
    ] {
        let parsed = KmsUri::parse(uri);
        let Err(UriError::Encoding { parameter, .. }) = parsed else {
            panic!("{uri}: {parsed:?}");
        };
        assert_eq!(parameter, expected, "{uri}");
    }
    assert!(KmsUri::parse("kms://trustee?url=http://127.0.0.1:8080&path=a/b/c").is_ok());
}

#[test]
fn debug_tells_no_secret() {
    let kms =
        KmsUri::parse("kms://openbao?url=https://bao&mount=m&keyName=k&token=canary").unwrap();
    let store = "storage://s3?bucket=b&region=r&accessKeyID=i&accessKey=canary";
    let store = StorageUri::parse(store).unwrap();
    assert!(!format!("{kms:?} {store:?}").contains("canary"));
}

#[test]
fn every_type_survives_being_written() {
    for uri in [
        CLUSTER,
        "kms://aws?region=r&accessKeyID=i&accessKey=a%2Fb%2Bc%25&keyName=n",
        "kms://aws?region=r&accessKeyID=i&accessKey=a&keyName=n&endpoint=http%3A%2F%2F127.0.0.1%3A1",
        "kms://azure?tenantID=t&clientID=c&clientSecret=s%20s&vaultName=v&vaultType=t&keyName=n",
        "kms://gcp?projectID=p&location=l&keyRing=r&credentialsPath=%2Fc&keyName=n",
        "kms://trustee?url=https%3A%2F%2Fkbs&path=default%2Fcluster%2Fmaster",
        "kms://trustee?url=https%3A%2F%2Fkbs&path=default%2Fcluster%2Fmaster&ca=-----BEGIN%0A",
        "kms://openbao?url=https%3A%2F%2Fbao&mount=teams%2Ftransit&keyName=n&token=t",
    ] {
        let parsed = KmsUri::parse(uri).unwrap();
        let written = text(&parsed.to_secret_text("test"));
        // Base64's padding is escaped when we write it, and was not when peers did.
        assert_eq!(written.replace("%3D", "="), uri);
        assert_eq!(
            text(&KmsUri::parse(&written).unwrap().to_secret_text("test")),
            written
        );
    }
    for uri in [
        "storage://no-store",
        "storage://aws?bucket=b&region=r&accessKeyID=i&accessKey=a%2Fb%2B&endpoint=http%3A%2F%2F%5B%3A%3A1%5D%3A9",
        "storage://azure?account=a&container=c&tenantID=t&clientID=i&clientSecret=s",
        "storage://gcp?projectID=p&bucket=b&credentialsPath=%2Fc",
        "storage://file?path=%2Fvar%2Fkeys",
    ] {
        let written = StorageUri::parse(uri).unwrap().to_secret_text("test");
        assert_eq!(text(&written), uri);
    }
}

proptest! {
    #[test]
    fn any_value_survives_and_is_decoded_once(value in "\\PC{1,40}") {
        let key = OpenBaoKey {
            url: "https://bao".parse().unwrap(),
            mount: "transit".to_owned(),
            key_name: "k".to_owned(),
            token: crate::secret::SecretBytes::new(value.clone().into_bytes()),
            ca: Some(value.clone()),
        };
        let written = text(&KmsUri::OpenBao(key).to_secret_text("test"));
        let KmsUri::OpenBao(read) = KmsUri::parse(&written).unwrap() else {
            panic!("another type");
        };
        prop_assert_eq!(read.ca.as_ref(), Some(&value));
        prop_assert_eq!(read.token.expose("compare"), value.as_bytes());
    }

    #[test]
    fn no_text_makes_it_panic(text in "(kms|storage)://(aws|file|cluster-kms)?[?&=%+a-z]{0,60}") {
        let _ = KmsUri::parse(&text);
        let _ = StorageUri::parse(&text);
    }
}
