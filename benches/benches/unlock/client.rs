//! Two clients: one that does as little as possible, since it shares the cores with the server, and one that
//! resembles a node.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::json;
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::ignition::{ClevisPinGenerator, PinGenerator as _};
use tec_e2e::settings::own_program;
use tec_trustee::jwe::{Curve, EcPrivateKey};
use tec_trustee::report_data::{HashAlgorithm, primary};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::server::{Emulated, Machine};

/// The data that the node seals.
const PASSPHRASE: &[u8] = b"passphrase";
const AUTH: &str = r#"{"version":"0.4.0","tee":"tpm","extra-params":{}}"#;
/// Characters of a nonce in base64, and of a session's ID.
const NONCE: usize = 44;
const SESSION: usize = 32;

/// Evidence for every nonce that the server issues.
pub(crate) struct Prepared {
    evidence: HashMap<String, String>,
    path: String,
}

impl Prepared {
    pub(crate) fn new(machine: &Machine, nonces: &[String]) -> anyhow::Result<Self> {
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        let key = EcPrivateKey::generate(Curve::P256, &mut rng);
        let key = serde_json::to_value(key.public())?;
        let mut evidence = HashMap::new();
        for nonce in nonces {
            let report_data = primary(nonce, &key, "", HashAlgorithm::Sha384)?;
            let quoted = report_data.get(..32).context("48 bytes")?;
            let body = json!({
                "init-data": null,
                "runtime-data": {"nonce": nonce, "tee-pubkey": key},
                "tee-evidence": {
                    "primary_evidence": machine.tpm.quote(quoted).to_value(),
                    "additional_evidence": "",
                },
            });
            evidence.insert(nonce.clone(), body.to_string());
        }
        let path = format!("resource/{}", ResourcePath::luks_root(&machine.id));
        Ok(Self { evidence, path })
    }
}

/// One connection for unlocks, with precomputed evidence.
#[derive(Clone)]
pub(crate) struct Client {
    connection: Arc<Mutex<Connection>>,
    prepared: Arc<Prepared>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr, prepared: &Arc<Prepared>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let connection = Connection { stream, answer: Vec::new() };
        Ok(Self { connection: Arc::new(Mutex::new(connection)), prepared: Arc::clone(prepared) })
    }

    pub(crate) async fn unlock(&self, times: u64) -> anyhow::Result<()> {
        let mut connection = self.connection.lock().await;
        for _ in 0..times {
            let challenge = connection.ask("POST", "auth", "", AUTH).await?;
            let nonce = after(&challenge, "\"nonce\":\"", NONCE)?;
            let session = after(&challenge, "kbs-session-id=", SESSION)?;
            let evidence = self.prepared.evidence.get(nonce).context("unknown nonce")?;
            connection.ask("POST", "attest", session, evidence).await?;
            let path = &self.prepared.path;
            connection.ask("GET", path, session, "").await?;
        }
        Ok(())
    }
}

fn after<'a>(text: &'a str, mark: &str, length: usize) -> anyhow::Result<&'a str> {
    let (_, rest) = text.split_once(mark).context("the answer does not contain the mark")?;
    rest.get(..length).context("the answer is too short")
}

struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Connection {
    /// Head and body of an answer with status 200.
    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        session: &str,
        body: &str,
    ) -> anyhow::Result<String> {
        let mut request = format!("{method} /kbs/v0/{path} HTTP/1.1\r\nhost: localhost\r\n");
        if !session.is_empty() {
            write!(request, "cookie: kbs-session-id={session}\r\n")?;
        }
        if method == "POST" {
            write!(request, "content-length: {}\r\n", body.len())?;
        }
        write!(request, "\r\n{body}")?;
        self.stream.write_all(request.as_bytes()).await?;
        self.answer.clear();
        let length = loop {
            anyhow::ensure!(
                self.stream.read_buf(&mut self.answer).await? > 0,
                "the connection was closed before the end of the answer"
            );
            if let Some(length) = length(&self.answer) {
                break length;
            }
        };
        while self.answer.len() < length {
            anyhow::ensure!(
                self.stream.read_buf(&mut self.answer).await? > 0,
                "the connection was closed before the end of the answer"
            );
        }
        let answer = String::from_utf8_lossy(&self.answer).into_owned();
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        Ok(answer)
    }
}

/// Length of an answer, once its head is complete.
fn length(answer: &[u8]) -> Option<usize> {
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = std::str::from_utf8(answer.get(..end)?).ok()?;
    let of_body = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    Some(end + 4 + of_body?)
}

/// A node that boots: the program that Clevis runs opens what it sealed earlier; measured from start to exit.
pub(crate) struct Node<'a> {
    program: PathBuf,
    machine: &'a Emulated,
    sealed: Vec<u8>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(server: &Endpoint, machine: &'a Emulated) -> anyhow::Result<Self> {
        let config = ClevisPinGenerator::new(server.clone()).pin_config(&machine.id);
        let config = serde_json::to_string(&config)?;
        let mut node = Self { program: own_program("node-agent")?, machine, sealed: Vec::new() };
        node.sealed = node.run(&["encrypt", &config], PASSPHRASE)?;
        anyhow::ensure!(node.unlock()? == PASSPHRASE, "another passphrase");
        Ok(node)
    }

    pub(crate) fn unlock(&self) -> anyhow::Result<Vec<u8>> {
        self.run(&["decrypt"], &self.sealed)
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("TEC_TCTI", self.machine.swtpm.tcti())
            .env("TEC_EVENT_LOG", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // Closed immediately, which ends the input.
        let mut stdin = child.stdin.take().context("the child has no pipe")?;
        stdin.write_all(input)?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}: {said}", output.status);
        Ok(output.stdout)
    }
}
