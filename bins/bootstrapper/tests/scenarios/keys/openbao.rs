//! `kms://openbao` on a real OpenBao, and `storage://file`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_core::port::PortErrorKind;
use tec_node::derive::DataKeyId;
use tec_node::port::StateDisk as _;
use tec_node::rpc::generated::recoverproto::RecoverMessage;
use tec_node::rpc::generated::recoverproto::api_client::ApiClient;
use tempfile::TempDir;
use tonic::Code;

use super::server::{Server, tool};
use super::{disk, open, text};
use crate::init;
use crate::recover::ended;
use crate::stage::Machine;

const ROOT: &str = "root-of-a-test";
/// The permissions of a node or a join service.
const POLICY: &str = r#"path "transit/encrypt/kek" { capabilities = ["update"] }
path "transit/decrypt/kek" { capabilities = ["update"] }"#;

pub(crate) struct Bao {
    directory: TempDir,
    server: Server,
    client: reqwest::Client,
}

impl Bao {
    /// Starts OpenBao with a transit engine that contains the keys `kek` and `other`.
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("config.hcl");
        // Otherwise it also listens on the next port, which another test may use.
        std::fs::write(&config, "disable_clustering = true\n").unwrap();
        let server = Server::start(&directory.path().join("log"), |address| {
            let mut command = Command::new(tool("bao"));
            command
                .args(["server", "-dev", "-dev-no-store-token"])
                .arg(format!("-dev-root-token-id={ROOT}"))
                .arg(format!("-dev-listen-address={address}"))
                .arg(format!("-config={}", config.display()))
                .env("HOME", directory.path());
            command
        });
        drop(super::backends());
        let bao = Self { directory, server, client: reqwest::Client::new() };
        bao.post("sys/mounts/transit", json!({"type": "transit"})).await;
        bao.post("transit/keys/kek", json!({})).await;
        bao.post("transit/keys/other", json!({})).await;
        bao.post("sys/policies/acl/node", json!({"policy": POLICY})).await;
        bao
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let url = format!("{}/v1/{path}", self.server.url());
        let post = self.client.post(url).header("X-Vault-Token", ROOT);
        let answer = post.body(body.to_string()).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {answer:?}");
        let body = answer.bytes().await.unwrap();
        serde_json::from_slice(&body).unwrap_or_default()
    }

    /// A token with the permissions of a node.
    pub(crate) async fn token(&self) -> String {
        let answer = self.post("auth/token/create", json!({"policies": ["node"]})).await;
        text(&answer, "/auth/client_token").to_owned()
    }

    pub(crate) fn kms(&self, key: &str, token: &str) -> String {
        let url = self.server.url();
        format!("kms://openbao?url={url}&mount=transit&keyName={key}&token={token}")
    }

    pub(crate) fn storage(&self) -> String {
        format!("storage://file?path={}/keys", self.directory.path().display())
    }
}

#[tokio::test]
async fn data_keys_are_wrapped_by_transit_and_kept_in_files_that_say_nothing() {
    let bao = Bao::start().await;
    let kms = bao.kms("kek", &bao.token().await);
    let keys = open(&kms, &bao.storage()).await.unwrap();
    let missing = keys.existing_data_key(&disk(1), 32).await.unwrap_err();
    assert_eq!(missing.kind(), PortErrorKind::NotFound);
    let key = keys.data_key(&disk(1), 32).await.unwrap();
    // A different process, after the key was rotated.
    bao.post("transit/keys/kek/rotate", json!({})).await;
    let again = open(&kms, &bao.storage()).await.unwrap();
    assert!(again.existing_data_key(&disk(1), 32).await.unwrap().ct_eq(&key));
    assert!(!again.data_key(&disk(2), 32).await.unwrap().ct_eq(&key));

    let directory = bao.directory.path().join("keys");
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().starts_with("vault:v"));
        names.push(path.file_name().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, [disk(1).as_str(), disk(2).as_str()]);

    // Whoever can write to the directory cannot give one disk the key of another.
    fs::copy(directory.join(disk(1).as_str()), directory.join(disk(2).as_str())).unwrap();
    let swapped = again.existing_data_key(&disk(2), 32).await.unwrap_err();
    assert_eq!(swapped.kind(), PortErrorKind::Invalid);
}

