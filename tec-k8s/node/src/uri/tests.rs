use proptest::prelude::*;

use super::*;
use crate::derive::DataKeyId;

/// Master key 40..5f, salt 60..7f (Constellation).
const CLUSTER: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                       &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";

fn text(secret: &tec_core::secret::SecretBytes) -> String {
    String::from_utf8(secret.expose("compare").to_vec()).unwrap()
}

#[test]
fn the_uri_of_a_cluster_kms_gives_the_recorded_keys() {
    let KmsUri::Cluster(master) = KmsUri::parse(CLUSTER).unwrap() else {
        panic!("another type");
    };
    let key = master.data_key(&DataKeyId::measurement_secret(), 32).unwrap();
    assert_eq!(
        hex::encode(key.expose("compare")),
        "4790578891f3fe6cc22cb661ecdc1b7e33121b1287546a52ba33a9136719c213"
    );
}

#[test]
fn every_way_to_be_wrong_has_its_error_and_tells_no_value() {
    let missing = |parameter| UriError::Missing(parameter);
    for (uri, expected) in [
        ("nonsense", UriError::Malformed("kms")),
        ("storage://no-store", UriError::Scheme("kms")),
        ("kms://canary", UriError::UnknownType("kms")),
        ("kms://cluster-kms?key=Y2FuYXJ5", missing("salt")),
        ("kms://cluster-kms?key=&salt=Y2FuYXJ5", missing("key")),
        (
            "kms://cluster-kms?key=canary!&salt=Y2FuYXJ5",
            UriError::Encoding {
                parameter: "key",
                form: "base64 of the URL-safe alphabet, padded",
            },
        ),
        ("kms://cluster-kms?key=Y2FuYXJ5&key=Y2FuYXJ5&salt=Y2FuYXJ5", UriError::Duplicate("key")),
        ("kms://cluster-kms?key=Y2FuYXJ5&salt=Y2FuYXJ5&canary=1", UriError::Unknown { count: 1 }),
        ("kms://trustee?url=%zz&path=a", UriError::Malformed("kms")),
    ] {
        let error = KmsUri::parse(uri).unwrap_err();
        assert_eq!(error, expected, "{uri}");
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
    for path in ["canary", "/canary/../run"] {
        let error = StorageUri::parse(&format!("storage://file?path={path}")).unwrap_err();
        assert!(matches!(error, UriError::Encoding { parameter: "path", .. }), "{path}");
    }
}

#[test]
fn nothing_that_goes_into_a_url_can_climb_or_leave_the_machine_in_plain_text() {
    for (uri, expected) in [
        ("kms://openbao?url=https://b&mount=..&keyName=k&token=t", "mount"),
        ("kms://openbao?url=https://b&mount=a//b&keyName=k&token=t", "mount"),
        ("kms://openbao?url=https://b&mount=m&keyName=a/b&token=t", "keyName"),
        ("kms://openbao?url=http://b&mount=m&keyName=k&token=t", "url"),
        ("kms://openbao?url=http://127.0.0.1.b&mount=m&keyName=k&token=t", "url"),
        ("kms://openbao?url=https://b/path&mount=m&keyName=k&token=t", "url"),
        ("kms://trustee?url=http://10.0.0.1&path=a/b/c", "url"),
        ("kms://trustee?url=https://kbs&path=a/b", "path"),
        ("kms://aws?region=a.b/&accessKeyID=i&accessKey=a&keyName=n", "region"),
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
        // We escape base64 padding when writing; peers did not.
        assert_eq!(written.replace("%3D", "="), uri);
        assert_eq!(text(&KmsUri::parse(&written).unwrap().to_secret_text("test")), written);
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

/// URIs of the older implementation (Constellation), whose credentials are those of the machine's platform,
/// whatever the machine booted. Without credentials, no URI is accepted.
#[test]
fn a_cloud_is_not_asked_with_the_identity_of_the_machine() {
    for uri in [
        "kms://aws?keyPolicy=p&kekID=Zm9v",
        "kms://gcp?project=p&location=l&keyRing=r&protectionLvl=1&kekID=Zm9v",
        "kms://aws?region=r&keyName=n",
        "kms://azure?tenantID=t&vaultName=v&vaultType=t&keyName=n",
        "kms://gcp?projectID=p&location=l&keyRing=r&keyName=n",
    ] {
        let refused = KmsUri::parse(uri);
        assert!(matches!(refused, Err(UriError::Missing(_))), "{uri}: {refused:?}");
    }
    for uri in ["kms://azure-kms?name=v&type=t&kekID=Zm9v", "kms://azure-hsm?name=v&kekID=Zm9v"] {
        assert_eq!(KmsUri::parse(uri).unwrap_err(), UriError::UnknownType("kms"));
    }
    for uri in [
        "storage://aws?bucket=b",
        "storage://aws?bucket=b&region=r",
        "storage://azure?account=a&container=c",
        "storage://gcp?project=p&bucket=b",
        "storage://gcp?projectID=p&bucket=b",
    ] {
        let refused = StorageUri::parse(uri);
        assert!(matches!(refused, Err(UriError::Missing(_))), "{uri}: {refused:?}");
    }
}

#[test]
fn a_connection_string_names_its_account_and_where_its_blobs_are() {
    let parse = |connection: &str| {
        let escaped = connection.replace('=', "%3D").replace('+', "%2B");
        StorageUri::parse(&format!("storage://azure?container=keys&connectionString={escaped}"))
    };
    let cloud = "DefaultEndpointsProtocol=https;AccountName=one;AccountKey=Y2Fu+XJ5;\
                 EndpointSuffix=core.chinacloudapi.cn";
    let other = "AccountName=one;AccountKey=Y2Fu+XJ5;BlobEndpoint=http://127.0.0.1:10000/one/";
    for (connection, endpoint) in [
        (cloud, "https://one.blob.core.chinacloudapi.cn"),
        (
            "DefaultEndpointsProtocol=https;AccountName=one;AccountKey=Y2Fu+XJ5",
            "https://one.blob.core.windows.net",
        ),
        (other, "http://127.0.0.1:10000/one"),
    ] {
        let StorageUri::AzureConnection(one) = parse(connection).unwrap() else {
            panic!("{connection}");
        };
        assert_eq!((&*one.container, &*one.account), ("keys", "one"));
        assert_eq!(one.key.expose("compare"), b"Y2Fu+XJ5");
        assert_eq!(one.endpoint, endpoint);
        assert!(!format!("{one:?}").contains("Y2Fu"));
        let written = text(&StorageUri::AzureConnection(one).to_secret_text("test"));
        let StorageUri::AzureConnection(again) = StorageUri::parse(&written).unwrap() else {
            panic!("{written}");
        };
        assert_eq!(again.endpoint, endpoint);
        assert_eq!(text(&StorageUri::AzureConnection(again).to_secret_text("test")), written);
    }
    for bad in [
        "AccountName=one;AccountKey=Y2FuYXJ5",
        "DefaultEndpointsProtocol=http;AccountName=one;AccountKey=Y2FuYXJ5",
        "DefaultEndpointsProtocol=https;AccountName=;AccountKey=Y2FuYXJ5",
        "DefaultEndpointsProtocol=https;AccountName=a/b;AccountKey=Y2FuYXJ5",
        "DefaultEndpointsProtocol=https;AccountName=one;AccountKey=Y2FuYXJ5!",
        "DefaultEndpointsProtocol=https;AccountName=one;SharedAccessSignature=Y2FuYXJ5",
        "AccountName=one;AccountKey=Y2FuYXJ5;BlobEndpoint=http://10.0.0.1",
        "AccountName=one;AccountKey=Y2FuYXJ5;BlobEndpoint=https://a/other",
        "UseDevelopmentStorage=true",
    ] {
        let error = parse(bad).unwrap_err();
        assert!(matches!(error, UriError::Encoding { .. }), "{bad}: {error}");
        assert!(!error.to_string().contains("Y2Fu"));
    }
}

proptest! {
    #[test]
    fn any_value_survives_and_is_decoded_once(value in "\\PC{1,40}") {
        let key = OpenBaoKey {
            url: "https://bao".parse().unwrap(),
            mount: "transit".to_owned(),
            key_name: "k".to_owned(),
            token: tec_core::secret::SecretBytes::new(value.clone().into_bytes()),
            ca: Some(value.clone()),
        };
        let written = text(&KmsUri::OpenBao(key).to_secret_text("test"));
        let KmsUri::OpenBao(read) = KmsUri::parse(&written).unwrap() else {
            panic!("another type");
        };
        prop_assert_eq!(read.ca.as_ref(), Some(&value));
        prop_assert_eq!(read.token.expose("compare"), value.as_bytes());
    }
}

#[test]
fn other_credentials_for_the_same_key_and_store_leave_their_identity_as_it_was() {
    let kms = |uri: &str| KmsUri::parse(uri).unwrap().identity();
    let bao = "kms://openbao?url=https://b&mount=m&keyName=k&token=one&ca=one";
    let aws = "kms://aws?region=r&accessKeyID=one&accessKey=one&keyName=k";
    let azure = "kms://azure?tenantID=t&clientID=one&clientSecret=one&vaultName=v\
                 &vaultType=vault.azure.net&keyName=k";
    for uri in [bao, aws, azure] {
        assert_eq!(kms(uri), kms(&uri.replace("one", "two")), "{uri}");
        let other = uri.replace("keyName=k", "keyName=other");
        assert_ne!(kms(uri), kms(&other), "{uri}");
    }
    let cluster = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                   &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";
    assert_ne!(kms(cluster), kms(&cluster.replace("QEFC", "QUFC")));
    let storage = |uri: &str| StorageUri::parse(uri).unwrap().identity();
    let s3 = "storage://aws?bucket=b&region=r&accessKeyID=one&accessKey=one";
    let blobs = "storage://azure?account=a&container=b&tenantID=t&clientID=one&clientSecret=one";
    let connection = "storage://azure?container=b&connectionString=AccountName%3Da%3B\
                      AccountKey%3Dbm9uZQ%3D%3D%3BDefaultEndpointsProtocol%3Dhttps";
    for uri in [s3, blobs, connection] {
        let rotated = uri.replace("one", "two").replace("bm9uZQ", "c29tZQ");
        assert_ne!(uri, rotated);
        assert_eq!(storage(uri), storage(&rotated), "{uri}");
        let other =
            uri.replace("bucket=b", "bucket=other").replace("container=b", "container=other");
        assert_ne!(storage(uri), storage(&other), "{uri}");
    }
}
