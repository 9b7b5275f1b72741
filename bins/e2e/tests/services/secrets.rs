//! Secrets are only where they belong: in no program's log, with the controller and the clients at their most
//! verbose, and in no other file.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use services::init::run;
use tec_core::secret::SecretBytes;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::vault::password::Stored;
use tec_services::vault::{OPENSEARCH_USERS, password};
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;
use tracing_subscriber::fmt::MakeWriter;

use crate::vault::{make_root, stored_key};

/// A secret, and the names of the files where it belongs.
pub(crate) struct Needle {
    name: String,
    bytes: Vec<u8>,
    at: &'static [&'static str],
}

impl Needle {
    pub(crate) fn new(name: &str, bytes: &[u8], at: &'static [&'static str]) -> Self {
        assert!(bytes.len() > 7, "{name} is too short to be looked for");
        Self { name: name.to_owned(), bytes: bytes.to_vec(), at }
    }

    /// A key as raw bytes, in hex, and in base64.
    pub(crate) fn key(name: &str, key: &[u8]) -> [Self; 3] {
        [
            Self::new(name, key, &[]),
            Self::new(&format!("{name} in hex"), hex::encode(key).as_bytes(), &[]),
            Self::new(&format!("{name} in base64"), STANDARD.encode(key).as_bytes(), &[]),
        ]
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        let Some((first, rest)) = self.bytes.split_first() else {
            return false;
        };
        let mut left = bytes;
        while let Some(at) = left.iter().position(|byte| byte == first) {
            left = &left[at + 1..];
            if left.starts_with(rest) {
                return true;
            }
        }
        false
    }
}

/// Where needles occur that do not belong there.
pub(crate) fn astray(dir: &Path, needles: &[Needle]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(astray(&path, needles));
            continue;
        }
        // A socket, or a file that its owner has removed in the meantime.
        let Ok(bytes) = fs::read(&path) else { continue };
        let name = path.file_name().unwrap().to_str().unwrap();
        let needles = needles.iter();
        let astray = needles.filter(|needle| !needle.at.contains(&name) && needle.is_in(&bytes));
        found.extend(astray.map(|needle| format!("{} in {}", needle.name, path.display())));
    }
    found
}

/// The log output of programs in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Words in a log that look like vault tokens: a letter, a dot, and more than twenty letters or digits.
fn vault_tokens(log: &str) -> Vec<&str> {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_token = |word: &&str| {
        let mut letters = word.splitn(2, '.');
        let kind = letters.next().unwrap_or_default();
        let rest = letters.next().unwrap_or_default();
        let is_long = rest.len() > 20 && rest.chars().all(|c| c.is_ascii_alphanumeric());
        ["s", "b", "r", "hvs", "hvb"].contains(&kind) && is_long
    };
    log.split(|c| !is_inner(c)).filter(is_token).collect()
}

async fn passwords(stage: &Stage, root: &SecretBytes) -> Vec<Needle> {
    let mut needles = Vec::new();
    for user in OPENSEARCH_USERS {
        let answer = stage.bao.vault().call(&password::read(user).by(root)).await;
        let stored = Stored::from_answer(&answer.unwrap()).unwrap();
        let password = stored.password.expose("test");
        let at: &[&str] = if user == "admin" { &[] } else { &["password"] };
        needles.push(Needle::new(&format!("password of {user}"), password, at));
        let login = STANDARD.encode([user.as_bytes(), b":", password].concat());
        let at: &[&str] = if user == "telemetry" { &["login"] } else { &[] };
        needles.push(Needle::new(&format!("login of {user}"), login.as_bytes(), at));
    }
    needles
}

