//! The metadata service of Azure at its address on every instance, 169.254.169.254, in a network namespace of
//! this test: answers, and every kind of failure to answer. `unshare` and `ip` must be available, with
//! permission to create namespaces.
#![cfg(feature = "host")]
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tec_core::port::{PortErrorKind, chain};
use tec_node::host::{AzureCertificates, AzureMetadata};
use tec_node::metadata::MetadataSource as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Marks the process inside.
const INSIDE: &str = "METADATA_NAMESPACE";
const ADDRESS: &str = "169.254.169.254";
/// Longer than the client waits (`tec_node::host`), but short enough for a test.
const LIMIT: Duration = Duration::from_secs(15);

const INSTANCE: &str = r#"{"compute": {"resourceId": "/subscriptions/s/vm", "osProfile":
 {"computerName": "Plane_0"}, "tagsList": [
 {"name": "constellation-role", "value": "control-plane"},
 {"name": "constellation-init-secret-hash", "value": "sha256:00"},
 {"name": "tec-api-server", "value": "10.0.0.1"},
 {"name": "tec-control-planes", "value": "10.0.0.1,10.0.0.2"}]},
 "network": {"interface": [{"ipv4": {"ipAddress": [{"privateIpAddress": "10.0.0.7"}]}}]}}"#;
const CERTIFICATE: &str = r#"{"vcekCert": "-----BEGIN CERTIFICATE-----", "certificateChain": ""}"#;

/// How the service handles the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Answer,
    Chunks,
    Status(u16),
    Body(&'static str),
    Garbage,
    Close,
    CutOff,
    TooMuch,
    Silence,
    Drip,
}

/// The service, and what it should do next.
#[derive(Clone, Debug, Default)]
struct Service(Arc<Mutex<Vec<Act>>>);

impl Service {
    fn next(&self, acts: &[Act]) {
        *self.0.lock().unwrap() = acts.iter().rev().copied().collect();
    }

    async fn serve(self) -> std::convert::Infallible {
        let listener = TcpListener::bind((ADDRESS, 80)).await.unwrap();
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let act = self.0.lock().unwrap().pop().unwrap_or(Act::Answer);
            connections.spawn(async move {
                // The client may have disconnected.
                let _ = play(stream, act).await;
            });
        }
    }
}

async fn play(mut stream: TcpStream, act: Act) -> std::io::Result<()> {
    let mut head = vec![0; 4096];
    let size = stream.read(&mut head).await?;
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let is_asked = size > 0 && head.contains("\r\nmetadata: true\r\n");
    let good = if head.starts_with("get /metadata/thim/amd/certification ") {
        CERTIFICATE
    } else {
        INSTANCE
    };
    let whole = |status: u16, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let text = match act {
        _ if !is_asked => whole(400, ""),
        Act::Answer => whole(200, good),
        Act::Chunks => {
            let (length, body) = (good.len(), good);
            format!(
                "HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
            )
        }
        Act::Status(status) => whole(status, good),
        Act::Body(body) => whole(200, body),
        Act::Garbage => "220 mail.example ESMTP\r\n".to_owned(),
        Act::Close => return Ok(()),
        Act::CutOff => "HTTP/1.1 200 x\r\ncontent-length: 5000\r\n\r\n{".to_owned(),
        Act::TooMuch => whole(200, &" ".repeat(2 << 20)),
        Act::Silence => {
            tokio::time::sleep(2 * LIMIT).await;
            return Ok(());
        }
        Act::Drip => return drip(stream).await,
    };
    stream.write_all(text.as_bytes()).await
}

/// Sends one byte per second, so that no single read takes long.
async fn drip(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 5000\r\n\r\n").await?;
    loop {
        stream.write_all(b" ").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Runs this test once more, in a namespace whose loopback has the address.
fn inside() -> bool {
    if std::env::var_os(INSIDE).is_some() {
        for arguments in ["link set lo up".to_owned(), format!("addr add {ADDRESS}/32 dev lo")] {
            let ran = Command::new("ip").args(arguments.split(' ')).status();
            assert!(ran.unwrap().success(), "ip {arguments}");
        }
        return true;
    }
    let as_root = Command::new("unshare").args(["-n", "true"]).output();
    let flags = if as_root.unwrap().status.success() { "-n" } else { "-rn" };
    let ran = Command::new("unshare")
        .arg(flags)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "the_service_of_every_instance_is_asked", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    false
}

#[test]
fn the_service_of_every_instance_is_asked() {
    if !inside() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let source = AzureMetadata::new(None);
        let nobody = source.this().await.unwrap_err();
        assert_eq!(nobody.kind(), PortErrorKind::Unavailable);
        let service = Service::default();
        tokio::select! {
            never = service.clone().serve() => match never {},
            () = async {
                // The listener is bound with the first poll of the server.
                tokio::task::yield_now().await;
                faults(&service, &source).await;
                slow(&service, &source).await;
                certificates(&service).await;
            } => {}
        }
    });
}

/// Checks that none of these counts as an answer; after each, the request can be repeated and then succeeds.
async fn faults(service: &Service, source: &AzureMetadata) {
    let bad = [
        Act::Status(400),
        Act::Status(404),
        Act::Status(429),
        Act::Status(500),
        Act::Status(503),
        // A redirect is not followed.
        Act::Status(302),
        Act::Body(""),
        Act::Body("{}"),
        Act::Body("<html>"),
        Act::Garbage,
        Act::Close,
        Act::CutOff,
        Act::TooMuch,
    ];
    for act in bad {
        service.next(&[act]);
        let error = source.this().await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Unavailable, "{act:?}: {}", chain(&error));
        for good in [Act::Answer, Act::Chunks] {
            service.next(&[good]);
            let this = source.this().await.unwrap();
            assert_eq!(this.name.as_str(), "plane-0", "{act:?}");
        }
    }
    assert_eq!(source.instances().await.unwrap().len(), 2);
}

/// A service that never finishes blocks no caller.
async fn slow(service: &Service, source: &AzureMetadata) {
    let began = Instant::now();
    service.next(&[Act::Silence, Act::Drip]);
    let (one, other) = tokio::join!(source.this(), source.this());
    assert!(one.is_err() && other.is_err());
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// The certificate is requested again a few times if the service throttles or has none yet.
async fn certificates(service: &Service) {
    let source = AzureCertificates::new(None, None);
    service.next(&[Act::Status(429), Act::Body(r#"{"vcekCert": ""}"#), Act::Answer]);
    let certificate = source.vcek().await.unwrap();
    assert!(certificate.starts_with(b"-----BEGIN"));
    service.next(&[Act::Status(500); 9]);
    let error = source.vcek().await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
}
