//! Quarantined and retired machines, their names, reports on their boots, and the pause.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::boot::BootState;
use tec_core::explain::Gate;
use tec_core::id::{ImageName, MachineId};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::{AttemptLog as _, MachineRegistry as _, UnclaimedLimit};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, eventually};
use tec_e2e::settings::own_program;
use tec_k8s::api::{AttestationKey, Machine, MachineStatus, PAUSED, TrustedExecutionCluster};
use tec_k8s::client::{AttemptRecords, KubeRegistry};
use tec_support::SystemClock;

const BROKER_SERVICE: &str = "kbs-service";

fn id(number: u64) -> MachineId {
    sample::machine_id(number)
}

async fn register(bench: &Bench, number: u64) -> Machine {
    let now = tec_core::port::Clock::now(&SystemClock);
    let known = Known::unclaimed(id(number), RegisteredBy::FirstBoot, now);
    bench.create(&Machine::from_core(&known)).await.unwrap()
}

async fn submit(bench: &Bench, number: u64) -> String {
    let key = AttestationKey::from_core(&sample::ak(number, number));
    bench.create(&key).await.unwrap().name_any()
}

async fn status(bench: &Bench, number: u64) -> MachineStatus {
    let machines = bench.objects::<Machine>().unwrap();
    machines.get(&Machine::name_of(&id(number))).await.unwrap().status.unwrap_or_default()
}

/// Waits until the condition `Ready` has this reason; returns its message.
async fn is_ready_for(bench: &Bench, number: u64, reason: &str) -> String {
    let mut message = String::new();
    let holds = async || {
        let conditions = status(bench, number).await.conditions;
        let ready = conditions.into_iter().find(|c| c.type_ == "Ready" && c.reason == reason);
        message = ready.as_ref().map(|ready| ready.message.clone()).unwrap_or_default();
        Ok(ready.is_some())
    };
    eventually(&format!("machine {number} is {reason}"), holds).await.unwrap();
    message
}

async fn is_served(bench: &Bench, number: u64) {
    eventually("the machine is served", async || {
        let bound = bench.trust.ak(&id(number)).is_some();
        Ok(bound && bench.trust.key(&id(number)).is_some())
    })
    .await
    .unwrap();
}

/// Runs `kubectl tec`.
pub(crate) async fn plugin(bench: &Bench, arguments: &[&str]) -> Output {
    let kubeconfig: PathBuf = bench.plane.admin_kubeconfig().unwrap();
    let mut plugin = Command::new(own_program("tec").unwrap());
    plugin.args(["--namespace", &bench.namespace, "--kubeconfig"]).arg(kubeconfig);
    plugin.args(["--output", "json"]).args(arguments);
    tokio::task::spawn_blocking(move || plugin.output()).await.unwrap().unwrap()
}