// A single thread, so that its subscriber sees every task.
#[tokio::test]
async fn no_secret_is_in_any_log_or_in_a_file_where_it_does_not_belong() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    // With a single subscriber, a log line's interest is cached by the thread that reaches it first, and
    // another test's thread may have none. With two, both are asked.
    let _second = Dispatch::new(NoSubscriber::default());
    let listening = tracing::subscriber::set_default(subscriber);
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let broker = platform.broker("comp-a", &nats.url).await.unwrap();
    let subject = format!("evt.{}.comp-a.x", cluster.apps);
    broker.publish(&subject, b"hello".to_vec()).await.unwrap();
    for (account, service) in [
        ("collector", ["collector", "--opensearch", "https://localhost:9200"].as_slice()),
        ("dashboards", &["viewer"]),
    ] {
        let account = cluster.account(account).unwrap();
        run::run(&platform.init(&account, service).await.unwrap()).await.unwrap();
    }
    // Refusals are logged as well.
    let foreign = cluster.account("nats").unwrap();
    let foreign = platform.init(&foreign, &["viewer"]).await.unwrap();
    run::run(&foreign).await.unwrap_err();
    broker.renew().await.unwrap();
    platform.controller.round().await.unwrap();
    drop(listening);

    let stage = &platform.stage;
    let key = stored_key(stage, &platform.controller).await;
    let root = make_root(stage, &key).await;
    let secret = stage.secret("vault-aes").await.unwrap();
    let wrapping = STANDARD.decode(secret["data"]["key"].as_str().unwrap()).unwrap();
    let mut needles = passwords(stage, &root).await;
    needles.extend(Needle::key("the vault's key", &STANDARD.decode(&key).unwrap()));
    needles.extend(Needle::key("the wrapping key", &wrapping));
    needles.push(Needle::new("a root token", root.expose("test"), &[]));
    let own = platform.controller.standing.token().unwrap();
    needles.push(Needle::new("the controller's token", own.expose("test"), &[]));
    for pod in ["nats", "comp-a", "collector", "dashboards"] {
        let token = fs::read(stage.path(&format!("pod-{pod}/token"))).unwrap();
        needles.push(Needle::new(&format!("the token of {pod}"), &token, &["token"]));
    }
    for file in ["token", "api-token"] {
        let token = fs::read(stage.path(file)).unwrap();
        let name = format!("the controller's {file}");
        needles.push(Needle::new(&name, &token, &["token", "api-token"]));
    }
    let pem = b"-----BEGIN PRIVATE KEY-----";
    needles.push(Needle::new("a key of TLS", pem, &["tls.key"]));

    assert_eq!(astray(stage.dir.path(), &needles), Vec::<String>::new());
    let log = log.0.lock().unwrap();
    let in_log: Vec<_> = needles.iter().filter(|needle| needle.is_in(&log)).collect();
    let in_log: Vec<_> = in_log.iter().map(|needle| &needle.name).collect();
    assert!(in_log.is_empty(), "{in_log:?} in the log");
    let text = String::from_utf8_lossy(&log);
    assert_eq!(vault_tokens(&text), Vec::<&str>::new());
    // Logging was captured at every level.
    assert!(text.contains("TRACE"));
    assert_audited(&text, &cluster.apps, &cluster.platform);
}

/// The log line of a call contains everything known about it.
fn assert_audited(log: &str, apps: &str, platform: &str) {
    let granted = [
        "audit:",
        "call=\"BootstrapComponent\"",
        "request.id=\"broker-",
        &format!("account={apps}/comp-a"),
        "role=\"component\"",
        "serials=[",
        "user=U",
        "jti=",
        "millis=",
        "outcome=\"GRANTED\"",
    ];
    let refused = [
        "audit:",
        "call=\"BootstrapTelemetry\"",
        &format!("claimed={platform}/nats"),
        "role=\"telemetry-viewer\"",
        "millis=",
        "outcome=\"SA_NOT_BOUND\"",
    ];
    for parts in [granted.as_slice(), &refused] {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(log.lines().any(has), "no line has all of {parts:?}");
    }
}

#[test]
fn what_is_looked_for_would_be_found() {
    let dir = tempfile::tempdir().unwrap();
    let token = "s.0123456789abcdefghijklmn";
    fs::write(dir.path().join("token"), "a token?").unwrap();
    let needle = || [Needle::new("it", b"a token?", &["token"])];
    let longer = [Needle::new("more", b"a token??", &[])];
    assert!(astray(dir.path(), &needle()).is_empty());
    fs::write(dir.path().join("log"), "aa token?").unwrap();
    assert_eq!(astray(dir.path(), &needle()).len(), 1);
    assert!(astray(dir.path(), &longer).is_empty());
    assert_eq!(vault_tokens(&format!("token={token}\" in 1.0")), [token]);
}
