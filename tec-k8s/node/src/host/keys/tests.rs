//! Runs the suites of stores and wrappers. Servers in this test stand in for Azure and Google Cloud; they
//! implement the documented requests and nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::file::Resolved;
use super::*;

#[tokio::test]
async fn a_directory_keeps_the_contract_of_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/b");
    crate::testing::wrapped_keys(&FileKeys::new(&path)).await;
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in fs::read_dir(&path).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600);
        // Nothing is left of those that came too late.
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("key-"));
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let keys = FileKeys::new(file.join("below"));
    let id = crate::testing::data_key_id(1);
    let error = keys.add(&id, b"wrapped").await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
    assert!(keys.find(&id).await.is_err());
}

#[derive(Debug)]
struct Fixed;

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

async fn refusal(own: Vec<PathBuf>, kms: &str, storage: &str) -> Option<KeyServiceError> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let backends = KeyBackends::new(Arc::new(Fixed)).with_own_disk(own);
    let (kms, storage) = (KmsUri::parse(kms), StorageUri::parse(storage));
    let error = backends.open(kms.unwrap(), storage.unwrap()).await.err()?;
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    let source = std::error::Error::source(&error).unwrap();
    Some(match source.downcast_ref::<KeyServiceError>().unwrap() {
        KeyServiceError::OnItsOwnDisk => KeyServiceError::OnItsOwnDisk,
        other => panic!("{other}"),
    })
}

const BAO: &str = "kms://openbao?url=https://127.0.0.1:1&mount=m&keyName=k&token=t";

#[tokio::test]
async fn keys_are_not_kept_on_the_disk_that_they_open_by_whichever_name() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, elsewhere) = (directory.path().join("state"), directory.path().join("state-2"));
    let device = directory.path().join("device");
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(&device, "").unwrap();
    std::os::unix::fs::symlink(&disk, elsewhere.join("link")).unwrap();
    // The directory of a node that has no state yet.
    let state = directory.path().join("new/state");
    let own = vec![disk.clone(), device.clone(), state.clone()];
    let of = |path: &Path| format!("storage://file?path={}", path.display());
    for path in [
        disk.clone(),
        disk.join("keys/of/nodes"),
        disk.join("./keys/"),
        elsewhere.join("link"),
        elsewhere.join("link/keys"),
        device,
        state.join("keys"),
    ] {
        let refused = refusal(own.clone(), BAO, &of(&path)).await;
        let shown = path.display();
        assert!(matches!(refused, Some(KeyServiceError::OnItsOwnDisk)), "{shown}");
    }
    for path in [elsewhere.join("keys"), directory.path().join("stat"), "/srv/keys".into()] {
        let refused = refusal(own.clone(), BAO, &of(&path)).await;
        assert!(refused.is_none(), "{}", path.display());
    }
    // A separate file system is recognized by its number, wherever else it is mounted.
    assert!(is_on(Path::new("/proc/self"), Path::new("/proc")).unwrap());
    assert!(!is_on(directory.path(), Path::new("/proc")).unwrap());
    let (there, mount) = (Resolved::of(Path::new("/proc")), Resolved::of(&disk));
    assert!(there.unwrap().is_mounted().unwrap() && !mount.unwrap().is_mounted().unwrap());
}

