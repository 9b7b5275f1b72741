//! Metadata services of a test, over real connections.

use tec_core::node::metadata::MetadataSource;
use tec_core::port::PortErrorKind;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;

const AZURE: &str = r#"{"compute": {"resourceId": "/subscriptions/s/vm", "osProfile":
 {"computerName": "Plane_0"}, "tagsList": [
 {"name": "constellation-role", "value": "control-plane"},
 {"name": "constellation-init-secret-hash", "value": "sha256:00"},
 {"name": "tec-api-server", "value": "10.0.0.1"},
 {"name": "tec-control-planes", "value": "10.0.0.1,10.0.0.2"}]},
 "network": {"interface": [{"ipv4": {"ipAddress": [{"privateIpAddress": "10.0.0.7"}]}}]}}"#;

/// Answers one request with what `answer` makes of its head; the base URL.
async fn serve(
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
                "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
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
        if header && path {
            (200, AZURE.to_owned())
        } else {
            (400, String::new())
        }
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
