//! Trust moves from one `tec serve` to another while nodes boot continuously, and the first server is
//! switched off.
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test's own tools may fail the test"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tec_core::id::ResourcePath;
use tec_core::port::SecretStore as _;
use tec_e2e::anchor::Anchor;
use tec_e2e::firmware::BootChain;
use tec_e2e::fleet::{Fleet, SoftNode};
use tec_e2e::machine::Machine;
use tec_e2e::process::{Transcript, wait_for};
use tec_e2e::runbook::commands;
use tec_e2e::settings::{Settings, picture};
use tec_e2e::{load, wire};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Nodes with software instead of TPMs.
const NODES: u64 = 12;
/// Time for a few boots of the machine between two steps of the move.
const STEP: Duration = Duration::from_mins(1);

/// Two servers; only the first has approved the boot, and nodes know both.
struct World {
    directory: TempDir,
    settings: Settings,
    logs: Arc<Transcript>,
    source: Anchor,
    target: Anchor,
    approved: Value,
    runtime: Runtime,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl World {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::for_tests(&directory.path().join("unused.html")).unwrap();
        let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
        let at = |name: &str| directory.path().join(name);
        let rates = ["--register-rate", "100000", "--kbs-rate", "100000"];
        let target = Anchor::start(&settings, &at("inside"), &logs, &rates).unwrap();
        let kbs = target.kbs().unwrap();
        fs::write(at("inside.pem"), &kbs.cert).unwrap();
        let also = format!("{}={}", kbs.url, at("inside.pem").display());
        let flags = [rates.as_slice(), &["--also-kbs", &also]].concat();
        let source = Anchor::start(&settings, &at("outside"), &logs, &flags).unwrap();
        let image = settings.image("current");
        let approval = ["image", "approve", "debian", image.to_str().unwrap(), "--accept-unpinned"];
        let approved = source.tec(&approval).unwrap();
        Self { directory, settings, logs, source, target, approved, runtime: runtime() }
    }