#[cfg(feature = "experimental-clouds")]
mod cloud {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Head and body of a request.
    async fn request(stream: &mut TcpStream) -> (String, String) {
        let mut all = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&all).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.to_ascii_lowercase();
                let length = length.split_once("content-length: ").map_or("0", |(_, rest)| rest);
                let length = length.split("\r\n").next().unwrap();
                if body.len() >= length.parse::<usize>().unwrap() {
                    return (head.to_owned(), body.to_owned());
                }
            }
            assert_ne!(stream.read_buf(&mut all).await.unwrap(), 0, "{text}");
        }
    }

    /// Serves `answer` while running `client`, which gets the base URL.
    async fn beside(answer: impl Fn(&str, &str) -> (u16, Value), client: impl AsyncFnOnce(String)) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let serve = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (head, body) = request(&mut stream).await;
                let (status, answer) = answer(&head, &body);
                let answer = answer.to_string();
                let length = answer.len();
                let answer = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        tokio::select! {
            () = serve => unreachable!("it serves for ever"),
            () = client(base) => {}
        }
    }

    /// The test services' stand-in for wrapping.
    fn turned(bytes: &[u8]) -> Vec<u8> {
        bytes.iter().map(|byte| byte ^ 0x5a).collect()
    }

    fn wrapped(plain: &[u8]) -> Vec<u8> {
        [b"wrapped".to_vec(), turned(plain)].concat()
    }

    fn refusal() -> (u16, Value) {
        (400, json!({}))
    }

    fn member<'v>(body: &'v Value, name: &str) -> &'v str {
        body[name].as_str().unwrap_or_default()
    }

    fn vault(head: &str, body: &str) -> (u16, Value) {
        let target = head.split(' ').nth(1).unwrap();
        if target == "/tenant/oauth2/v2.0/token" {
            let expected = "grant_type=client_credentials&client_id=node&client_secret=a%2Bb%20c\
                            &scope=https%3A%2F%2Fvault.azure.net%2F.default";
            let status = if body == expected { 200 } else { 401 };
            return (status, json!({"access_token": "token", "expires_in": 3599}));
        }
        if !head.to_ascii_lowercase().contains("\r\nauthorization: bearer token") {
            return (401, json!({}));
        }
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(member(&body, "alg"), "RSA-OAEP-256");
        let value = URL_SAFE_NO_PAD.decode(member(&body, "value")).unwrap();
        match target {
            "/keys/kek/wrapkey?api-version=7.4" => {
                let kid = "https://v.vault.azure.net/keys/kek/0123456789abcdef0123456789abcdef";
                let value = URL_SAFE_NO_PAD.encode(wrapped(&value));
                (200, json!({"kid": kid, "value": value}))
            }
            "/keys/kek/0123456789abcdef0123456789abcdef/unwrapkey?api-version=7.4" => {
                let value = value.strip_prefix(b"wrapped").map(turned);
                let value = value.map(|value| URL_SAFE_NO_PAD.encode(value));
                value.map_or_else(refusal, |value| (200, json!({"value": value})))
            }
            _ => (404, json!({})),
        }
    }

    fn azure(secret: &str, base: &str) -> azure::KeyVault {
        let uri = format!(
            "kms://azure?tenantID=tenant&clientID=node&clientSecret={secret}&vaultName=v\
             &vaultType=vault.azure.net&keyName=kek"
        );
        let KmsUri::Azure(key) = KmsUri::parse(&uri).unwrap() else {
            unreachable!("the URI is of Azure");
        };
        azure::KeyVault::at(key, base.to_owned(), base.to_owned()).unwrap()
    }

    #[tokio::test]
    async fn azure_is_asked_as_its_documentation_says() {
        beside(vault, async |base| {
            crate::testing::key_wrapper(&azure("a%2Bb+c", &base)).await;
            let id = crate::testing::data_key_id(1);
            let plain = tec_core::testing::sample::secret(1);
            let refused = azure("canary", &base).wrap(&id, &plain).await.unwrap_err();
            assert_eq!(refused.kind(), PortErrorKind::Denied);
            assert!(!format!("{refused:?}").contains("canary"));
            // A version with a path traversal sends no request.
            let climbing = azure("a%2Bb+c", &base).unwrap(&id, b"../../x\nAAAA").await;
            assert_eq!(climbing.unwrap_err().kind(), PortErrorKind::Invalid);
        })
        .await;
    }

    fn google(head: &str, body: &str) -> (u16, Value) {
        let body: Value = serde_json::from_str(body).unwrap();
        let bound = member(&body, "additionalAuthenticatedData").to_owned();
        let key = "/v1/projects/p/locations/l/keyRings/r/cryptoKeys/kek";
        match head.split(' ').nth(1).unwrap().strip_prefix(key) {
            Some(":encrypt") => {
                let plain = STANDARD.decode(member(&body, "plaintext")).unwrap();
                let all = [bound.as_bytes(), &wrapped(&plain)].concat();
                (200, json!({"ciphertext": STANDARD.encode(all)}))
            }
            Some(":decrypt") => {
                let all = STANDARD.decode(member(&body, "ciphertext")).unwrap();
                let plain = all.strip_prefix(bound.as_bytes());
                let plain = plain.and_then(|rest| rest.strip_prefix(b"wrapped")).map(turned);
                let plain = plain.map(|plain| STANDARD.encode(plain));
                plain.map_or_else(refusal, |plain| (200, json!({"plaintext": plain})))
            }
            _ => (404, json!({})),
        }
    }

    #[test]
    fn what_the_signer_would_panic_over_is_refused() {
        for (id, endpoint) in [
            ("a%0Ab", "https://s3.test"),
            ("%C3%A9", "https://s3.test"),
            ("a", "https://1.2.3.999"),
        ] {
            let common = format!("region=r&accessKeyID={id}&accessKey=s&endpoint={endpoint}");
            let kms = KmsUri::parse(&format!("kms://aws?keyName=k&{common}")).unwrap();
            let error = cloud_wrapper(kms).unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::Invalid);
            let storage = StorageUri::parse(&format!("storage://s3?bucket=b&{common}")).unwrap();
            let error = cloud_store(&storage).unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::Invalid);
        }
    }

    #[tokio::test]
    async fn google_cloud_is_asked_as_its_documentation_says() {
        let directory = tempfile::tempdir().unwrap();
        let credentials = directory.path().join("credentials.json");
        // Credentials for the stand-in for Google, which needs no login.
        let file = json!({"private_key": "", "private_key_id": "", "client_email": "",
                          "disable_oauth": true});
        fs::write(&credentials, file.to_string()).unwrap();
        let path = credentials.display();
        let uri = format!(
            "kms://gcp?projectID=p&location=l&keyRing=r&credentialsPath={path}&keyName=kek"
        );
        let KmsUri::Gcp(key) = KmsUri::parse(&uri).unwrap() else {
            unreachable!("the URI is of Google Cloud");
        };
        beside(google, async |base| {
            let kms = gcp::GcpKms::at(&key, &base).unwrap();
            crate::testing::key_wrapper(&kms).await;
            let ids = [1, 2].map(crate::testing::data_key_id);
            let wrapped = kms.wrap(&ids[0], &tec_core::testing::sample::secret(1)).await.unwrap();
            let moved = kms.unwrap(&ids[1], &wrapped).await.unwrap_err();
            assert_eq!(moved.kind(), PortErrorKind::Invalid);
        })
        .await;
        for bad in [
            uri.replace("credentials.json", "nothing.json"),
            "kms://gcp?projectID=p&location=l&keyRing=r&credentialsPath=/dev/ptmx&keyName=kek"
                .to_owned(),
        ] {
            let KmsUri::Gcp(key) = KmsUri::parse(&bad).unwrap() else {
                unreachable!("the URI is of Google Cloud");
            };
            assert_eq!(gcp::GcpKms::new(&key).unwrap_err().kind(), PortErrorKind::Invalid);
        }
    }

    #[tokio::test]
    async fn buckets_of_every_cloud_are_opened_and_tell_no_secret() {
        for (uri, kind) in [
            ("storage://s3?bucket=b&region=r&accessKeyID=i&accessKey=canary", "s3"),
            (
                "storage://azure?account=a&container=c&tenantID=t&clientID=i&clientSecret=canary",
                "azure",
            ),
        ] {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let store = object::ObjectKeys::new(&StorageUri::parse(uri).unwrap()).unwrap();
            assert_eq!(format!("{store:?}"), format!("ObjectKeys({kind:?})"));
        }
    }
}
