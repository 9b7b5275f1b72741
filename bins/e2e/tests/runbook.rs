//! The page on moving trust, from nothing to a retired anchor, with a node that boots during the move.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tec_core::ignition::PinConfig;
use tec_e2e::fleet::SoftNode;
use tec_e2e::kube::Guarded;
use tec_e2e::load::boot_digests;
use tec_e2e::process::{Transcript, wait_for};
use tec_e2e::runbook::commands;
use tec_e2e::settings::Settings;
use tec_e2e::wire;
use tec_tpm::testing::SoftTpm;
use tempfile::TempDir;

const PAGE: &str = "how-to/move-trust-to-another-anchor.md";
/// Deadline for a server to be ready.
const READY: Duration = Duration::from_secs(30);

/// Placeholders of the page, and their values here.
struct World {
    directory: TempDir,
    settings: Settings,
    logs: Transcript,
    ports: [u16; 6],
    servers: Vec<Guarded>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listeners = [0; 6].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        Self {
            settings: Settings::for_tests(&directory.path().join("unused.html")).unwrap(),
            logs: Transcript::new(directory.path().join("logs")).unwrap(),
            ports: listeners.map(|listener| listener.local_addr().unwrap().port()),
            servers: Vec::new(),
            directory,
        }
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Addresses of an anchor's servers: the first three ports belong to the external anchor, the others to
    /// the in-cluster one.
    fn addresses(&self, words: &[String]) -> [(&'static str, String); 3] {
        let inside = self.at("inside");
        let is_inside = words.iter().take(3).any(|word| *word == inside);
        let ports = if is_inside { &self.ports[3..] } else { &self.ports[..3] };
        let address = |number: usize| format!("127.0.0.1:{}", ports[number]);
        [
            ("TEC_REGISTER_ADDR", address(0)),
            ("TEC_AK_ADDR", address(1)),
            ("TEC_KBS_ADDR", address(2)),
        ]
    }

    /// Runs the commands of a section; servers keep running.
    fn run(&mut self, section: &str) {
        let image = self.settings.image("current").display().to_string();
        let inside = format!("localhost:{}", self.ports[5]);
        let (outside_dir, inside_dir) = (self.at("outside"), self.at("inside"));
        let installer = self.at("installer.ign");
        let names = [
            ("inside.example:8080", inside.as_str()),
            ("inside.example", "localhost"),
            ("outside.example", "localhost"),
            ("/srv/images/debian", &image),
            ("/srv/outside", &outside_dir),
            ("/srv/inside", &inside_dir),
            ("installer.ign", &installer),
        ];
        for words in commands(PAGE, section, &names).unwrap() {
            let addresses = self.addresses(&words);
            if words.iter().any(|word| word == "serve") {
                self.serve(&words[1..], &addresses);
                continue;
            }
            let program = match words[0].as_str() {
                "tec" => self.settings.tec(),
                other => Path::new(other).to_owned(),
            };
            let (words, file) = match &words[1..] {
                [words @ .., to, file] if to == ">" => (words, Some(file)),
                words => (words, None),
            };
            let mut command = Command::new(program);
            let printed = self.logs.must(command.args(words).envs(addresses)).unwrap();
            if let Some(file) = file {
                fs::write(file, printed).unwrap();
            }
        }
    }

    fn serve(&mut self, words: &[String], addresses: &[(&'static str, String); 3]) {
        let environment = addresses.each_ref().map(|(name, value)| (*name, value.as_ref()));
        let tec = self.settings.tec();
        let server = Guarded::start("serve", &tec, words, &environment, &self.logs).unwrap();
        let (_, kbs) = &addresses[2];
        wait_for("tec serve", READY, || Ok(TcpStream::connect(kbs).is_ok())).unwrap();
        self.servers.push(server);
    }

    fn tec(&self, words: &[&str]) -> Value {
        let mut command = Command::new(self.settings.tec());
        command.args(["--output=json", "--log=warn", "--state-dir"]);
        let printed = self.logs.must(command.arg(self.at("outside")).args(words));
        serde_json::from_str(&printed.unwrap()).unwrap()
    }

    /// A node that starts with nothing but the installer's config.
    async fn node(&self) -> SoftNode {
        let config = fs::read(self.at("installer.ign")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let url = config["ignition"]["config"]["merge"][0]["source"].as_str().unwrap();
        let ca = &config["ignition"]["security"]["tls"]["certificateAuthorities"][0]["source"];
        let ca = ca.as_str().unwrap().split_once(";base64,").unwrap().1;
        let ca = base64::engine::general_purpose::STANDARD.decode(ca).unwrap();
        let ca = String::from_utf8(ca).unwrap();
        let reply = wire::get(&ca, url).await.unwrap();
        let pin = &reply.body["storage"]["luks"][0]["clevis"]["custom"]["config"];
        let pin = PinConfig::parse(pin.as_str().unwrap()).unwrap();
        let (tpm, machine) = (SoftTpm::p256(1), pin.path.machine().unwrap());
        let key = pin.attestation_key.unwrap().registration;
        let body = json!({"public_key": tpm.public_key().to_pem(), "uuid": machine.to_string()});
        let reply = wire::put(&key.cert, &key.url, &body).await.unwrap();
        assert_eq!(reply.status, 201, "{}", reply.body);
        SoftNode {
            tpm,
            machine,
            boot: boot_digests(&self.tec(&["image", "show", "debian"])).unwrap(),
            servers: pin.servers,
        }
    }
}

#[test]
fn the_page_leads_from_nothing_to_a_retired_anchor() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let mut world = World::new();
    world.run("Before the first node");
    let node = runtime.block_on(world.node());
    assert_eq!(node.servers.len(), 2, "it knows both from the beginning");
    assert_eq!(runtime.block_on(node.boot()), Ok(0), "it boots before there is a cluster");
    world.run("Start the new anchor");
    assert_eq!(runtime.block_on(node.boot()), Ok(0), "the new one stands by");
    for section in ["Move", "Roll back"] {
        world.run(section);
        assert_eq!(runtime.block_on(node.boot()), Ok(0), "{section}: both serve");
    }
    world.run("Retire");
    assert_eq!(runtime.block_on(node.boot()), Ok(1), "the new one serves");
    drop(world.servers.remove(0));
    assert_eq!(runtime.block_on(node.boot()), Ok(1), "the old one is switched off");
    let kept = fs::read_dir(world.at("inside")).unwrap();
    let kept = kept.map(|file| file.unwrap().file_name().into_string().unwrap());
    let logs: Vec<_> = kept.filter(|name| name.starts_with("audit-of-")).collect();
    assert_eq!(logs.len(), 1, "the audit log of the old one is kept");
}
