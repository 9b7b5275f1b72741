//! Many nodes at a time, with software instead of TPMs: they register, submit keys, attest and fetch their
//! disk keys, and remember what was acknowledged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tec_core::ak::AkState;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::PinConfig;
use tec_core::pcr::PcrIndex;
use tec_core::port::{AkRegistry as _, Entropy as _, SecretStore};
use tec_core::store::Store;
use tec_support::SystemEntropy;
use tec_tpm::testing::SoftTpm;
use tokio::runtime::Runtime;

use crate::anchor::Anchor;
use crate::fleet::SoftNode;
use crate::wire;

/// Registers a machine with its key at an anchor; the node has nothing to boot and no servers yet.
///
/// # Errors
/// The anchor cannot be reached, or refuses: the message contains the code.
pub async fn register(anchor: &Anchor, seed: u64) -> anyhow::Result<SoftNode> {
    let [register, ak, _] = anchor.urls()?;
    let ca = anchor.ca()?;
    let url = format!("{register}/ignition-clevis-pin-trustee");
    let reply = wire::get(&ca, &url).await?;
    ensure!(reply.status == 200, "{}", reply.code());
    let machine = machine_of(&reply.body)?;
    let tpm = SoftTpm::p256(seed);
    let key = tpm.public_key().to_pem();
    let body = json!({"public_key": key, "uuid": machine.to_string()});
    let reply = wire::put(&ca, &format!("{ak}/register-ak"), &body).await?;
    ensure!(reply.status == 201, "{}", reply.code());
    Ok(SoftNode { tpm, machine, boot: Vec::new(), servers: Vec::new() })
}

/// Addresses of a server, for threads.
#[derive(Clone, Debug)]
struct Target {
    register: String,
    ak: String,
    kbs: Endpoint,
    boot: Vec<Sha256Digest>,
}

/// Nodes that go from registration to key, one machine after another, until the server is gone.
#[derive(Debug)]
pub struct Nodes {
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<MachineId>>>,
}

impl Nodes {
    /// Starts `count` nodes that boot the digests in `boot`.
    pub fn start(anchor: &Anchor, count: usize, boot: &[Sha256Digest]) -> anyhow::Result<Self> {
        let [register, ak, _] = anchor.urls()?;
        let target = Target {
            register: format!("{register}/ignition-clevis-pin-trustee"),
            ak: format!("{ak}/register-ak"),
            kbs: anchor.kbs()?,
            boot: boot.to_vec(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let spawn = |_| {
            let (target, stop) = (target.clone(), Arc::clone(&stop));
            let acknowledged = Arc::clone(&acknowledged);
            std::thread::spawn(move || run(&target, &stop, &acknowledged))
        };
        let threads = (0..count).map(spawn).collect();
        Ok(Self { threads, stop, acknowledged })
    }

    /// Waits for them, and returns the machines whose key registration was acknowledged.
    pub fn finish(self) -> anyhow::Result<Vec<MachineId>> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok().context("the thread of a node panicked")??;
        }
        let mut list = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *list))
    }
}

fn run(
    target: &Target,
    stop: &AtomicBool,
    acknowledged: &Mutex<Vec<MachineId>>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = wire::client(&target.kbs.cert)?;
    while !stop.load(Ordering::Relaxed) {
        let known = |machine| {
            acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(machine);
        };
        match runtime.block_on(one(&client, target, known)) {
            Ok(()) => {}
            // Only network errors are allowed: that is what a killed server looks like.
            Err(error) if error.chain().any(<dyn std::error::Error>::is::<reqwest::Error>) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes one machine from registration to its key.
async fn one(
    client: &reqwest::Client,
    target: &Target,
    acknowledge: impl FnOnce(MachineId),
) -> anyhow::Result<()> {
    let machine = machine_of(&wire::get_with(client, &target.register).await?.body)?;
    let mut seed = [0; 8];
    SystemEntropy.fill(&mut seed);
    let tpm = SoftTpm::p256(u64::from_le_bytes(seed));
    let body = json!({ "public_key": tpm.public_key().to_pem(), "uuid": machine.to_string() });
    let reply = wire::put_with(client, &target.ak, &body).await?;
    ensure!(reply.status == 201, "register-ak: {}", reply.body);
    acknowledge(machine);
    for digest in &target.boot {
        tpm.extend(PcrIndex::BOOT_MANAGER, digest);
    }
    let session = wire::Session::open_with(client.clone(), &target.kbs).await?;
    let proof = session.prove(&tpm, wire::some_pubkey()).await?;
    let reply = session.attest(&proof).await?;
    ensure!(reply.status == 200, "attest: {}", reply.body);
    let reply = session.resource(ResourcePath::luks_root(&machine).as_str()).await?;
    ensure!(reply.status == 200, "resource: {}", reply.body);
    Ok(())
}

/// The machine that an Ignition config names.
pub fn machine_of(ignition: &Value) -> anyhow::Result<MachineId> {
    let config = &ignition["storage"]["luks"][0]["clevis"]["custom"]["config"];
    let pin = PinConfig::parse(config.as_str().context("no pin in the config")?)?;
    pin.path.machine().context("no machine in the path")
}

/// The digests that an approval expects in PCR 4, in order.
///
/// # Errors
/// The approval, as `tec image approve --output json` prints it, has no PCR 4.
pub fn boot_digests(approved: &Value) -> anyhow::Result<Vec<Sha256Digest>> {
    let pcrs = approved["pcrs"].as_array().context("the approval has no PCRs")?;
    let pcr4 = pcrs.iter().find(|pcr| pcr["id"] == 4).context("no PCR 4 in the approval")?;
    let events = pcr4["events"].as_array().context("PCR 4 has no events")?;
    let hash = |event: &Value| event["hash"].as_str().and_then(|text| text.parse().ok());
    events.iter().map(|event| hash(event).context("an event without a digest")).collect()
}

/// Digest of the disk key of each machine with a bound attestation key.
///
/// # Errors
/// The store cannot be read, or a machine has two bound keys or no disk key.
pub fn key_digests(
    runtime: &Runtime,
    store: &Store,
) -> anyhow::Result<BTreeMap<MachineId, Sha256Digest>> {
    let mut digests = BTreeMap::new();
    for record in runtime.block_on(tec_core::port::AkRegistry::list(store, None))? {
        if record.state != AkState::Bound {
            continue;
        }
        let path = ResourcePath::luks_root(&record.machine);
        // A key that is bound but not acknowledged may still be without a disk key.
        let Some(key) = runtime.block_on(SecretStore::find(store, &path))? else {
            continue;
        };
        let digest = Sha256Digest::of(key.expose("compare before and after"));
        let earlier = digests.insert(record.machine, digest);
        ensure!(earlier.is_none(), "machine {} has two attestation keys", record.machine);
        let bound = runtime.block_on(store.bound_to(&record.machine))?;
        ensure!(bound.is_some(), "machine {} is bound to nothing", record.machine);
    }
    Ok(digests)
}

/// Lets the load run for this many milliseconds.
pub fn pause(milliseconds: u64) {
    #[expect(clippy::disallowed_methods, reason = "the moment of the kill is what is chosen")]
    std::thread::sleep(Duration::from_millis(milliseconds));
}
