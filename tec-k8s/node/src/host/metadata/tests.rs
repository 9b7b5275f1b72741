//! Test metadata services, over real connections.

use crate::metadata::MetadataSource;
use tec_core::port::PortErrorKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

const AZURE: &str = r#"{"compute": {"resourceId": "/subscriptions/s/vm", "osProfile":
 {"computerName": "Plane_0"}, "tagsList": [
 {"name": "constellation-role", "value": "control-plane"},
 {"name": "constellation-init-secret-hash", "value": "sha256:00"},
 {"name": "tec-api-server", "value": "10.0.0.1"},
 {"name": "tec-control-planes", "value": "10.0.0.1,10.0.0.2"}]},
 "network": {"interface": [{"ipv4": {"ipAddress": [{"privateIpAddress": "10.0.0.7"}]}}]}}"#;

/// Answers requests one after the other with the result of `answer` for their heads; returns the base URL.
async fn serve(
    answer: impl Fn(&str) -> (u16, String) + Send + 'static,
) -> (String, impl Future<Output = ()>) {
    serve_as("Google", answer).await
}

async fn serve_as(
    flavor: &'static str,
    answer: impl Fn(&str) -> (u16, String) + Send + 'static,
) -> (String, impl Future<Output = ()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let run = async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let size = stream.read(&mut head).await.unwrap();
            let (status, body) = answer(&String::from_utf8_lossy(&head[..size]));
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nmetadata-flavor: {flavor}\r\n\
                 connection: close\r\n\r\n{body}"
            );
            stream.write_all(text.as_bytes()).await.unwrap();
        }
    };
    (base, run)
}

async fn beside<T>(server: impl Future<Output = ()>, client: impl Future<Output = T>) -> T {
    tokio::select! {
        () = server => unreachable!("it serves for ever"),
        answer = client => answer,
    }
}

#[tokio::test]
async fn azure_demands_its_header_and_says_who_the_instance_is() {
    let (base, server) = serve(|head| {
        let header = head.to_ascii_lowercase().contains("\r\nmetadata: true\r\n");
        let path = head.starts_with("GET /metadata/instance?format=json&api-version=2021-02-01 ");
        if header && path { (200, AZURE.to_owned()) } else { (400, String::new()) }
    })
    .await;
    let source = AzureMetadata::new(Some(base));
    beside(server, async {
        let this = source.this().await.unwrap();
        assert_eq!(this.name.as_str(), "plane-0");
        assert_eq!(this.role, Role::ControlPlane);
        assert_eq!(this.provider_id, "azure:///subscriptions/s/vm");
        assert_eq!(source.instances().await.unwrap().len(), 2);
        assert_eq!(source.api_server().await.unwrap(), "10.0.0.1");
        assert_eq!(source.init_secret_hash().await.unwrap(), "sha256:00");
    })
    .await;
}

