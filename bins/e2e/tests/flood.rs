//! Strangers register as many machines as they can, with software keys, at a server on a small disk: what it
//! admits is bounded, known nodes still unlock, and the audit log still grows.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tec_core::ak::SourceNetwork;
use tec_core::port::AkRegistry as _;
use tec_core::testing::sample;
use tec_e2e::anchor::Anchor;
use tec_e2e::fleet::SoftNode;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_e2e::{load, wire};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Default number of strangers; `TEC_FLOOD` overrides it.
const STRANGERS: u64 = 2_000;
/// Number of addresses they use.
const ADDRESSES: u8 = 16;
/// How many machines the server may admit on first use, if there are only the default number of strangers.
const CLAIMS: u64 = 400;
const CLAIMS_PER_SOURCE: u64 = 50;
/// Size of the disk, and how much of it registrations must leave free.
const DISK_MIB: u64 = 64;
const RESERVE_MIB: u64 = 16;

/// A small, separate file system; mounting it requires root.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path) -> Self {
        std::fs::create_dir(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={DISK_MIB}m"), "flood"])
            .arg(at)
            .output()
            .unwrap();
        assert!(mounted.status.success(), "mount as root: {mounted:?}");
        Self(at)
    }

    fn free_mib(&self) -> u64 {
        let space = rustix::fs::statvfs(self.0).unwrap();
        (space.f_bavail * space.f_frsize) >> 20
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

fn address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 7, number + 1))
}

/// Registers one machine with one key, and counts the server's answers.
async fn stranger(client: &reqwest::Client, urls: &[String; 2], key: u64) -> String {
    let reply = wire::get_with(client, &urls[0]).await.unwrap();
    if reply.status != 200 {
        return reply.code();
    }
    let machine = load::machine_of(&reply.body).unwrap();
    let key = sample::public_key(key).to_pem();
    let body = json!({"public_key": key, "uuid": machine.to_string()});
    let reply = wire::put_with(client, &urls[1], &body).await.unwrap();
    match reply.status {
        201 => "bound".to_owned(),
        _ => reply.code(),
    }
}

/// All strangers, sequentially per address; returns the answers and their counts.
async fn flood(anchor: &Anchor, strangers: u64) -> BTreeMap<String, u64> {
    let [register, ak, _] = anchor.urls().unwrap();
    let urls = [format!("{register}/ignition-clevis-pin-trustee"), format!("{ak}/register-ak")];
    let each = strangers / u64::from(ADDRESSES);
    let mut attackers = JoinSet::new();
    for number in 0..ADDRESSES {
        let urls = urls.clone();
        let client = reqwest::Client::builder().local_address(address(number));
        let client = client.build().unwrap();
        attackers.spawn(async move {
            let mut told: BTreeMap<String, u64> = BTreeMap::new();
            for key in 0..each {
                let key = u64::from(number) * 1_000_000 + key;
                *told.entry(stranger(&client, &urls, key).await).or_default() += 1;
            }
            told
        });
    }
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(one) = attackers.join_next().await {
        for (what, count) in one.unwrap() {
            *told.entry(what).or_default() += count;
        }
    }
    told
}

async fn known_node(anchor: &Anchor, boot: &[tec_core::digest::Sha256Digest]) -> SoftNode {
    let mut node = load::register(anchor, 4_711).await.unwrap();
    node.boot = boot.to_vec();
    node.servers = vec![anchor.kbs().unwrap()];
    node
}

fn lines(anchor: &Anchor) -> u64 {
    let verdict = anchor.tec(&["audit", "verify"]).unwrap();
    assert_eq!(verdict["intact"], true);
    verdict["events"].as_u64().unwrap()
}

fn setting() -> (u64, Vec<String>) {
    let strangers = std::env::var_os("TEC_FLOOD")
        .map_or(STRANGERS, |text| text.to_str().unwrap().parse().unwrap());
    let mut flags = vec![
        "--dangerous-plain-http".to_owned(),
        format!("--reserve-mib={RESERVE_MIB}"),
        "--register-rate=1000000".to_owned(),
    ];
    // The long form runs against the server's default limits.
    if strangers <= STRANGERS {
        flags.push(format!("--max-claimed={CLAIMS}"));
        flags.push(format!("--max-claimed-per-source={CLAIMS_PER_SOURCE}"));
    }
    (strangers, flags)
}