    fn source_dir(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    fn inside(&self) -> PathBuf {
        self.directory.path().join("inside")
    }

    fn migrate(&self, verb: &str) -> Value {
        let to = self.inside();
        let mut words = vec!["migrate", verb, "--to", to.to_str().unwrap()];
        words.extend((verb == "retire").then_some("--yes"));
        self.source.tec(&words).unwrap()
    }

    /// A real node, after its first boot.
    fn machine(&self) -> Machine {
        let root = self.settings.image("current");
        let chain = BootChain::of_approval(&root, &self.approved).unwrap();
        let own = chain.copied_to(&self.directory.path().join("boot")).unwrap();
        let directory = self.directory.path();
        let machine = Machine::new(&self.settings, &self.logs, directory, "one", own).unwrap();
        let config = self.runtime.block_on(config(&self.source));
        machine.first_boot(&config.body).unwrap();
        machine
    }

    fn soft_node(&self, seed: u64) -> SoftNode {
        let servers = vec![self.source.kbs().unwrap(), self.target.kbs().unwrap()];
        let node = self.runtime.block_on(register(&self.source, seed)).unwrap();
        let boot = load::boot_digests(&self.approved).unwrap();
        SoftNode { boot, servers, ..node }
    }
}

/// An anchor's answer to a first boot.
async fn config(anchor: &Anchor) -> wire::Reply {
    let [register, ..] = anchor.urls().unwrap();
    let url = format!("{register}/ignition-clevis-pin-trustee");
    wire::get(&anchor.ca().unwrap(), &url).await.unwrap()
}

/// Registers a machine with its key, or returns the code with which that is refused.
async fn register(anchor: &Anchor, seed: u64) -> Result<SoftNode, String> {
    load::register(anchor, seed).await.map_err(|error| format!("{error:#}"))
}

fn boot_real(machine: &mut Machine, stop: &AtomicBool, boots: &AtomicU32) {
    while !stop.load(Ordering::SeqCst) {
        machine.reboot().unwrap();
        let unlocked = machine.unlock().unwrap();
        assert!(unlocked.is_ok(), "a failed boot: {unlocked:?}");
        boots.fetch_add(1, Ordering::SeqCst);
    }
}

/// Every step of the move, with boots before, between and after.
fn move_all(world: &mut World, fleet: &Fleet, real: &AtomicU32) {
    let role = |side: &str| world.migrate("status")[side]["role"].clone();
    let go_on = |what: &str| {
        let before = real.load(Ordering::SeqCst);
        fleet.go_on(what).unwrap();
        wait_for("boots of the machine", STEP, || Ok(real.load(Ordering::SeqCst) >= before + 2))
            .unwrap();
    };
    go_on("before");
    let plan = world.migrate("plan");
    assert_eq!(plan["copy"]["created"], NODES + 2, "{plan}");
    assert_eq!(role("target"), "active", "a plan changes nothing");
    world.migrate("apply");
    assert_eq!(role("target"), "standby");
    let refused = world.runtime.block_on(register(&world.target, 900));
    assert_eq!(refused.err().unwrap(), "TEC-M504");
    let late = world.soft_node(901);
    go_on("standby");
    let again = world.migrate("apply");
    assert_eq!(again["copy"]["created"], 1, "{again}");
    assert_eq!(world.migrate("verify")["outcome"], "reached");
    world.migrate("cutover");
    assert_eq!(world.migrate("status")["source"]["role"], "serve-only");
    assert_eq!(world.migrate("status")["target"]["role"], "active");
    go_on("cutover");
    let refused = world.runtime.block_on(register(&world.source, 902));
    assert_eq!(refused.err().unwrap(), "TEC-M503", "it approves nothing");
    world.runtime.block_on(register(&world.target, 903)).unwrap();
    assert_eq!(world.runtime.block_on(late.boot()), Ok(0), "it serves");
    world.migrate("retire");
    assert_eq!(world.runtime.block_on(late.boot()), Ok(1));
    let store = world.source.store().unwrap();
    let path = ResourcePath::luks_root(&late.machine);
    assert!(!world.runtime.block_on(store.exists(&path)).unwrap(), "it is shredded");
    drop(store);
    go_on("retired");
    for anchor in [&world.source, &world.target] {
        assert_eq!(anchor.tec(&["audit", "verify"]).unwrap()["intact"], true);
    }
    world.source.kill().unwrap();
    go_on("switched off");
}

#[test]
fn no_boot_fails_while_trust_moves_and_the_old_anchor_is_switched_off() {
    let mut world = World::start();
    let mut machine = world.machine();
    let nodes: Vec<_> = (1..=NODES).map(|seed| world.soft_node(seed)).collect();
    let fleet = Fleet::start(nodes);
    let (stop, real) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let booting = scope.spawn(|| boot_real(&mut machine, &stop, &real));
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            move_all(&mut world, &fleet, &real);
        }));
        stop.store(true, Ordering::SeqCst);
        booting.join().unwrap();
        moved.unwrap();
    });
    let picture = picture("from-store-to-store").unwrap();
    let servers = ["the anchor outside", "the anchor inside"];
    let by = fleet.end(&picture, "From one store to another", &servers).unwrap();
    let real = real.load(Ordering::SeqCst);
    println!("no failed boot: {real} of a machine, {by:?} of others by the anchor that answered");
    assert!(by.iter().all(|count| *count > 0), "both answered: {by:?}");
}

/// Runs `tec bootstrap`; returns the exit code and the output.
fn bootstrap(world: &World, state_dir: &Path, words: &[&str]) -> (i32, Value) {
    let mut command = std::process::Command::new(world.settings.tec());
    command.args(["--output", "json", "--log", "warn", "--state-dir"]);
    command.arg(state_dir).arg("bootstrap").args(words);
    let ran = world.logs.run(&mut command).unwrap();
    let printed = serde_json::from_slice(&ran.stdout).unwrap_or(Value::Null);
    (ran.status.code().unwrap(), printed)
}

