//! An operator as a process, a live key broker that it feeds through the admin API, and nodes with software
//! TPMs that unlock with it.

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tec_core::ak::AkRecord;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::pcr::PcrIndex;
use tec_core::port::{Attester, Clock as _};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Broker, Guarded, cluster, eventually};
use tec_k8s::api::{
    ApprovedImage, ApprovedImageSpec, AttestationKey, Machine, PinsKind, TrustedExecutionCluster,
};
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_tpm::ak::{AkAlgorithm, AkHandle};
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::{Tpm, TpmAttester};
use tec_trustee::client::RcarError;

use crate::fetch::fetch;

/// What the boot extends into registers.
const BOOT: [(PcrIndex, &str); 2] = [(PcrIndex::BOOT_MANAGER, "shim"), (PcrIndex::MOK, "MokList")];

/// A node that has booted.
pub(crate) struct Node {
    pub(crate) id: MachineId,
    object: String,
    pub(crate) key: AttestationKey,
    /// Present except during a reboot.
    pub(crate) tpm: Option<Arc<Tpm>>,
    swtpm: Swtpm,
}

impl Node {
    /// Registers a machine and its TPM's key.
    pub(crate) async fn register(bench: &Bench, number: u64) -> Self {
        let swtpm = Swtpm::start().unwrap();
        let tpm = boot(&swtpm);
        let ak = tpm.ensure_ak(AkHandle::DEFAULT, AkAlgorithm::Rsa2048).unwrap();
        let (id, now) = (sample::machine_id(number), SystemClock.now());
        let record = AkRecord::pending(ak.key.public().clone(), id, None, now);
        let machine = Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, now));
        let object = bench.create(&machine).await.unwrap().name_any();
        let key = bench.create(&AttestationKey::from_core(&record)).await.unwrap();
        Self { id, object, key, tpm: Some(tpm), swtpm }
    }

    fn attester(&self) -> impl Attester + use<> {
        TpmAttester::new(self.tpm.clone().unwrap(), AkHandle::DEFAULT)
    }

    /// The same machine by name, with a TPM whose key is not registered.
    pub(crate) fn on_another_tpm(self) -> Self {
        let swtpm = Swtpm::start().unwrap();
        let tpm = boot(&swtpm);
        tpm.ensure_ak(AkHandle::DEFAULT, AkAlgorithm::Rsa2048).unwrap();
        Self { tpm: Some(tpm), swtpm, ..self }
    }

    pub(crate) fn reboot(&mut self) {
        self.tpm = None;
        self.swtpm.restart().unwrap();
        self.tpm = Some(boot(&self.swtpm));
    }

    async fn unlock(&self, broker: &Broker, whose: &MachineId) -> Result<Vec<u8>, RcarError> {
        self.unlock_at(broker.url(), whose).await
    }

    pub(crate) async fn unlock_at(
        &self,
        url: &str,
        whose: &MachineId,
    ) -> Result<Vec<u8>, RcarError> {
        let key = fetch(url, whose, &self.attester()).await?;
        Ok(key.expose("the test compares it").to_vec())
    }

    /// Waits until it gets its own key, and returns it.
    async fn unlocks(&self, broker: &Broker) -> Vec<u8> {
        let what = format!("{} unlocks", self.id);
        eventually(&what, async || Ok(self.unlock(broker, &self.id).await.is_ok())).await.unwrap();
        self.unlock(broker, &self.id).await.unwrap()
    }

    async fn is_refused(&self, broker: &Broker) {
        let what = format!("{} is refused", self.id);
        eventually(&what, async || Ok(self.unlock(broker, &self.id).await.is_err())).await.unwrap();
    }
}

/// Measures a boot, and opens the TPM.
fn boot(swtpm: &Swtpm) -> Arc<Tpm> {
    let tpm = Tpm::open(&swtpm.tcti()).unwrap();
    for (pcr, event) in BOOT {
        tpm.pcr_extend(pcr, &Sha256Digest::of(event)).unwrap();
    }
    Arc::new(tpm)
}

