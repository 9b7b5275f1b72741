//! Failures below the operator: the API server, a watch, the connection, leadership.

use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tec_core::id::MachineId;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Link, cluster, eventually};
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, Machine};
use tec_support::SystemClock;

fn id(number: u64) -> MachineId {
    sample::machine_id(number)
}

fn machine(number: u64) -> Machine {
    let now = SystemClock.now();
    Machine::from_core(&Known::unclaimed(id(number), RegisteredBy::FirstBoot, now))
}

async fn key(bench: &Bench, number: u64) -> Option<Vec<u8>> {
    let secrets = bench.objects::<Secret>().unwrap();
    let secret = secrets.get_opt(&id(number).to_string()).await.unwrap()?;
    Some(secret.data?.remove("root")?.0)
}

/// Each machine has one key, the one held by the Trustee.
async fn are_published(bench: &Bench, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let what = format!("the key of machine {number} is published");
        eventually(&what, async || Ok(bench.trust.key(&id(number)).is_some())).await.unwrap();
        assert_eq!(bench.trust.key(&id(number)), key(bench, number).await);
    }
}

#[tokio::test]
async fn nothing_is_lost_when_the_api_server_is_killed_and_comes_back() {
    let mut bench = Bench::alone().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    bench.start("one").unwrap();
    for number in 1..=30 {
        bench.create(&machine(number)).await.unwrap();
    }
    are_published(&bench, [1]).await;
    bench.plane_mut().unwrap().stop_api_server();
    let before: Vec<_> = (1..=30).map(|number| bench.trust.key(&id(number))).collect();
    bench.plane_mut().unwrap().start_api_server().await.unwrap();
    for number in 31..=40 {
        bench.create(&machine(number)).await.unwrap();
    }
    // A replica that could not renew its lease exits, and is restarted.
    let mut restarts = 0;
    eventually("all of them are published", async || {
        if bench.take_ended() {
            restarts += 1;
            bench.trust.restart_operator();
            bench.start(&format!("again-{restarts}"))?;
        }
        Ok((1..=40).all(|number| bench.trust.key(&id(number)).is_some()))
    })
    .await
    .unwrap();
    are_published(&bench, 1..=40).await;
    for (number, key) in (1..).zip(before) {
        assert!(key.is_none_or(|key| bench.trust.key(&id(number)) == Some(key)));
    }
}

