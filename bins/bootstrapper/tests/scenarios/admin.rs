//! The admin's commands, `tec node init`, `join`, `recover` and `verify`, run as separate processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tec_core::digest::Sha256Digest;
use tec_node::derive::ClusterId;
use tec_node::port::StateDisk as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::init;
use crate::keys::openbao::Bao;
use crate::stage::{CANARIES, INIT_SECRET, KMS, Machine, mode};

/// The output and exit status of a command.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }

    /// Checks exit code and output; the output must not contain any secret it was given.
    fn assert(&self, code: i32, says: &str) -> &Self {
        let all = format!("{}{}", self.out, self.err);
        assert_eq!(self.code, Some(code), "{all}");
        assert!(all.contains(says), "{says}: {all}");
        for canary in CANARIES {
            let canary = String::from_utf8_lossy(canary);
            assert!(!all.contains(&*canary), "{canary}: {all}");
        }
        self
    }
}

/// Path of tec, which cargo puts next to this package's program.
fn tec() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_bootstrapper")).with_file_name("tec");
    assert!(program.exists(), "build it first: cargo build -p tec");
    program
}

fn command(arguments: &[String]) -> Command {
    let mut command = Command::new(tec());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TEC_")) {
        command.env_remove(name);
    }
    command.args(["--output", "json", "--log", "debug,h2=info"]);
    command.args(arguments);
    command
}

async fn run(arguments: Vec<String>) -> Said {
    let ran = tokio::task::spawn_blocking(move || command(&arguments).output().unwrap());
    let ran = ran.await.unwrap();
    Said {
        code: ran.status.code(),
        out: String::from_utf8(ran.stdout).unwrap(),
        err: String::from_utf8(ran.stderr).unwrap(),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().copied().map(str::to_owned).collect()
}

/// The admin's desk: files with the secrets and keys of the admin.
struct Desk<'m>(&'m Machine);