/// An image that measures what nodes boot; the test plays the Job that computes this.
pub(crate) async fn approve(bench: &Bench, name: &str) {
    approve_with(bench, name, &BOOT).await;
}

/// An image with only these predicted values.
async fn approve_with(bench: &Bench, name: &str, known: &[(PcrIndex, &str)]) {
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/os@sha256:{:064x}", known.len());
    bench.create(&ApprovedImage::new(name, spec)).await.unwrap();
    let pcrs = known.iter().map(|(pcr, event)| {
        let event = ImageEvent::new("EV_IPL", *pcr, Sha256Digest::of(event), *event);
        ExpectedPcr::from_events(*pcr, [event])
    });
    let status = json!({"status": {"pcrs": ExpectedPcrs::new(pcrs.collect()).pcrs}});
    let images = bench.objects::<ApprovedImage>().unwrap();
    let params = PatchParams::default();
    images.patch_status(name, &params, &Patch::Merge(status)).await.unwrap();
}

async fn world() -> (Bench, Broker, Guarded) {
    let bench = Bench::new().await.unwrap();
    let broker = Broker::start(1).await.unwrap();
    bench.create(&broker.admin_secret()).await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let operator = bench.start_program("one", &["--trustee-url", broker.url()]);
    approve(&bench, "image").await;
    (bench, broker, operator.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_gets_its_own_key_and_no_other_until_its_machine_is_deleted() {
    let (bench, broker, _operator) = world().await;
    let (one, two) = (Node::register(&bench, 1).await, Node::register(&bench, 2).await);
    let key = one.unlocks(&broker).await;
    assert_eq!(Some(&key), broker.key(&one.id).await.as_ref());
    assert_ne!(two.unlocks(&broker).await, key);
    let refused = one.unlock(&broker, &two.id).await.unwrap_err();
    assert_eq!(refused.code(), Code::ReleaseDenied, "another machine's key");

    // An unregistered key belongs to no machine.
    let stranger = two.on_another_tpm();
    stranger.unlock(&broker, &stranger.id).await.unwrap_err();

    let machines = bench.objects::<Machine>().unwrap();
    machines.delete(&one.object, &DeleteParams::default()).await.unwrap();
    one.is_refused(&broker).await;
    eventually("the broker has lost the key", async || Ok(broker.key(&one.id).await.is_none()))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_another_boot_and_a_withdrawn_image_are_refused() {
    let (bench, broker, _operator) = world().await;
    let (mut one, two) = (Node::register(&bench, 1).await, Node::register(&bench, 2).await);
    let key = one.unlocks(&broker).await;
    two.unlocks(&broker).await;
    // A different boot loader, then the good one again.
    let evil = Sha256Digest::of("evil");
    one.tpm.as_ref().unwrap().pcr_extend(PcrIndex::BOOT_MANAGER, &evil).unwrap();
    one.unlock(&broker, &one.id).await.unwrap_err();
    one.reboot();
    assert_eq!(one.unlocks(&broker).await, key);

    let keys = bench.objects::<AttestationKey>().unwrap();
    let revoke = Patch::Merge(json!({"spec": {"revokedAt": "2026-01-01T00:00:00Z"}}));
    let params = PatchParams::default();
    keys.patch(&one.key.name_any(), &params, &revoke).await.unwrap();
    one.is_refused(&broker).await;
    two.unlocks(&broker).await;
    let images = bench.objects::<ApprovedImage>().unwrap();
    images.delete("image", &DeleteParams::default()).await.unwrap();
    two.is_refused(&broker).await;
}

/// Waits until the cluster object reports that every boot must match these registers.
async fn pins(bench: &Bench, wanted: &[u8]) {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    eventually(&format!("{wanted:?} are pinned"), async || {
        let status = clusters.get("cluster").await?.status.unwrap_or_default();
        Ok(status.pins == Some(PinsKind::Predicted) && status.pinned_pcrs == wanted)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_which_only_pcr_4_is_predicted_unlocks_its_nodes() {
    let bench = Bench::new().await.unwrap();
    let broker = Broker::start(1).await.unwrap();
    bench.create(&broker.admin_secret()).await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let _operator = bench.start_program("one", &["--trustee-url", broker.url()]).unwrap();
    approve_with(&bench, "unlabelled", &BOOT[..1]).await;
    let mut node = Node::register(&bench, 1).await;
    let key = node.unlocks(&broker).await;
    pins(&bench, &[4]).await;
    let images = bench.objects::<ApprovedImage>().unwrap();
    eventually("the image says what is not checked", async || {
        let status = images.get("unlabelled").await?.status.unwrap_or_default();
        let mut said = status.conditions.iter().map(|condition| &condition.message);
        let sentence = "NOT covered: kernel, initramfs, command line, system extensions";
        let is_said = said.any(|message| message.contains(sentence));
        Ok(is_said && status.pinned_pcrs == [4])
    })
    .await
    .unwrap();

    // Policies demand what all images pin, and change with the images.
    approve(&bench, "labelled").await;
    images.delete("unlabelled", &DeleteParams::default()).await.unwrap();
    pins(&bench, &[4, 14]).await;
    let evil = Sha256Digest::of("keys of a stranger");
    node.tpm.as_ref().unwrap().pcr_extend(PcrIndex::MOK, &evil).unwrap();
    node.is_refused(&broker).await;
    node.reboot();
    assert_eq!(node.unlocks(&broker).await, key);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measurements_that_no_boot_leaves_behind_stop_nobody_and_are_told_of() {
    let bench = Bench::new().await.unwrap();
    let broker = Broker::start(1).await.unwrap();
    bench.create(&broker.admin_secret()).await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/other@sha256:{:064x}", 2);
    let unsound = ApprovedImage::new("unsound", spec);
    bench.create(&unsound).await.unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    let pcrs = json!([{"id": 4, "value": "00".repeat(32), "events": [
        {"name": "EV_IPL", "pcr": 4, "hash": "11".repeat(32), "id": "Pcr4"},
    ]}]);
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"status": {"pcrs": pcrs}}));
    let patched = images.patch_status("unsound", &params, &patch);
    patched.await.unwrap();
    let operator = bench.start_program("one", &["--trustee-url", broker.url()]);
    let _operator = operator.unwrap();
    approve(&bench, "image").await;
    let node = Node::register(&bench, 1).await;
    node.unlocks(&broker).await;
    eventually("it is told of", async || {
        let status = images.get("unsound").await?.status.unwrap_or_default();
        let mut conditions = status.conditions.iter();
        Ok(conditions.any(|condition| condition.reason == "Malformed"))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_lost_everything_or_fails_is_filled_again_with_the_same_keys() {
    let (bench, broker, mut operator) = world().await;
    let node = Node::register(&bench, 1).await;
    let key = node.unlocks(&broker).await;
    broker.lose_everything().unwrap();
    // A round takes about twenty requests: with many more faults, most rounds fail, and the growing waits
    // take minutes.
    broker.set_faults(30);
    // Normally its Deployment notifies the operator of a new pod; here a change does.
    let other = Node::register(&bench, 2).await;
    other.unlocks(&broker).await;
    assert_eq!(node.unlocks(&broker).await, key);
    broker.set_faults(0);
    // A round that failed may still be in progress, with the conditions of the previous round: what is
    // published from here on completes a round without faults.
    let after = Node::register(&bench, 4).await;
    after.unlocks(&broker).await;
    // After a restart, the operator sends no key that is already there, once it has read what is.
    let registry =
        KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, Arc::new(SystemClock));
    eventually("the operator has noted what it sent", async || {
        Ok(registry.unpublished().await? == 0 && registry.lagging().await?.is_none())
    })
    .await
    .unwrap();
    operator.kill();
    let _ = broker.take_sent();
    let _operator = bench.start_program("one", &["--trustee-url", broker.url()]).unwrap();
    let third = Node::register(&bench, 3).await;
    third.unlocks(&broker).await;
    let sent = broker.take_sent();
    let path = ResourcePath::luks_root(&third.id).to_string();
    assert_eq!(sent.keys.keys().collect::<Vec<_>>(), [&path]);
    assert_eq!(node.unlocks(&broker).await, key);
}