#[tokio::test]
async fn every_way_openbao_says_no_has_its_kind_and_tells_no_token() {
    let bao = Bao::start().await;
    let token = bao.token().await;
    let stored = bao.kms("kek", &token);
    let keys = open(&stored, &bao.storage()).await.unwrap();
    keys.data_key(&disk(1), 32).await.unwrap();
    for (kms, kind) in [
        (bao.kms("kek", "canary-token"), PortErrorKind::Denied),
        (bao.kms("other", &token), PortErrorKind::Denied),
        // The key exists, but did not wrap this.
        (bao.kms("other", ROOT), PortErrorKind::Invalid),
        (stored.replace("mount=transit", "mount=nowhere"), PortErrorKind::Denied),
    ] {
        let keys = open(&kms, &bao.storage()).await.unwrap();
        let error = keys.data_key(&disk(1), 32).await.unwrap_err();
        let shown = format!("{} {keys:?} {error:?}", tec_core::port::chain(&error));
        assert_eq!(error.kind(), kind, "{shown}");
        for canary in ["canary-token", token.as_str(), ROOT] {
            assert!(!shown.contains(canary), "{shown}");
        }
    }
    bao.post("sys/seal", json!({})).await;
    let error = keys.data_key(&disk(1), 32).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
    let kms = bao.kms("kek", &token);
    let storage = bao.storage();
    drop(bao);
    let keys = open(&kms, &storage).await.unwrap();
    let error = keys.data_key(&disk(2), 32).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_key_that_openbao_wraps_is_made_by_init_and_found_by_recovery() {
    let bao = Bao::start().await;
    let token = bao.token().await;
    let kms = bao.kms("kek", &token);
    let mut machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    let mut request = init::request();
    (request.kms_uri, request.storage_uri) = (kms.clone(), bao.storage());
    let cluster = init::init(&machine, request).await.unwrap().cluster_id;
    let log = ended(program).await;
    assert!(!log.contains(&token), "{log}");
    let register = Sha256Digest::ZERO.extended(&Sha256Digest::of(cluster));
    assert_eq!(machine.register(), register);
    let keys = open(&kms, &bao.storage()).await.unwrap();
    let id = DataKeyId::state_disk(machine.disk().id().await.unwrap());
    let key = keys.existing_data_key(&id, 32).await.unwrap();
    assert!(machine.opens_with(key.expose("try it")).await);

    machine.reboot();
    machine.write_settings(&[]);
    // A storage that has lost the disk must not create a key that opens nothing.
    let other = bao.directory.path().join("other");
    let wrong = format!("storage://file?path={}", other.display());
    let place = kms.split("&token").next().unwrap();
    machine.list_key_services(&[place, &bao.storage(), &wrong]);
    let program = machine.start("recover").serving();
    let mut client = ApiClient::new(machine.dial(&machine.recovery_address()).await);
    let message = |storage_uri: &str| RecoverMessage {
        kms_uri: kms.clone(),
        storage_uri: storage_uri.to_owned(),
        ..RecoverMessage::default()
    };
    for (storage, code) in
        [(wrong.as_str(), Code::NotFound), ("storage://no-store", Code::InvalidArgument)]
    {
        let refused = client.recover(message(storage)).await.err().unwrap();
        assert_eq!(refused.code(), code, "{storage}");
    }
    assert!(!other.exists());
    client.recover(message(&bao.storage())).await.unwrap();
    let log = ended(program).await;
    assert_eq!(machine.register(), register);
    assert!(!log.contains(&token), "{log}");
    machine.assert_no_secrets(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_before_its_end_where_it_can_be() {
    let bao = Bao::start().await;
    let renew = async |token: &str| {
        let keys = open(&bao.kms("kek", token), &bao.storage()).await.unwrap();
        keys.renew().await.map_err(|error| error.kind())
    };
    let token = async |more: Value| {
        let mut body = json!({"policies": ["node"]});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let answer = bao.post("auth/token/create", body).await;
        let member = |name| text(&answer, name).to_owned();
        (member("/auth/client_token"), member("/auth/accessor"))
    };
    let (short, accessor) = token(json!({"ttl": "100s"})).await;
    let is_renewed = async || {
        let body = json!({"accessor": &accessor});
        let found = bao.post("auth/token/lookup-accessor", body).await;
        found.pointer("/data/last_renewal_time").is_some()
    };
    assert!(!is_renewed().await);
    assert_eq!(renew(&short).await, Ok(Some(Duration::from_secs(50))));
    assert!(is_renewed().await);
    assert_eq!(renew(ROOT).await, Ok(None), "it has no end");
    let (fixed, _) = token(json!({"ttl": "100s", "renewable": false})).await;
    assert_eq!(renew(&fixed).await, Err(PortErrorKind::Denied));
    // The default policy allows a token to renew itself.
    let (bare, _) = token(json!({"ttl": "100s", "no_default_policy": true})).await;
    assert_eq!(renew(&bare).await, Err(PortErrorKind::Denied));
    assert_eq!(renew("unknown").await, Err(PortErrorKind::Denied));
}

#[tokio::test]
async fn a_service_that_derives_nothing_needs_a_store() {
    let kms = "kms://openbao?url=https://bao&mount=transit&keyName=k&token=t";
    let error = open(kms, "storage://no-store").await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    assert!(tec_core::port::chain(&error).contains("no-store"));
    let ca = format!("{kms}&ca=nonsense");
    let error = open(&ca, "storage://file?path=/nowhere").await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
}

#[cfg(not(feature = "aws"))]
#[tokio::test]
async fn a_cloud_that_is_not_built_in_is_refused_by_the_name_of_its_feature() {
    let bao = "kms://openbao?url=https://bao&mount=transit&keyName=k&token=t";
    let file = "storage://file?path=/nowhere";
    for (kms, storage, feature) in [
        ("kms://aws?region=r&accessKeyID=i&accessKey=a&keyName=n", file, "aws"),
        (bao, "storage://s3?bucket=b&region=r&accessKeyID=i&accessKey=a", "aws"),
        (bao, "storage://gcp?projectID=p&bucket=b&credentialsPath=/c", "experimental-clouds"),
    ] {
        let error = open(kms, storage).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Invalid);
        assert!(tec_core::port::chain(&error).ends_with(feature));
    }
}