/// Runs the commands in a section of the page on this topic.
fn run_page(world: &World, section: &str, names: &[(&str, &str)]) {
    let (outside, inside) = (world.source_dir(), world.inside());
    let own =
        [("/srv/outside", outside.to_str().unwrap()), ("/srv/inside", inside.to_str().unwrap())];
    let names = [names, &own].concat();
    let page = "how-to/move-trust-to-another-anchor.md";
    for words in commands(page, section, &names).unwrap() {
        let (arguments, file) = match words.as_slice() {
            [_, arguments @ .., to, file] if to == ">" => (arguments, Some(file)),
            [_, arguments @ ..] => (arguments, None),
            [] => continue,
        };
        if arguments.contains(&"key".to_owned()) {
            // Created before, because later commands contain its output.
            continue;
        }
        let mut command = std::process::Command::new(world.settings.tec());
        let printed = world.logs.must(command.args(arguments)).unwrap();
        if let Some(file) = file {
            fs::write(file, printed).unwrap();
        }
    }
}

#[test]
fn a_mirror_keeps_the_target_in_step_until_the_cutover() {
    let world = World::start();
    let (_, log) = world.logs.file("mirror").unwrap();
    let mut mirror = std::process::Command::new(world.settings.tec());
    mirror.arg("--state-dir").arg(world.source_dir());
    mirror.args(["migrate", "mirror", "--every", "1", "--to"]);
    let mirror = mirror.arg(world.inside()).stdout(log.try_clone().unwrap());
    let mut mirror = mirror.stderr(log).spawn().unwrap();
    let path = |node: &SoftNode| ResourcePath::luks_root(&node.machine);
    let has = |node: &SoftNode| {
        let store = world.target.store().unwrap();
        world.runtime.block_on(store.exists(&path(node)))
    };
    for seed in 1..=3 {
        let node = world.soft_node(seed);
        wait_for("the target has the key", STEP, || Ok(has(&node)?)).unwrap();
        assert!(mirror.try_wait().unwrap().is_none(), "it goes on");
    }
    world.migrate("cutover");
    let mut ended = None;
    wait_for("the mirror ends", STEP, || {
        ended = mirror.try_wait()?;
        Ok(ended.is_some())
    })
    .unwrap();
    assert!(ended.unwrap().success(), "{ended:?}");
}

#[test]
fn the_page_moves_trust_over_an_air_gap_and_never_to_two_anchors() {
    let world = World::start();
    let node = world.soft_node(1);
    let at = |name: &str| world.directory.path().join(name).display().to_string();
    // What the page leaves to the reader, created as the page says.
    let identity = at("identity.key");
    let made = world.target.tec(&["backup", "key", &identity]).unwrap();
    let recipient = made["recipient"].as_str().unwrap();
    let probe = ["backup", "create", "--recipient", recipient, &at("probe.tec")];
    let signer = world.source.tec(&probe).unwrap()["signer"].clone();
    let names = [
        ("RECIPIENT", recipient),
        ("SIGNER", signer.as_str().unwrap()),
        ("first.tec", &at("first.tec")),
        ("last.tec", &at("last.tec")),
        ("taker.json", &at("taker.json")),
        ("identity.key", &identity),
    ];
    run_page(&world, "Move over an air gap", &names);
    let status = world.migrate("status");
    assert_eq!(status["source"]["role"], "serve-only");
    assert_eq!(status["target"]["role"], "active");
    assert_eq!(world.runtime.block_on(node.boot()), Ok(0), "both serve");
    let refused = world.runtime.block_on(register(&world.source, 900));
    assert_eq!(refused.err().unwrap(), "TEC-M503");
    world.runtime.block_on(register(&world.target, 901)).unwrap();
    let restore = [
        "backup",
        "restore",
        "--identity",
        &identity,
        "--signer",
        signer.as_str().unwrap(),
        &at("last.tec"),
    ];
    let again = format!("{:#}", world.target.tec(&restore).unwrap_err());
    assert!(again.contains("TEC-M425"), "{again}");
}

