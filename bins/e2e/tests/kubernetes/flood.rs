//! Strangers register machines with software keys at the servers in front of an API server: what they get is
//! bounded, the key of a known node is unaffected, and audit lines are still written.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tec_core::port::{AuditAction, AuditEvent, AuditSink as _, Clock as _};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Server, eventually, plain_cluster};
use tec_e2e::{load, wire};
use tec_k8s::api::{AttestationKey, Machine, TrustedExecutionCluster};
use tec_k8s::client::KubeRegistry;
use tec_k8s::render::Component;
use tec_support::SystemClock;

/// Default number of strangers; `TEC_FLOOD` overrides it.
const STRANGERS: u64 = 300;
/// How many machines the cluster admits.
const CLAIMS: u64 = 40;
const UNCLAIMED: u64 = 60;
/// Concurrent strangers.
const AT_ONCE: u64 = 8;

async fn stranger(client: &reqwest::Client, servers: &[Server; 2], key: u64) -> String {
    let [register, keys] = servers;
    let url = format!("http://{}/ignition-clevis-pin-trustee", register.address);
    let reply = wire::get_with(client, &url).await.unwrap();
    if reply.status != 200 {
        return reply.code();
    }
    let machine = load::machine_of(&reply.body).unwrap();
    let key = sample::public_key(key).to_pem();
    let body = json!({"public_key": key, "uuid": machine.to_string()});
    let url = format!("http://{}/register-ak", keys.address);
    let reply = wire::put_with(client, &url, &body).await.unwrap();
    match reply.status {
        201 => "kept".to_owned(),
        _ => reply.code(),
    }
}

async fn flood(servers: &[Server; 2], strangers: u64) -> BTreeMap<String, u64> {
    let client = wire::client("").unwrap();
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for first in (0..strangers).step_by(usize::try_from(AT_ONCE).unwrap()) {
        let some = first..strangers.min(first + AT_ONCE);
        let some = some.map(|key| stranger(&client, servers, 1_000 + key));
        for what in futures::future::join_all(some).await {
            *told.entry(what).or_default() += 1;
        }
    }
    told
}

async fn limit(bench: &Bench) {
    let clusters: Api<TrustedExecutionCluster> = bench.objects().unwrap();
    let patch = json!({"spec": {
        "registration": {"mode": "Open", "maxUnclaimed": UNCLAIMED},
        "approval": {"maxClaimed": CLAIMS},
    }});
    let patch = Patch::Merge(patch);
    let params = PatchParams::default();
    clusters.patch("cluster", &params, &patch).await.unwrap();
}

async fn known_node(bench: &Bench) {
    let known = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": format!("machine-{}", sample::machine_id(1))},
        "spec": {"id": sample::machine_id(1).to_string()},
    });
    let machines: Api<Machine> = bench.objects().unwrap();
    let known = serde_json::from_value(known).unwrap();
    let created = machines.create(&PostParams::default(), &known).await;
    created.unwrap();
    let key = AttestationKey::from_core(&sample::ak(1, 1));
    bench.create(&key).await.unwrap();
    holds(bench).await;
}

/// The Trustee holds what the known node needs to unlock.
async fn holds(bench: &Bench) {
    let (id, key) = (sample::machine_id(1), sample::public_key(1).fingerprint());
    eventually("the key of the known node is published", async || {
        Ok(bench.trust.key(&id).is_some() && bench.trust.ak(&id) == Some(key))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_strangers_gets_no_more_machines_than_the_cluster_says() {
    let strangers = std::env::var_os("TEC_FLOOD")
        .map_or(STRANGERS, |text| text.to_str().unwrap().parse().unwrap());
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    limit(&bench).await;
    known_node(&bench).await;
    let start = async |component| {
        Server::start(&bench.plane, component, &bench.namespace, &[]).await.unwrap()
    };
    let servers =
        [start(Component::RegisterServer).await, start(Component::AttestationKeyRegister).await];
    eventually("machines can be registered", async || {
        let client = wire::client("")?;
        Ok(stranger(&client, &servers, 999).await == "kept")
    })
    .await
    .unwrap();
    let begin = tec_core::port::Clock::now(&SystemClock);
    let told = flood(&servers, strangers).await;
    let took = SystemClock.now().unix_seconds() - begin.unix_seconds();

    holds(&bench).await;
    let client = bench.admin().unwrap();
    let registry = KubeRegistry::new(client, &bench.namespace, std::sync::Arc::new(SystemClock));
    let line = AuditEvent::new(
        SystemClock.now(),
        AuditAction::KeyReleased,
        Some(sample::machine_id(1)),
        "after the flood",
    );
    registry.append(&line).await.unwrap();
    assert!(registry.audit_lines().await.unwrap().contains(&line));
    let machines: Api<Machine> = bench.objects().unwrap();
    let machines = machines.list(&ListParams::default()).await.unwrap().items;
    let claimed = |machine: &&Machine| {
        let bound = machine.bound_key();
        bound.is_some_and(|bound| bound.claimed_from.is_some())
    };
    let claimed = u64::try_from(machines.iter().filter(claimed).count()).unwrap();
    let all = u64::try_from(machines.len()).unwrap();
    // Includes keys that are bound while the watch lags behind.
    assert!((1..=CLAIMS + 2 * AT_ONCE).contains(&claimed), "{claimed}");
    assert!(all <= CLAIMS + UNCLAIMED + 2 * AT_ONCE, "{all}");
    assert!(told.contains_key("TEC-R430"), "{told:?}");
    println!("{strangers} strangers in {took} s: {told:?}, {claimed} of {all} machines claimed");
    bench.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_register_with_the_token_that_the_operator_makes_where_nothing_is_said() {
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    let secrets: Api<Secret> = bench.objects().unwrap();
    let mut token = None;
    eventually("the token is made", async || {
        let secret = secrets.get_opt("registration-token").await?;
        token = secret.and_then(|secret| secret.data?.remove("token"));
        Ok(token.is_some())
    })
    .await
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, &token.unwrap().0).unwrap();
    let flags = [std::ffi::OsStr::new("--token-file"), file.as_os_str()];
    let component = Component::RegisterServer;
    let server = Server::start(&bench.plane, component, &bench.namespace, &flags);
    let server = server.await.unwrap();
    let url = format!("http://{}/ignition-clevis-pin-trustee", server.address);
    eventually("the server asks for the token", async || {
        Ok(wire::get("", &url).await?.code() == "TEC-R401")
    })
    .await
    .unwrap();
    let bearer = format!("Bearer {}", std::fs::read_to_string(&file).unwrap());
    let request = wire::client("").unwrap().get(&url);
    let answer = request.header("authorization", bearer).send().await;
    assert_eq!(answer.unwrap().status(), 200);
    let machines: Api<Machine> = bench.objects().unwrap();
    let machines = machines.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(machines.len(), 1);
    bench.stop().await.unwrap();
}
