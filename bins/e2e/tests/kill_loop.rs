//! The server is killed repeatedly while nodes register, attest and fetch their keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use tec_core::port::Entropy as _;
use tec_e2e::anchor::Anchor;
use tec_e2e::load;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_support::SystemEntropy;

/// Default number of rounds; `TEC_KILLS` overrides it.
const ROUNDS: u32 = 40;
/// Number of concurrent nodes.
const NODES: usize = 6;

#[test]
fn no_acknowledged_key_is_lost_and_none_is_made_twice() {
    let rounds = std::env::var_os("TEC_KILLS")
        .map_or(ROUNDS, |text| text.to_str().unwrap().parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings::for_tests(&directory.path().join("unused.html")).unwrap();
    let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
    let flags = [
        "--register-rate=100000",
        "--max-unclaimed=1000000",
        "--max-claimed=1000000",
        "--max-claimed-per-source=1000000",
    ];
    let state = directory.path().join("state");
    let mut anchor = Anchor::start(&settings, &state, &logs, &flags).unwrap();
    let image = settings.image("current");
    let approve = ["image", "approve", "debian", image.to_str().unwrap(), "--accept-unpinned"];
    let approved = anchor.tec(&approve).unwrap();
    let boot = load::boot_digests(&approved).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut known = BTreeMap::new();
    let mut acknowledged = 0;
    for round in 0..rounds {
        let nodes = load::Nodes::start(&anchor, NODES, &boot).unwrap();
        let mut random = [0; 1];
        SystemEntropy.fill(&mut random);
        load::pause(60 + u64::from(random[0]));
        anchor.kill().unwrap();
        let machines = nodes.finish().unwrap();
        // Opened while no server runs: only durable data counts.
        let keys = load::key_digests(&runtime, &anchor.store().unwrap()).unwrap();
        for (machine, key) in &known {
            assert_eq!(keys.get(machine), Some(key), "round {round}: {machine}");
        }
        for machine in &machines {
            assert!(keys.contains_key(machine), "round {round}: {machine} lost its key");
        }
        acknowledged += machines.len();
        known = keys;
        assert_eq!(anchor.tec(&["audit", "verify"]).unwrap()["intact"], true, "round {round}");
        anchor.restart().unwrap();
    }
    assert!(acknowledged > 0, "no machine was acknowledged in {rounds} rounds");
    println!("{rounds} kills, {acknowledged} acknowledged machines, {} keys", known.len());
}
