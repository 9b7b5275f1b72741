//! A running guard.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::Value;

/// Everything here takes a few seconds at most; a busy host may take longer.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "{what}: not in time");
        #[expect(clippy::disallowed_methods, reason = "the one poll loop, with a deadline")]
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A directory that contains an empty directory of keys.
pub(crate) fn keys() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("keys")).unwrap();
    dir
}

fn command(dir: &tempfile::TempDir, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kbs-guard"));
    command
        .args(["--listen", "127.0.0.1:0", "--log-form", "json", "--state-dir"])
        .arg(dir.path().join("state"))
        .args(flags)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Exit code and output of a failed start.
pub(crate) fn refused(dir: &tempfile::TempDir, flags: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kbs-guard"));
    let listen = ["--state-dir"];
    let output = command
        .args(listen)
        .arg(dir.path().join("state"))
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), stderr)
}

#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Option<SocketAddr>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub(crate) fn start(dir: &tempfile::TempDir, flags: &[&str]) -> Self {
        let keys = dir.path().join("keys");
        let flags = [&["--keys", keys.to_str().unwrap()], flags].concat();
        let mut child = command(dir, &flags).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut metrics = None;
        let address = loop {
            let line = lines.next().unwrap().unwrap();
            let line: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
            let fields = &line["fields"];
            let address = fields["address"].as_str().and_then(|text| text.parse().ok());
            match fields["message"].as_str() {
                Some("metrics are served") => metrics = address,
                Some("ready") => break address.unwrap(),
                _ => {}
            }
        };
        // Later output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, metrics }
    }

    /// Asks the guard to stop, and returns its exit status.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut status = None;
        wait_for("the guard to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// The certificate it presents, in DER.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anything))
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = TcpStream::connect(self.address).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        tls.peer_certificates().unwrap()[0].to_vec()
    }
}

/// Accepts any certificate: the test compares it.
#[derive(Debug)]
struct Anything;

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The response to these bytes, until the connection is closed or nothing more arrives.
pub(crate) fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    // A server that refuses early need not read everything.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}