#[tokio::test]
async fn throttled_and_empty_answers_may_be_asked_for_again() {
    for (status, answer) in [(429, ""), (500, ""), (200, ""), (200, "{}")] {
        let (base, server) = serve(move |_| (status, answer.to_owned())).await;
        let source = AzureMetadata::new(Some(base));
        let error = beside(server, source.this()).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn qemu_leaves_out_peers_without_a_role() {
    let (base, server) = serve(|head| {
        let one = r#"{"Name": "a", "ProviderID": "qemu:///a", "Role": 1, "VPCIP": "10.42.0.2"}"#;
        let body = match head.split(' ').nth(1).unwrap() {
            "/self" => one.to_owned(),
            "/peers" => format!(r#"[{one}, {{"Name": "b", "Role": 0, "VPCIP": "10.42.0.3"}}]"#),
            "/endpoint" => r#""10.42.0.2""#.to_owned(),
            _ => "sha256:00\n".to_owned(),
        };
        (200, body)
    })
    .await;
    let source = QemuMetadata::new(Some(base));
    beside(server, async {
        assert_eq!(source.this().await.unwrap().role, Role::ControlPlane);
        assert_eq!(source.instances().await.unwrap().len(), 1);
        assert_eq!(source.api_server().await.unwrap(), "10.42.0.2");
        assert_eq!(source.init_secret_hash().await.unwrap(), "sha256:00");
    })
    .await;
}

const GCP: &str = r#"{"name": "Plane_0", "zone": "projects/12345/zones/europe-west3-b",
 "networkInterfaces": [{"ip": "10.0.0.7"}, {"ip": "10.1.0.7"}], "attributes": {
 "constellation-role": "worker", "constellation-init-secret-hash": "sha256:00",
 "tec-api-server": "10.0.0.1", "tec-control-planes": "10.0.0.1 10.0.0.2,nonsense"}}"#;

fn gcp(head: &str) -> (u16, String) {
    if !head.to_ascii_lowercase().contains("\r\nmetadata-flavor: google\r\n") {
        return (403, String::new());
    }
    match head.split(' ').nth(1).unwrap() {
        "/computeMetadata/v1/instance/?recursive=true&alt=json" => (200, GCP.to_owned()),
        "/computeMetadata/v1/project/project-id" => (200, "project".to_owned()),
        _ => (404, String::new()),
    }
}

#[tokio::test]
async fn gcp_says_who_the_instance_is_to_who_asks_as_it_demands() {
    let (base, server) = serve(gcp).await;
    let source = GcpMetadata::new(Some(base));
    beside(server, async {
        let this = source.this().await.unwrap();
        assert_eq!(this.name.as_str(), "plane-0");
        assert_eq!((this.role, this.address.to_string()), (Role::Worker, "10.0.0.7".to_owned()));
        assert_eq!(this.provider_id, "gce://project/europe-west3-b/Plane_0");
        assert_eq!(source.instances().await.unwrap().len(), 2);
        assert_eq!(source.api_server().await.unwrap(), "10.0.0.1");
        assert_eq!(source.init_secret_hash().await.unwrap(), "sha256:00");
    })
    .await;
    // A different service at the address is not Google.
    let (base, server) = serve_as("nobody", gcp).await;
    let source = GcpMetadata::new(Some(base));
    let error = beside(server, source.this()).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
}

fn aws(head: &str) -> (u16, String) {
    let lower = head.to_ascii_lowercase();
    let (method, path) = (head.split(' ').next().unwrap(), head.split(' ').nth(1).unwrap());
    let has_token = lower.contains("\r\nx-aws-ec2-metadata-token: session\r\n");
    let answer = match (method, path) {
        ("PUT", "/latest/api/token") => {
            let asks = lower.contains("\r\nx-aws-ec2-metadata-token-ttl-seconds: 60\r\n");
            return (if asks { 200 } else { 400 }, "session".to_owned());
        }
        _ if !has_token => return (401, String::new()),
        ("GET", "/latest/dynamic/instance-identity/document") => {
            r#"{"instanceId": "i-0abc", "availabilityZone": "eu-central-1a",
                "privateIp": "10.0.0.7", "region": "eu-central-1"}"#
        }
        ("GET", "/latest/meta-data/local-hostname") => "ip-10-0-0-7.eu-central-1.compute.internal",
        ("GET", path) => match path.strip_prefix("/latest/meta-data/tags/instance/") {
            Some("constellation-role") => "ControlPlane",
            Some("constellation-init-secret-hash") => "sha256:00\n",
            Some("tec-control-planes") => "10.0.0.1",
            _ => return (404, String::new()),
        },
        _ => return (405, String::new()),
    };
    (200, answer.to_owned())
}

#[tokio::test]
async fn aws_is_asked_within_a_session_and_lacks_what_no_tag_says() {
    let (base, server) = serve(aws).await;
    let source = AwsMetadata::new(Some(base));
    beside(server, async {
        let this = source.this().await.unwrap();
        assert_eq!(this.name.as_str(), "ip-10-0-0-7.eu-central-1.compute.internal");
        assert_eq!((this.role, this.address.to_string()), (Role::ControlPlane, "10.0.0.7".into()));
        assert_eq!(this.provider_id, "aws:///eu-central-1a/i-0abc");
        assert_eq!(source.instances().await.unwrap().len(), 1);
        assert_eq!(source.init_secret_hash().await.unwrap(), "sha256:00");
        let missing = source.api_server().await.unwrap_err();
        assert!(tec_core::port::chain(&missing).contains("tec-api-server"));
    })
    .await;
}

/// Answers of such services when they are busy, or of a different service.
#[tokio::test]
async fn no_answer_of_any_cloud_is_taken_for_an_instance_when_it_is_none() {
    let huge = "x".repeat(2 * 1024 * 1024);
    let answers = [
        (429, ""),
        (500, ""),
        (302, ""),
        (200, ""),
        (200, "{}"),
        (200, "[1"),
        (200, huge.as_str()),
    ];
    for (status, answer) in answers {
        let answer = answer.to_owned();
        let (base, server) = serve(move |_| (status, answer.clone())).await;
        let sources: [Box<dyn MetadataSource>; 3] = [
            Box::new(AwsMetadata::new(Some(base.clone()))),
            Box::new(AzureMetadata::new(Some(base.clone()))),
            Box::new(GcpMetadata::new(Some(base))),
        ];
        beside(server, async {
            for source in &sources {
                let error = source.this().await.unwrap_err();
                assert_eq!(error.kind(), PortErrorKind::Unavailable, "{source:?} {status}");
                let peers = source.instances().await.unwrap_or_default();
                assert!(peers.is_empty(), "{source:?} {status}: {peers:?}");
            }
        })
        .await;
    }
}

/// A service that never answers blocks no caller forever: the paused clock jumps to the time limit.
#[tokio::test(start_paused = true)]
async fn a_service_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let silent = async {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap());
        }
    };
    let source = AwsMetadata::new(Some(base));
    let error = beside(silent, source.this()).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
}
