//! A peer of a hundred lines over Go's crypto/tls.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_node::atls::{AtlsError, ChannelBinding, Endpoint, EndpointBuilder, Variant, VtpmIssuer};
use tec_node::testing::{DangerousDummyIssuer, DangerousDummyValidator};
use tec_tpm::testing::SoftTpm;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// No two endpoints draw the same nonces.
static SEED: AtomicU64 = AtomicU64::new(100);

fn peer() -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(|| {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("atls-peer");
        let sources = ["peer.go", "quote.go"].map(|name| {
            let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/atls");
            PathBuf::from(here).join(name)
        });
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .args(sources)
            .status()
            .expect("go is missing: run `cargo xtask tools`");
        assert!(built.success());
        program
    });
    Command::new(program)
}

fn builder() -> EndpointBuilder {
    super::endpoint(SEED.fetch_add(1, Ordering::SeqCst))
        .with_issuer(Arc::new(DangerousDummyIssuer))
        .with_validator(Arc::new(DangerousDummyValidator))
}

/// The peers do not support evidence over the connection.
fn ours() -> Endpoint {
    let builder = builder().with_channel_binding(ChannelBinding::WherePeerCan);
    builder.build().unwrap()
}

/// Our server serves a client of this type.
async fn serve(ours: &Endpoint, sort: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Ending(peer().args([sort, &address]).spawn().unwrap());
    let transport = listener.accept().await.unwrap().0;
    let mut stream = ours.accept(transport).await.unwrap();
    assert!(!stream.peer().is_some_and(|peer| peer.is_channel_bound()));
    let mut said = [0; 4];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"ping");
    stream.write_all(b"pong").await.unwrap();
    stream.flush().await.unwrap();
    assert!(client.0.wait().unwrap().success());
}

/// Our client calls a server of this type.
async fn ask(ours: &Endpoint, sort: &str) {
    let mut server = Ending(peer().arg(sort).stdout(Stdio::piped()).spawn().unwrap());
    let mut address = String::new();
    let mut out = std::io::BufReader::new(server.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut address).unwrap();
    let transport = TcpStream::connect(address.trim()).await.unwrap();
    let mut stream = ours.connect(transport).await.unwrap();
    assert!(stream.peer().is_some());
    stream.write_all(b"ping").await.unwrap();
    stream.flush().await.unwrap();
    let mut said = [0; 4];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"pong");
    assert!(server.0.wait().unwrap().success());
}

struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_go_and_our_server_prove_themselves_to_each_other() {
    serve(&ours(), "client").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_and_a_server_in_go_prove_themselves_to_each_other() {
    ask(&ours(), "server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_go_verifies_the_quote_in_our_certificate() {
    let tpm = Arc::new(SoftTpm::rsa(5));
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    let ours = super::endpoint(1)
        .with_issuer(Arc::new(VtpmIssuer::new(Variant::QemuVtpm, tpm)))
        .with_channel_binding(ChannelBinding::WherePeerCan)
        .build()
        .unwrap();
    serve(&ours, "client").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_go_that_cannot_bind_is_refused_where_that_is_demanded() {
    let ours = builder().build().unwrap();
    for sort in ["client", "named-client"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut client = peer();
        client.args([sort, &address]).stderr(Stdio::null());
        let mut client = Ending(client.spawn().unwrap());
        let transport = listener.accept().await.unwrap().0;
        let refused = ours.accept(transport).await.err().unwrap();
        let expected = match sort {
            "client" => matches!(refused, AtlsError::Unbound),
            _ => matches!(refused, AtlsError::Handshake(_)),
        };
        assert!(expected, "{refused}");
        assert!(!client.0.wait().unwrap().success());
    }
}
