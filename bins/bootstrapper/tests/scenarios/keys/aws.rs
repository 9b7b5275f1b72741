//! `kms://aws` and `storage://s3` on moto, which keeps keys and buckets like AWS, and verifies the signature
//! of each request.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};
use tec_core::port::{PortErrorKind, chain};
use tempfile::TempDir;

use super::server::{Server, tool};
use super::{disk, escaped, open, text};

const REGION: &str = "eu-central-1";
/// Number of setup actions, which need no signature.
const UNSIGNED: &str = "6";
const EVERYTHING: &str =
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}"#;

struct Aws {
    server: Server,
    client: reqwest::Client,
    id: String,
    secret: String,
    _directory: TempDir,
}

impl Aws {
    /// Starts moto with a user, a bucket `bucket`, and a key with the alias `kek`.
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(&directory.path().join("log"), |address| {
            let mut command = Command::new(tool("moto_server"));
            command
                .args(["--host", &address.ip().to_string()])
                .args(["--port", &address.port().to_string()])
                .env("INITIAL_NO_AUTH_ACTION_COUNT", UNSIGNED);
            command
        });
        drop(super::backends());
        let mut aws = Self {
            server,
            client: reqwest::Client::new(),
            id: String::new(),
            secret: String::new(),
            _directory: directory,
        };
        aws.iam("Action=CreateUser&UserName=node").await;
        let keys = aws.iam("Action=CreateAccessKey&UserName=node").await;
        (aws.id, aws.secret) = (element(&keys, "AccessKeyId"), element(&keys, "SecretAccessKey"));
        let policy = escaped(EVERYTHING);
        aws.iam(&format!(
            "Action=PutUserPolicy&UserName=node&PolicyName=all&PolicyDocument={policy}"
        ))
        .await;
        let location = format!(
            "<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint>\
             </CreateBucketConfiguration>"
        );
        aws.unsigned("s3", Method::PUT, "/bucket", None, location).await;
        let key = aws.kms_call("CreateKey", json!({})).await;
        let id = text(&key, "/KeyMetadata/KeyId");
        aws.kms_call("CreateAlias", json!({"AliasName": "alias/kek", "TargetKeyId": id})).await;
        aws
    }

    /// The scope of the credential tells moto which service is addressed.
    async fn unsigned(
        &self,
        service: &str,
        method: Method,
        path: &str,
        target: Option<&str>,
        body: String,
    ) -> String {
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=nobody/20260101/{REGION}/{service}/aws4_request, \
             SignedHeaders=host, Signature=none"
        );
        let url = format!("{}{path}", self.server.url());
        let mut request = self.client.request(method, url).header("Authorization", scope);
        request = match (target, service) {
            (Some(target), _) => request
                .header("X-Amz-Target", target)
                .header("Content-Type", "application/x-amz-json-1.1"),
            (None, "iam") => request.header("Content-Type", "application/x-www-form-urlencoded"),
            (None, _) => request,
        };
        let answer = request.body(body).send().await.unwrap();
        let status = answer.status();
        let text = String::from_utf8(answer.bytes().await.unwrap().to_vec()).unwrap();
        assert!(status.is_success(), "{service}: {text}");
        text
    }

    async fn iam(&self, form: &str) -> String {
        self.unsigned("iam", Method::POST, "/", None, format!("{form}&Version=2010-05-08")).await
    }

    async fn kms_call(&self, operation: &str, body: Value) -> Value {
        let target = format!("TrentService.{operation}");
        let answer = self.unsigned("kms", Method::POST, "/", Some(&target), body.to_string()).await;
        serde_json::from_str(&answer).unwrap_or_default()
    }

    fn credentials(&self, secret: &str) -> String {
        let escaped = escaped(secret);
        let (id, url) = (&self.id, self.server.url());
        format!("region={REGION}&accessKeyID={id}&accessKey={escaped}&endpoint={url}")
    }

    fn kms(&self, alias: &str, secret: &str) -> String {
        format!("kms://aws?{}&keyName={alias}", self.credentials(secret))
    }

    fn storage(&self, bucket: &str, secret: &str) -> String {
        format!("storage://s3?bucket={bucket}&{}", self.credentials(secret))
    }
}

fn element(xml: &str, name: &str) -> String {
    let rest = xml.split_once(&format!("<{name}>")).unwrap().1;
    rest.split_once("</").unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn data_keys_are_wrapped_by_aws_kms_and_kept_in_a_bucket() {
    let aws = Aws::start().await;
    let (kms, storage) = (aws.kms("kek", &aws.secret), aws.storage("bucket", &aws.secret));
    let keys = open(&kms, &storage).await.unwrap();
    let missing = keys.existing_data_key(&disk(1), 32).await.unwrap_err();
    assert_eq!(missing.kind(), PortErrorKind::NotFound, "{}", chain(&missing));
    let key = keys.data_key(&disk(1), 32).await.unwrap();
    let again = open(&kms, &storage).await.unwrap();
    assert!(again.existing_data_key(&disk(1), 32).await.unwrap().ct_eq(&key));

    // Several services request a new key concurrently, and all get the same one.
    let disk = disk(2);
    let ask = || async { open(&kms, &storage).await.unwrap().data_key(&disk, 32).await.unwrap() };
    let (a, b, c, d) = tokio::join!(ask(), ask(), ask(), ask());
    assert!(a.ct_eq(&b) && a.ct_eq(&c) && a.ct_eq(&d) && !a.ct_eq(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_aws_says_no_has_its_kind_and_tells_no_secret() {
    let aws = Aws::start().await;
    let secret = aws.secret.as_str();
    let (kms, storage) = (aws.kms("kek", secret), aws.storage("bucket", secret));
    open(&kms, &storage).await.unwrap().data_key(&disk(1), 32).await.unwrap();
    for (kms, storage, kind) in [
        (aws.kms("kek", "canary+/="), storage.clone(), PortErrorKind::Denied),
        (aws.kms("nothing", secret), storage.clone(), PortErrorKind::Invalid),
        (kms.clone(), aws.storage("bucket", "canary+/="), PortErrorKind::Denied),
    ] {
        let keys = open(&kms, &storage).await.unwrap();
        let error = keys.data_key(&disk(1), 32).await.unwrap_err();
        let shown = format!("{} {keys:?} {error:?}", chain(&error));
        assert_eq!(error.kind(), kind, "{shown}");
        assert!(!shown.contains("canary") && !shown.contains(secret), "{shown}");
    }
    let keys = open(&kms, &storage).await.unwrap();
    drop(aws);
    let error = keys.data_key(&disk(1), 32).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
}