impl Desk<'_> {
    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.path(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    /// Flags that name the machine's key.
    fn trust(&self) -> Vec<String> {
        let ak = self.0.ak.to_string();
        words(&["--ak", &ak, "--dangerous-any-measurements"])
    }

    async fn init(&self, kms: &str, secret: &[u8], more: &[&str]) -> Said {
        run(self.init_words(&self.0.init_address(), kms, secret, more)).await
    }

    fn init_words(&self, address: &str, kms: &str, secret: &[u8], more: &[&str]) -> Vec<String> {
        let (kms, secret) =
            (self.file("desk-kms", kms.as_bytes()), self.file("desk-secret", secret));
        let kubeconfig = self.0.path("desk-kubeconfig").display().to_string();
        let mut all = words(&["node", "init", address, "--kubernetes-version", "v1.34.3"]);
        all.extend(words(&["--kms-uri-file", &kms, "--init-secret-file", &secret]));
        all.extend(words(&["--kubeconfig", &kubeconfig]));
        all.extend(self.trust());
        all.extend(words(more));
        all
    }

    async fn recover(&self, kms: &str, more: &[&str]) -> Said {
        let address = self.0.recovery_address();
        let kms = self.file("desk-kms", kms.as_bytes());
        let mut all = words(&["node", "recover", &address, "--kms-uri-file", &kms]);
        all.extend(self.trust());
        all.extend(words(more));
        run(all).await
    }

    async fn verify(&self, address: &str, more: &[&str]) -> Said {
        let mut all = words(&["node", "verify", address]);
        all.extend(words(more));
        run(all).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_makes_a_cluster_of_a_node_that_proved_itself_and_tells_how_it_goes_on() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let desk = Desk(&machine);
    let program = machine.start("run").serving();
    let ak = machine.ak.to_string();
    let address = machine.init_address();
    let seen = desk.verify(&address, &["--ak", &ak, "--cluster", "none"]).await;
    assert_eq!(seen.assert(0, "accepted").json()["accepted"], true);

    let checked = desk.init(KMS, INIT_SECRET, &["--dry-run"]).await;
    let checked = checked.assert(0, "prepare").json();
    assert!(!machine.path("desk-kubeconfig").exists());
    assert!(!machine.calls().contains("certs all"), "{}", machine.calls());

    let made = desk.init(KMS, INIT_SECRET, &[]).await;
    let id = made.assert(0, "init-cluster").json()["clusterId"].clone();
    assert_eq!(id, checked["clusterId"]);
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
    let kubeconfig = machine.path("desk-kubeconfig");
    assert_eq!(fs::read(&kubeconfig).unwrap(), b"kubeconfig of the admin\n");
    assert_eq!(mode(&kubeconfig), 0o600);
    let mut bytes = [0; 32];
    hex::decode_to_slice(id.as_str().unwrap(), &mut bytes).unwrap();
    assert_eq!(machine.register(), ClusterId::new(bytes).marker());
    machine.assert_no_secrets(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_says_by_code_why_there_is_no_cluster_and_the_node_stays_as_it_was() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let stranger = Machine::new("stranger", "ControlPlane");
    let desk = Desk(&machine);
    desk.init(KMS, INIT_SECRET, &["--wait", "0"]).await.assert(3, "TEC-B503");
    let program = machine.start("run").serving();
    desk.init(KMS, b"canary-wrong", &[]).await.assert(1, "TEC-B401");
    let bad = KMS.replace("key=", "kez=");
    desk.init(&bad, INIT_SECRET, &[]).await.assert(1, "desk-kms");
    let elsewhere = "kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc";
    let refused = desk.init(elsewhere, INIT_SECRET, &[]).await;
    refused.assert(1, "TEC-B50").assert(1, "a call failed");
    fs::write(machine.path("refuse-preflight"), "").unwrap();
    let refused = desk.init(KMS, INIT_SECRET, &[]).await;
    // Includes the node's own log.
    refused.assert(1, "TEC-B424").assert(1, "a call failed");
    assert!(machine.opens_with(b"initial").await);

    // A different machine answers in its place.
    let (key, address) = (stranger.ak.to_string(), machine.init_address());
    let seen = desk.verify(&address, &["--ak", &key]).await;
    assert_eq!(seen.assert(1, "attestation key").json()["accepted"], false);
    let away = stranger.init_address();
    desk.verify(&away, &["--ak", &key]).await.assert(3, "answers");
    program.kill();
    assert_eq!(machine.register(), Sha256Digest::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_names_every_register_that_differs() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let desk = Desk(&machine);
    let wrong = Sha256Digest::of("another image");
    let expected = format!(
        r#"{{"4": "{wrong}", "8": {{"expected": "{wrong}", "warnOnly": true}}, "9": "{wrong}",
            "16": "{}"}}"#,
        Sha256Digest::ZERO
    );
    let expected = desk.file("desk-measurements", expected.as_bytes());
    let program = machine.start("run").serving();
    let (ak, address) = (machine.ak.to_string(), machine.init_address());
    let flags = ["--ak", &ak, "--measurements", &expected];
    let seen = desk.verify(&address, &flags).await;
    let report = seen.assert(1, "only a warning").json();
    let failed: Vec<&str> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["ok"] == false)
        .map(|check| check["what"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["PCR 4", "PCR 9"]);
    assert_eq!(report["pcrs"].as_object().unwrap().len(), 24);
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_tries_keys_before_it_recovers_and_says_which_disk_they_open() {
    let mut machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    init::init(&machine, init::request()).await.unwrap();
    program.wait();
    let register = machine.register();
    let disk = machine.disk().id().await.unwrap().to_string();
    machine.reboot();
    machine.write_settings(&[]);
    let mut program = machine.start("recover").serving();
    let desk = Desk(&machine);
    let wrong = KMS.replace("QEFC", "QUFC");
    desk.recover(&wrong, &["--check"]).await.assert(1, "TEC-B412");
    desk.recover(&wrong, &[]).await.assert(1, "TEC-B412");
    let fits = desk.recover(KMS, &["--check"]).await;
    let fits = fits.assert(0, "disk").json();
    assert_eq!(fits[0]["recovered"], false);
    assert_eq!(fits[0]["disk"], disk);
    assert!(program.is_running());
    let opened = desk.recover(KMS, &[]).await;
    let opened = opened.assert(0, "disk").json();
    assert_eq!(opened[0]["recovered"], true);
    assert_eq!(opened[0]["disk"], disk);
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
    assert_eq!(machine.register(), register);
    desk.recover(KMS, &["--wait", "0"]).await.assert(3, "TEC-B503");
    machine.assert_no_secrets(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_looks_whether_a_node_could_join_and_joins_it() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machine = Machine::new("node-1", "Worker");
    let settings = machine.path("settings.toml").display().to_string();
    let join = |more: &[&str]| {
        let mut all = words(&["node", "join", "--config", &settings]);
        all.extend(words(more));
        run(all)
    };
    machine.write_metadata("node-1", "Worker", &["127.0.0.1"]);
    join(&["--dry-run"]).await.assert(3, "join service");

    let cluster = Cluster::start(&plane, &[machine.ak], &[]).await;
    machine.write_settings_with(&[cluster.ak], cluster.port);
    let ready = join(&["--dry-run"]).await;
    let ready = ready.assert(0, "evidence").json();
    assert_eq!(ready["ready"], true);
    assert_eq!(ready["ak"], machine.ak.to_string());
    assert!(machine.opens_with(b"initial").await);
    assert_eq!(machine.calls(), "");

    let joined = join(&[]).await;
    joined.assert(0, "join-cluster");
    assert!(machine.calls().contains("kubeadm join --config"));
    machine.assert_no_secrets(&joined.err);
    join(&["--dry-run"]).await.assert(1, "in a cluster");
    cluster.stop().await;
}

/// Forwards connections until they are cut.
struct Relay {
    address: String,
    connections: Arc<AtomicUsize>,
    cut: watch::Sender<()>,
    _accepting: JoinSet<()>,
}

impl Relay {
    async fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let (cut, mut uncut) = watch::channel(());
        let counted = Arc::clone(&connections);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut passing = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                uncut.mark_unchanged();
                let (to, mut uncut) = (to.clone(), uncut.clone());
                passing.spawn(async move {
                    let mut far = TcpStream::connect(to).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = uncut.changed() => {}
                    }
                });
            }
        });
        Self { address, connections, cut, _accepting: accepting }
    }

    async fn reached(&self, connections: usize) {
        while self.connections.load(Ordering::Relaxed) < connections {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Waits until kubeadm runs, which means that the node is past the lock.
async fn locked(machine: &Machine) {
    while !machine.calls().contains("kubeadm init --skip") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_hears_how_an_init_ends_whose_connection_broke_beyond_the_lock() {
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::write(machine.path("hold"), "").unwrap();
    let program = machine.start("run").serving();
    let relay = Relay::start(machine.init_address()).await;
    let desk = Desk(&machine);
    let breaking = async {
        locked(&machine).await;
        relay.cut.send(()).unwrap();
        // The second call finds the first one running, so there is a third.
        relay.reached(3).await;
        fs::remove_file(machine.path("hold")).unwrap();
    };
    let making = run(desk.init_words(&relay.address, KMS, INIT_SECRET, &[]));
    let (made, ()) = tokio::join!(making, breaking);
    made.assert(0, "already being activated");
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
    let kubeconfig = fs::read(machine.path("desk-kubeconfig")).unwrap();
    assert_eq!(kubeconfig, b"kubeconfig of the admin\n");
    assert_eq!(machine.calls().matches("kubeadm init --skip").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_learns_before_the_lock_which_cluster_it_makes_where_keys_come_from_elsewhere() {
    let bao = Bao::start().await;
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::write(machine.path("hold"), "").unwrap();
    let program = machine.start("run").serving();
    let relay = Relay::start(machine.init_address()).await;
    let desk = Desk(&machine);
    let kms = bao.kms("kek", &bao.token().await);
    let storage = desk.file("desk-storage", bao.storage().as_bytes());
    let stored = ["--storage-uri-file", storage.as_str()];
    let breaking = async {
        locked(&machine).await;
        let passed = relay.connections.load(Ordering::Relaxed);
        relay.cut.send(()).unwrap();
        relay.reached(passed + 1).await;
        // A different process knows it only by its ID.
        let unknown = desk.init(&kms, INIT_SECRET, &stored).await;
        unknown.assert(1, "--cluster does not say");
        fs::remove_file(machine.path("hold")).unwrap();
    };
    let making = run(desk.init_words(&relay.address, &kms, INIT_SECRET, &stored));
    let (made, ()) = tokio::join!(making, breaking);
    made.assert(0, "the node can become this cluster");
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_takes_up_its_own_cluster_and_sends_nothing_to_a_member_of_another() {
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::write(machine.path("hold"), "").unwrap();
    let program = machine.start("run").serving();
    let desk = Desk(&machine);
    let first = desk.init_words(&machine.init_address(), KMS, INIT_SECRET, &[]);
    let mut first = command(&first).stderr(Stdio::null()).spawn().unwrap();
    locked(&machine).await;
    first.kill().unwrap();
    first.wait().unwrap();

    // The node would log receiving a wrong secret.
    let other = KMS.replace("QEFC", "QUFC");
    let refused = desk.init(&other, b"canary-wrong", &[]).await;
    refused.assert(1, "TEC-B403");
    let log = program.log();
    assert!(!log.contains("a wrong secret"), "{log}");
    let unlike = ["--cluster", &"0".repeat(64)];
    let refused = desk.init(KMS, INIT_SECRET, &unlike).await;
    refused.assert(1, "names a different one");

    fs::remove_file(machine.path("hold")).unwrap();
    let made = desk.init(KMS, INIT_SECRET, &[]).await;
    made.assert(0, "clusterId");
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
    assert_eq!(machine.calls().matches("kubeadm init --skip").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_waits_no_longer_than_it_was_told_for_a_host_that_says_nothing() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let kms = Desk(&machine).file("desk-kms", KMS.as_bytes());
    let mut all = words(&["node", "recover", &address, "--kms-uri-file", &kms, "--wait", "1"]);
    all.extend(Desk(&machine).trust());
    let began = Instant::now();
    run(all).await.assert(3, "TEC-B503");
    // Half of a handshake's deadline.
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[tokio::test(flavor = "multi_thread")]
async fn tec_warns_of_a_register_that_only_warns() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let desk = Desk(&machine);
    let program = machine.start("run").serving();
    let expected = format!(
        r#"{{"8": {{"expected": "{}", "warnOnly": true}}}}"#,
        Sha256Digest::of("another image")
    );
    let (expected, kms) = (
        desk.file("desk-measurements", expected.as_bytes()),
        desk.file("desk-kms", KMS.as_bytes()),
    );
    let (ak, address) = (machine.ak.to_string(), machine.init_address());
    let all = ["node", "recover", &address, "--kms-uri-file", &kms, "--check"];
    let trust = ["--ak", &ak, "--measurements", &expected];
    // Nothing serves Recover there; the evidence was accepted anyway.
    let said = run(words(&[&all[..], &trust].concat())).await;
    said.assert(1, "a peer is taken whose register differs").assert(1, "it tries the keys");
    program.kill();
}
