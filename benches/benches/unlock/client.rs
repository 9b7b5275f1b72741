//! Two clients: one that does as little as possible, since it shares the cores with the server, and
//! one that a node would be.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rustls::crypto::CryptoProvider;
use serde_json::json;
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::secret::SecretBytes;
use tec_support::SystemEntropy;
use tec_tpm::tss::TpmAttester;
use tec_trustee::client::Deadlines;
use tec_trustee::client::RcarClient;
use tec_trustee::jwe::Curve;
use tec_trustee::jwe::EcPrivateKey;
use tec_trustee::report_data::HashAlgorithm;
use tec_trustee::report_data::primary;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::server::Emulated;
use crate::server::Machine;

const AUTH: &str = r#"{"version":"0.4.0","tee":"tpm","extra-params":{}}"#;
/// Characters of a nonce in base64, and of a session's id.
const NONCE: usize = 44;
const SESSION: usize = 32;

/// Evidence for every nonce that the server gives out.
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

/// One connection over which unlocks are done, with evidence that was made before.
#[derive(Clone)]
pub(crate) struct Client {
    connection: Arc<Mutex<Connection>>,
    prepared: Arc<Prepared>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr, prepared: &Arc<Prepared>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let connection = Connection {
            stream,
            answer: Vec::new(),
        };
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            prepared: Arc::clone(prepared),
        })
    }

    pub(crate) async fn unlock(&self, times: u64) -> anyhow::Result<()> {
        let mut connection = self.connection.lock().await;
        for _ in 0..times {
            let challenge = connection.ask("POST", "auth", "", AUTH).await?;
            let nonce = after(&challenge, "\"nonce\":\"", NONCE)?;
            let session = after(&challenge, "kbs-session-id=", SESSION)?;
            let evidence = self.prepared.evidence.get(nonce).context("a known nonce")?;
            connection.ask("POST", "attest", session, evidence).await?;
            let path = &self.prepared.path;
            connection.ask("GET", path, session, "").await?;
        }
        Ok(())
    }
}

fn after<'a>(text: &'a str, mark: &str, length: usize) -> anyhow::Result<&'a str> {
    let (_, rest) = text.split_once(mark).context("the mark is there")?;
    rest.get(..length).context("the answer is long enough")
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
                "it broke off"
            );
            if let Some(length) = length(&self.answer) {
                break length;
            }
        };
        while self.answer.len() < length {
            anyhow::ensure!(
                self.stream.read_buf(&mut self.answer).await? > 0,
                "it broke off"
            );
        }
        let answer = String::from_utf8_lossy(&self.answer).into_owned();
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        Ok(answer)
    }
}

/// Length of an answer, as soon as its head is there.
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

/// A node that booted: it connects, proves itself with a TPM emulator, and fetches its key.
pub(crate) struct Node<'a> {
    server: Endpoint,
    provider: Arc<CryptoProvider>,
    path: ResourcePath,
    attester: &'a TpmAttester,
}

impl<'a> Node<'a> {
    pub(crate) fn new(server: &Endpoint, machine: &'a Emulated) -> Self {
        Self {
            server: server.clone(),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            path: ResourcePath::luks_root(&machine.id),
            attester: &machine.attester,
        }
    }

    pub(crate) async fn unlock(&self) -> anyhow::Result<SecretBytes> {
        let servers = std::slice::from_ref(&self.server);
        let deadlines = Deadlines::new(Duration::from_secs(5), Duration::from_secs(10));
        let entropy = Arc::new(SystemEntropy);
        let client = RcarClient::new(servers, deadlines, &self.provider, entropy)?;
        Ok(client.fetch(&self.path, self.attester).await?)
    }
}