#[tokio::test]
async fn what_happened_while_the_way_to_the_api_server_was_cut_is_noticed() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let link = Link::new(bench.client().unwrap()).await.unwrap();
    bench.start_over("one", link.client().unwrap()).unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    for number in 1..=2 {
        let mut spec = ApprovedImageSpec::default();
        spec.image = format!("registry.example/os@sha256:{number:064x}");
        bench.labels.set(&spec.image, sample::image(number).expected);
        let name = format!("image-{number}");
        bench.create(&ApprovedImage::new(&name, spec)).await.unwrap();
    }
    let all = ["image-1", "image-2"];
    eventually("both may boot", async || Ok(bench.trust.images() == all)).await.unwrap();
    link.set_cut(true);
    // Afterwards, only its absence from a list reveals this.
    images.delete("image-1", &DeleteParams::default()).await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    link.set_cut(false);
    eventually("the image that is gone may not boot", async || {
        Ok(bench.trust.images() == ["image-2"])
    })
    .await
    .unwrap();
    are_published(&bench, [1]).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn watches_that_are_too_old_begin_anew_and_nothing_is_written_twice() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let link = Link::new(bench.client().unwrap()).await.unwrap();
    bench.start_over("one", link.client().unwrap()).unwrap();
    for number in 1..=5 {
        bench.create(&machine(number)).await.unwrap();
    }
    are_published(&bench, 1..=5).await;
    for round in 0..3 {
        link.expire_watches();
        bench.create(&machine(10 + round)).await.unwrap();
        are_published(&bench, [10 + round]).await;
    }
    let traffic = link.take_traffic();
    // Eight keys, two files for the Trustee, a registration token, a CA and three certificates issued by it.
    assert_eq!(traffic.requests.get("POST secrets"), Some(&15), "{traffic:?}");
    for request in ["LIST secrets", "WATCH secrets"] {
        assert_eq!(traffic.requests.get(request), None, "only metadata: {traffic:?}");
    }
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn two_leaders_for_a_moment_make_one_key_for_each_machine() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&machine(100)).await.unwrap();
    are_published(&bench, [100]).await;
    let waiting = bench.start("two").unwrap();
    eventually("the other waits", async || Ok(waiting.is_ready())).await.unwrap();
    // The lease is given away; the first replica only notices when it renews.
    let leases = bench.objects::<Lease>().unwrap();
    let stolen = Patch::Merge(json!({"spec": {"holderIdentity": "two"}}));
    let params = PatchParams::default();
    leases.patch("trusted-cluster-operator", &params, &stolen).await.unwrap();
    for number in 1..=40 {
        bench.create(&machine(number)).await.unwrap();
    }
    are_published(&bench, 1..=40).await;
    eventually("the first ends", async || Ok(bench.take_ended())).await.unwrap();
    bench.create(&machine(41)).await.unwrap();
    are_published(&bench, 1..=41).await;
    let secrets = bench.objects::<Secret>().unwrap();
    let all = secrets.list(&kube::api::ListParams::default()).await.unwrap();
    let keys = all.items.iter().filter(|secret| secret.immutable == Some(true));
    assert_eq!(keys.count(), 42, "one for each machine");
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_disk_key_that_is_lost_is_never_made_again_nor_taken_from_the_trustee() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    bench.create(&machine(2)).await.unwrap();
    are_published(&bench, 1..=2).await;
    let held = bench.trust.key(&id(1));
    let secrets = bench.objects::<Secret>().unwrap();
    let name = id(1).to_string();
    let backup = secrets.get(&name).await.unwrap();
    // Also after a restart, when the operator never saw it.
    bench.stop().await.unwrap();
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    bench.trust.restart_operator();
    bench.start("two").unwrap();
    is_ready(&bench, 1, "False KeyLost").await;
    let rounds = bench.trust.rounds();
    bench.create(&machine(3)).await.unwrap();
    are_published(&bench, [2, 3]).await;
    assert!(bench.trust.rounds() > rounds, "it was published since");
    assert_eq!(bench.trust.key(&id(1)), held, "the Trustee keeps it");
    assert_eq!(key(&bench, 1).await, None, "no other one is made");
    // It is restored, first wrongly, then as the condition says.
    let entry = ("root".to_owned(), ByteString(b"no disk key".to_vec()));
    let wrong = Some([entry].into());
    for (content, verdict) in [(wrong, "False Malformed"), (backup.data, "False NoAttestationKey")]
    {
        let _ = secrets.delete(&name, &DeleteParams::default()).await;
        let mut restored = Secret::default();
        restored.metadata.name = Some(name.clone());
        restored.data = content;
        bench.create(&restored).await.unwrap();
        is_ready(&bench, 1, verdict).await;
        assert_eq!(bench.trust.key(&id(1)), held);
    }
    let machines = bench.objects::<Machine>().unwrap();
    let object = machine(1).metadata.name.unwrap();
    machines.delete(&object, &DeleteParams::default()).await.unwrap();
    eventually("who is removed loses it", async || Ok(bench.trust.key(&id(1)).is_none()))
        .await
        .unwrap();
    bench.stop().await.unwrap();
}

/// Waits for status and reason of the condition `Ready` of a machine.
async fn is_ready(bench: &Bench, number: u64, wanted: &str) {
    let machines = bench.objects::<Machine>().unwrap();
    let name = machine(number).metadata.name.unwrap();
    eventually(&format!("machine {number} is {wanted}"), async || {
        let status = machines.get(&name).await?.status.unwrap_or_default();
        let mut ready = status.conditions.iter().filter(|c| c.type_ == "Ready");
        Ok(ready.any(|c| {
            let says_what_to_do = !wanted.ends_with("KeyLost") || c.message.contains("restore it");
            format!("{} {}", c.status, c.reason) == wanted && says_what_to_do
        }))
    })
    .await
    .unwrap();
}