#[test]
fn a_new_anchor_is_set_up_and_looked_at_as_a_node_does() {
    let world = World::start();
    let state_dir = world.directory.path().join("new");
    let (code, founded) = bootstrap(&world, &state_dir, &["init"]);
    assert_eq!(code, 0);
    let config = world.directory.path().join("installer.ign");
    fs::write(&config, founded["ignition"].to_string()).unwrap();
    let check = ["check", "--ignition", config.to_str().unwrap()];
    let (code, report) = bootstrap(&world, &state_dir, &check);
    assert_eq!(code, 1, "nobody serves yet: {report}");

    let rates = ["--register-rate=100000", "--kbs-rate=100000"];
    let anchor = Anchor::start(&world.settings, &state_dir, &world.logs, &rates).unwrap();
    assert_eq!(anchor.ca().unwrap(), founded["endpoints"]["ca"], "the CA stays");
    let (code, report) = bootstrap(&world, &state_dir, &["check"]);
    assert_eq!(code, 3, "nothing is approved: {report}");
    let image = world.settings.image("current");
    let image = format!("debian={}", image.display());
    let approve = ["init", "--image", &image, "--accept-unpinned"];
    let (code, again) = bootstrap(&world, &state_dir, &approve);
    assert_eq!((code, &again["anchor"]), (0, &founded["anchor"]));
    // The running server records its addresses.
    drop(anchor);
    let anchor = Anchor::start(&world.settings, &state_dir, &world.logs, &rates).unwrap();
    let (code, report) = bootstrap(&world, &state_dir, &["check"]);
    assert_eq!((code, report["ok"].as_bool()), (0, Some(true)), "{report}");
    let machines = anchor.tec(&["machine", "list"]).unwrap();
    assert_eq!(machines, json!([]), "looking leaves no machine");

    // A node does not accept the same server with a different CA.
    let mut config = anchor.tec(&["ignition", "merge"]).unwrap();
    let other = world.source.tec(&["ignition", "merge"]).unwrap();
    config["ignition"]["security"] = other["ignition"]["security"].clone();
    let path = world.directory.path().join("other.ign");
    fs::write(&path, config.to_string()).unwrap();
    let check = ["check", "--ignition", path.to_str().unwrap()];
    let (code, report) = bootstrap(&world, &state_dir, &check);
    assert_eq!((code, &report["nodes"][0]["ok"]), (1, &json!(false)), "{report}");
}

#[test]
fn a_backup_restored_elsewhere_opens_the_disk_after_the_server_is_lost() {
    let mut world = World::start();
    let node = world.soft_node(1);
    let at = |name: &str| world.directory.path().join(name).display().to_string();
    let key = world.source.tec(&["backup", "key", &at("identity")]).unwrap();
    let recipient = key["recipient"].as_str().unwrap();
    let (early, late) = (at("early.tec"), at("late.tec"));
    world.source.tec(&["backup", "create", "--recipient", recipient, &early]).unwrap();
    let second = world.soft_node(2);
    let made = world.source.tec(&["backup", "create", "--recipient", recipient, &late]).unwrap();
    assert_eq!((&made["units"], &made["number"]), (&json!(3), &json!(2)));
    let signer = made["signer"].as_str().unwrap().to_owned();
    let (identity, gone) = (at("identity"), "--dangerous-source-is-gone");
    let restore = |file: &str, more: &[&str]| {
        let words = ["backup", "restore", "--identity", &identity, "--signer", &signer, file];
        world.target.tec(&[&words, more].concat())
    };
    world.source.kill().unwrap();
    restore(&late, &[]).unwrap();
    let replayed = format!("{:#}", restore(&early, &[]).unwrap_err());
    assert!(replayed.contains("TEC-M425"), "{replayed}");
    let refused = world.runtime.block_on(node.boot()).unwrap_err();
    assert_eq!(refused[1], "TEC-M504", "it stands by");
    let restored = restore(&late, &[gone]).unwrap();
    assert_eq!(restored["authority"]["role"], "active");
    for node in [&node, &second] {
        assert_eq!(world.runtime.block_on(node.boot()), Ok(1));
    }
    let again = format!("{:#}", restore(&late, &[]).unwrap_err());
    assert!(again.contains("TEC-M425"), "the authority moved on: {again}");
}