pub(crate) async fn done(bench: &Bench, arguments: &[&str]) -> Value {
    let output = plugin(bench, arguments).await;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn a_quarantined_machine_leaves_the_trustee_and_comes_back_with_its_key() {
    let mut bench = Bench::at_work().await.unwrap();
    register(&bench, 1).await;
    submit(&bench, 1).await;
    is_served(&bench, 1).await;
    let key = bench.trust.key(&id(1)).unwrap();
    done(&bench, &["machine", "name", &id(1).to_string(), "worker-1"]).await;

    let dry = done(&bench, &["machine", "quarantine", "worker-1", "--dry-run"]).await;
    assert_eq!(dry["dry_run"], true);
    is_ready_for(&bench, 1, "Attestable").await;
    let reason = ["machine", "quarantine", "worker-1", "--reason", "odd logins"];
    let said = done(&bench, &reason).await;
    assert_eq!(said["machines"][0], id(1).to_string());
    assert_eq!(is_ready_for(&bench, 1, "Quarantined").await, "odd logins");
    eventually("the Trustee lost it", async || {
        Ok(bench.trust.ak(&id(1)).is_none() && bench.trust.key(&id(1)).is_none())
    })
    .await
    .unwrap();
    let secrets = bench.objects::<k8s_openapi::api::core::v1::Secret>().unwrap();
    assert!(secrets.get_opt(&id(1).to_string()).await.unwrap().is_some(), "the key is kept");

    done(&bench, &["machine", "release", "worker-1"]).await;
    is_served(&bench, 1).await;
    assert_eq!(bench.trust.key(&id(1)).unwrap(), key, "no other key was made");
    is_ready_for(&bench, 1, "Attestable").await;

    done(&bench, &["machine", "retire", "worker-1", "--yes"]).await;
    is_ready_for(&bench, 1, "Retired").await;
    eventually("the Trustee lost it", async || Ok(bench.trust.key(&id(1)).is_none()))
        .await
        .unwrap();
    assert!(secrets.get_opt(&id(1).to_string()).await.unwrap().is_some(), "the key is kept");
    for verb in ["release", "quarantine"] {
        let refused = plugin(&bench, &["machine", verb, "worker-1"]).await;
        assert!(!refused.status.success(), "{verb} of a retired machine");
    }
    is_ready_for(&bench, 1, "Retired").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_quarantined_machine_binds_no_key_until_it_is_released() {
    let mut bench = Bench::at_work().await.unwrap();
    register(&bench, 1).await;
    done(&bench, &["machine", "quarantine", &id(1).to_string()]).await;
    is_ready_for(&bench, 1, "Quarantined").await;
    let key = submit(&bench, 1).await;
    let keys = bench.objects::<AttestationKey>().unwrap();
    let is_said = async |reason: &str| {
        let status = keys.get(&key).await?.status.unwrap_or_default();
        anyhow::Ok(status.conditions.iter().any(|condition| condition.reason == reason))
    };
    eventually("the key waits", async || is_said("Waiting").await).await.unwrap();
    assert!(status(&bench, 1).await.attestation_key.is_none());
    done(&bench, &["machine", "release", &id(1).to_string()]).await;
    is_served(&bench, 1).await;
    bench.stop().await.unwrap();
}

/// The Trustee may hold the only copy: a quarantine can be lifted, so it must not destroy the key.
#[tokio::test]
async fn a_quarantine_does_not_take_the_last_copy_of_a_key_away() {
    let mut bench = Bench::at_work().await.unwrap();
    register(&bench, 1).await;
    submit(&bench, 1).await;
    is_served(&bench, 1).await;
    let key = bench.trust.key(&id(1)).unwrap();
    let secrets = bench.objects::<k8s_openapi::api::core::v1::Secret>().unwrap();
    secrets.delete(&id(1).to_string(), &DeleteParams::default()).await.unwrap();
    is_ready_for(&bench, 1, "KeyLost").await;
    done(&bench, &["machine", "quarantine", &id(1).to_string()]).await;
    is_ready_for(&bench, 1, "Quarantined").await;
    eventually("nobody gets it", async || Ok(bench.trust.ak(&id(1)).is_none())).await.unwrap();
    assert_eq!(bench.trust.key(&id(1)).unwrap(), key, "the Trustee keeps it");
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_name_finds_one_machine_and_none_where_two_have_it() {
    let mut bench = Bench::at_work().await.unwrap();
    for number in [1, 2] {
        register(&bench, number).await;
    }
    done(&bench, &["machine", "name", &id(1).to_string(), "worker-1"]).await;
    let shown = done(&bench, &["machine", "show", "worker-1"]).await;
    assert_eq!(shown["machine"]["id"], id(1).to_string());
    let (one, two) = (id(1).to_string(), id(2).to_string());
    for taken in ["worker-1", one.as_str()] {
        let refused = plugin(&bench, &["machine", "name", &two, taken]).await;
        assert!(!refused.status.success(), "{taken} leads to another machine");
    }
    // As the join service registers a member's machine.
    let admin = bench.admin().unwrap();
    let registry = KubeRegistry::new(admin, &bench.namespace, Arc::new(SystemClock));
    let now = tec_core::port::Clock::now(&SystemClock);
    let member = Known::unclaimed(id(3), RegisteredBy::JoinService, now);
    let named = registry.with_node_name("worker-3");
    named.create(&member, UnclaimedLimit::Unlimited).await.unwrap();
    let shown = done(&bench, &["machine", "show", "worker-3"]).await;
    assert_eq!(shown["machine"]["id"], id(3).to_string());
    // A user who may write objects can do it anyway.
    let machines = bench.objects::<Machine>().unwrap();
    let twin = Patch::Merge(json!({"spec": {"nodeName": "worker-1"}}));
    let params = PatchParams::default();
    machines.patch(&Machine::name_of(&id(2)), &params, &twin).await.unwrap();
    let refused = plugin(&bench, &["machine", "quarantine", "worker-1"]).await;
    assert!(!refused.status.success());
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains(&one) && told.contains(&two), "{told}");
    bench.stop().await.unwrap();
}

/// Records an attempt, as the guard does.
async fn attempted(bench: &Bench, number: u64, second: u32, outcome: Value) {
    let registry =
        KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, Arc::new(SystemClock));
    let mut attempt = sample::attempt_in_boot(second.into(), second);
    attempt.machine = Some(id(number));
    attempt.at = at(second).parse().unwrap();
    let images = outcome["image"].as_str().unwrap_or_default().split(", ");
    let images = images.filter_map(|image| image.parse().ok()).collect::<Vec<ImageName>>();
    attempt.booted = (!images.is_empty()).then(|| BootState::whole(images, []));
    match outcome["code"].as_str() {
        Some(code) => attempt.ladder.code = Some(code.parse().unwrap()),
        None => attempt.ladder.pass(Gate::Key, "released"),
    }
    AttemptRecords::new(registry).record(&attempt).await.unwrap();
}

fn at(second: u32) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

#[tokio::test]
async fn the_image_of_the_last_good_boot_stays_on_the_machine_when_another_boot_is_refused() {
    let mut bench = Bench::at_work().await.unwrap();
    register(&bench, 1).await;
    let says = async |image: &str, code: Option<&str>, second: u32| {
        eventually(&format!("{image} {code:?}"), async || {
            let status = status(&bench, 1).await;
            let last = status.last_attestation.unwrap_or_default();
            let is_it = last.at == at(second) && last.code.as_deref() == code;
            // The time of the refused boots differs from that of the last good one.
            let second = if code.is_none() { second } else { 1 };
            let is_boot = status.last_boot == Some(at(second));
            Ok(is_it && is_boot && status.image.as_deref() == Some(image))
        })
        .await
        .unwrap();
    };
    attempted(&bench, 1, 1, json!({"image": "44.1"})).await;
    says("44.1", None, 1).await;
    attempted(&bench, 1, 2, json!({"code": "TEC-A412"})).await;
    says("44.1", Some("TEC-A412"), 2).await;
    // A machine refused for a reason other than its boot still booted something.
    attempted(&bench, 1, 3, json!({"code": "TEC-A408", "image": "44.2"})).await;
    says("44.1", Some("TEC-A408"), 3).await;
    attempted(&bench, 1, 4, json!({"image": "44.1, 44.2"})).await;
    says("44.1, 44.2", None, 4).await;
    attempted(&bench, 1, 6, json!({"image": "44.2"})).await;
    says("44.2", None, 6).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn nothing_is_changed_while_the_cluster_is_paused_and_all_of_it_afterwards() {
    let mut bench = Bench::at_work().await.unwrap();
    register(&bench, 1).await;
    submit(&bench, 1).await;
    is_served(&bench, 1).await;
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let pause = async |value: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {PAUSED: value}}}));
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
        let (wanted, what) = match value {
            Some(_) => ("True", "it is paused"),
            None => ("False", "it goes on"),
        };
        eventually(what, async || {
            let status = clusters.get("cluster").await?.status.unwrap_or_default();
            let mut paused = status.conditions.iter().filter(|c| c.type_ == "Paused");
            Ok(paused.any(|condition| condition.status == wanted))
        })
        .await
        .unwrap();
    };
    pause(Some("true")).await;
    let services = bench.objects::<Service>().unwrap();
    services.delete(BROKER_SERVICE, &DeleteParams::default()).await.unwrap();
    done(&bench, &["machine", "quarantine", &id(1).to_string()]).await;
    register(&bench, 2).await;
    // A change to the cluster object itself is processed after all of that.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"test": "later"}}}));
    clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    let quiet = tokio::time::timeout(std::time::Duration::from_secs(2), async {
        while services.get_opt(BROKER_SERVICE).await.unwrap().is_none()
            && status(&bench, 2).await.conditions.is_empty()
            && bench.trust.key(&id(1)).is_some()
        {
            tokio::task::yield_now().await;
        }
    });
    assert!(quiet.await.is_err(), "something was changed");
    pause(None).await;
    eventually("the Service is back", async || {
        Ok(services.get_opt(BROKER_SERVICE).await?.is_some())
    })
    .await
    .unwrap();
    is_ready_for(&bench, 1, "Quarantined").await;
    eventually("the Trustee follows", async || {
        Ok(bench.trust.key(&id(1)).is_none() && bench.trust.key(&id(2)).is_some())
    })
    .await
    .unwrap();
    bench.stop().await.unwrap();
}