/// A server, and a node that it knows.
struct World {
    anchor: Anchor,
    runtime: Runtime,
    node: SoftNode,
}

impl World {
    fn start(directory: &Path, place: &Path, flags: &[&str]) -> Self {
        let settings = Settings::for_tests(&directory.join("unused.html")).unwrap();
        let logs = Arc::new(Transcript::new(directory.join("logs")).unwrap());
        let anchor = Anchor::start(&settings, &place.join("state"), &logs, flags).unwrap();
        let image = settings.image("current");
        let approve = ["image", "approve", "debian", image.to_str().unwrap(), "--accept-unpinned"];
        let boot = load::boot_digests(&anchor.tec(&approve).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let node = runtime.block_on(known_node(&anchor, &boot));
        runtime.block_on(node.boot()).unwrap();
        Self { anchor, runtime, node }
    }
}

#[test]
fn a_flood_of_strangers_leaves_room_for_the_audit_lines_of_known_nodes() {
    let (strangers, flags) = setting();
    let is_long = strangers > STRANGERS;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("disk");
    let disk = SmallDisk::mount(&place);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let World { anchor, runtime, node } = World::start(directory.path(), &place, &flags);

    let begin = Instant::now();
    let told = runtime.block_on(flood(&anchor, strangers));
    let took = begin.elapsed();

    let before = lines(&anchor);
    for _ in 0..3 {
        runtime.block_on(node.boot()).unwrap();
    }
    let after = lines(&anchor);
    assert!(after > before, "each release has its line");
    let from = SourceNetwork::of(address(0));
    let store = anchor.store().unwrap();
    let claims = runtime.block_on(store.claims(&from)).unwrap();
    let (total, per_source) = if is_long { (10_000, 1_000) } else { (CLAIMS, CLAIMS_PER_SOURCE) };
    // A request in progress when the limit is reached may still be admitted, one from each address.
    let slack = u64::from(ADDRESSES);
    assert!(claims.total <= total + slack, "{claims:?}");
    assert!(claims.of_source <= per_source + 1, "{claims:?}");
    assert!(told.contains_key("TEC-R431") || told.contains_key("TEC-R507"));
    assert!(disk.free_mib() >= RESERVE_MIB / 2, "{} MiB", disk.free_mib());
    let mut figures = String::new();
    for (what, count) in &told {
        let _ = write!(figures, "{what} {count}, ");
    }
    println!(
        "{strangers} strangers in {took:.1?}: {figures}{claims:?}, {before} then {after} audit lines, \
         {} of {DISK_MIB} MiB free, {} MiB resident",
        disk.free_mib(),
        anchor.memory().unwrap() >> 20,
    );
}

#[test]
fn a_disk_that_is_nearly_full_pauses_registration_and_no_release() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("disk");
    let disk = SmallDisk::mount(&place);
    let reserve = format!("--reserve-mib={RESERVE_MIB}");
    let world = World::start(directory.path(), &place, &["--dangerous-plain-http", &reserve]);
    let World { anchor, runtime, node } = &world;
    let register = || runtime.block_on(load::register(anchor, 4_712));
    let filler = place.join("filler");
    let bytes = usize::try_from((disk.free_mib() - RESERVE_MIB / 2) << 20).unwrap();
    std::fs::write(&filler, vec![1; bytes]).unwrap();
    assert!(disk.free_mib() < RESERVE_MIB);
    let before = lines(anchor);
    let refused = register().unwrap_err().to_string();
    assert_eq!(refused, "TEC-R507");
    let [_, ak, _] = anchor.urls().unwrap();
    let key = json!({"public_key": "any", "uuid": "any"});
    let url = format!("{ak}/register-ak");
    let put = wire::put("", &url, &key);
    assert_eq!(runtime.block_on(put).unwrap().code(), "TEC-R507");
    assert_eq!(lines(anchor), before, "what is refused writes nothing");
    runtime.block_on(node.boot()).unwrap();
    assert!(lines(anchor) > before, "the release has its line");
    std::fs::remove_file(&filler).unwrap();
    register().unwrap();
}
