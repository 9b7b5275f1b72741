//! A peer of a hundred lines over Go's crypto/tls.

use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::OnceLock;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::atls::AtlsError;
use tec_tpm::atls::ChannelBinding;
use tec_tpm::atls::DangerousDummyIssuer;
use tec_tpm::atls::DangerousDummyValidator;
use tec_tpm::atls::Endpoint;
use tec_tpm::atls::Variant;
use tec_tpm::atls::VtpmIssuer;
use tec_tpm::testing::SoftTpm;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

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

/// Older peers know nothing of evidence over the connection.
fn ours() -> Endpoint {
    super::endpoint(1)
        .with_issuer(Arc::new(DangerousDummyIssuer))
        .with_validator(Arc::new(DangerousDummyValidator))
        .with_channel_binding(ChannelBinding::WherePeerCan)
        .build()
        .unwrap()
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Ending(peer().args(["client", &address]).spawn().unwrap());
    let mut stream = ours()
        .accept(listener.accept().await.unwrap().0)
        .await
        .unwrap();
    assert!(!stream.peer().unwrap().is_channel_bound());
    let mut said = [0; 4];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"ping");
    stream.write_all(b"pong").await.unwrap();
    stream.flush().await.unwrap();
    assert!(client.0.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_and_a_server_in_go_prove_themselves_to_each_other() {
    let mut server = peer();
    server.arg("server").stdout(Stdio::piped());
    let mut server = Ending(server.spawn().unwrap());
    let mut address = String::new();
    let mut out = std::io::BufReader::new(server.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut address).unwrap();
    let transport = TcpStream::connect(address.trim()).await.unwrap();
    let mut stream = ours().connect(transport).await.unwrap();
    assert!(stream.peer().is_some());
    stream.write_all(b"ping").await.unwrap();
    stream.flush().await.unwrap();
    let mut said = [0; 4];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"pong");
    assert!(server.0.wait().unwrap().success());
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Ending(peer().args(["client", &address]).spawn().unwrap());
    let transport = listener.accept().await.unwrap().0;
    let mut stream = ours.accept(transport).await.unwrap();
    let mut said = [0; 4];
    stream.read_exact(&mut said).await.unwrap();
    stream.write_all(b"pong").await.unwrap();
    stream.flush().await.unwrap();
    assert!(client.0.wait().unwrap().success());
}

/// A base64 text is no host name, and rustls looks no further (docs/reference/attested-tls.md).
#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_go_that_sends_its_nonce_as_server_name_is_refused_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut older = peer();
    older.args(["older-client", &address]).stderr(Stdio::null());
    let mut older = Ending(older.spawn().unwrap());
    let transport = listener.accept().await.unwrap().0;
    let refused = ours().accept(transport).await.err().unwrap();
    assert!(matches!(refused, AtlsError::Handshake(_)), "{refused}");
    assert!(!older.0.wait().unwrap().success());
}