/// Annotates a machine, and waits until the operator confirms it.
async fn pause_machine(bench: &Bench, number: u64, value: Option<&str>) {
    let machines = bench.objects::<Machine>().unwrap();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {PAUSED: value}}}));
    let name = Machine::name_of(&id(number));
    machines.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    let wanted = if value.is_some() { "True" } else { "False" };
    eventually(&format!("machine {number} is paused: {wanted}"), async || {
        let conditions = status(bench, number).await.conditions;
        Ok(conditions.iter().any(|c| c.type_ == "Paused" && c.status == wanted))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_machine_that_is_paused_stays_as_it_is_and_is_taken_out_of_service_all_the_same() {
    let mut bench = Bench::at_work().await.unwrap();
    register(&bench, 1).await;
    submit(&bench, 1).await;
    is_served(&bench, 1).await;
    let key = bench.trust.key(&id(1)).unwrap();
    pause_machine(&bench, 1, Some("true")).await;

    // A new one gets no key and none is bound, while another one is served.
    let now = tec_core::port::Clock::now(&SystemClock);
    let mut new = Machine::from_core(&Known::unclaimed(id(2), RegisteredBy::FirstBoot, now));
    new.annotations_mut().insert(PAUSED.to_owned(), "true".to_owned());
    bench.create(&new).await.unwrap();
    submit(&bench, 2).await;
    register(&bench, 3).await;
    submit(&bench, 3).await;
    is_served(&bench, 3).await;
    let untouched = status(&bench, 2).await;
    assert!(untouched.key_secret.is_none() && untouched.attestation_key.is_none());

    // An operator that has not seen it yet removes nothing, and continues with the others.
    bench.stop().await.unwrap();
    bench.trust.restart_operator();
    bench.start("two").unwrap();
    register(&bench, 4).await;
    submit(&bench, 4).await;
    is_served(&bench, 4).await;
    assert_eq!(bench.trust.key(&id(1)), Some(key.clone()));
    assert!(bench.trust.ak(&id(1)).is_some());

    // Revocations still take effect.
    pause_machine(&bench, 4, Some("true")).await;
    let machines = bench.objects::<Machine>().unwrap();
    let params = kube::api::DeleteParams::default();
    machines.delete(&Machine::name_of(&id(4)), &params).await.unwrap();
    eventually("nobody gets its key", async || Ok(bench.trust.ak(&id(4)).is_none())).await.unwrap();
    assert!(bench.trust.key(&id(4)).is_some());
    done(&bench, &["machine", "quarantine", &id(1).to_string()]).await;
    eventually("nobody gets its key", async || Ok(bench.trust.ak(&id(1)).is_none())).await.unwrap();
    assert_eq!(bench.trust.key(&id(1)), Some(key));
    pause_machine(&bench, 2, None).await;
    is_served(&bench, 2).await;
    pause_machine(&bench, 1, None).await;
    is_ready_for(&bench, 1, "Quarantined").await;
    bench.stop().await.unwrap();
}
