//! Permission to edit only the cluster object does not allow sending disk keys elsewhere.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Broker, Guarded, cluster, eventually, plain_cluster};
use tec_k8s::api::{Machine, TrustedExecutionCluster};
use tec_support::SystemClock;

/// A cluster with a machine, with its own Trustee, which receives data, and with a foreign Trustee.
struct World {
    bench: Bench,
    own: Broker,
    outside: Broker,
    _operator: Guarded,
}

impl World {
    async fn new(object: &TrustedExecutionCluster) -> Self {
        let bench = Bench::new().await.unwrap();
        let (own, outside) = (Broker::start(1).await, Broker::outside(2).await);
        let (own, outside) = (own.unwrap(), outside.unwrap());
        bench.create(&own.admin_secret()).await.unwrap();
        bench.create(object).await.unwrap();
        let operator = bench.start_program("one", &["--trustee-url", own.url()]);
        let world = Self { bench, own, outside, _operator: operator.unwrap() };
        world.machine(1).await;
        world
    }

    /// A machine whose key arrives at its own Trustee.
    async fn machine(&self, number: u64) {
        let (id, now) = (sample::machine_id(number), SystemClock.now());
        let machine = Machine::from_core(&Known::unclaimed(id, RegisteredBy::Admin, now));
        self.bench.create(&machine).await.unwrap();
        self.arrives(&self.own, number).await;
    }

    async fn arrives(&self, broker: &Broker, number: u64) {
        let id = sample::machine_id(number);
        eventually("the key arrives", async || Ok(broker.key(&id).await.is_some())).await.unwrap();
    }

    async fn spec(&self, spec: &Value) {
        let clusters = self.bench.objects::<TrustedExecutionCluster>().unwrap();
        let patch = Patch::Merge(json!({ "spec": spec }));
        let params = PatchParams::default();
        clusters.patch("cluster", &params, &patch).await.unwrap();
    }

    /// Names the foreign Trustee as a target, as an editor of cluster objects can.
    async fn name_target(&self, secret: &str) {
        let target = json!({
            "name": "outside", "url": self.outside.url(), "adminKeySecret": secret,
        });
        self.spec(&json!({"publish": {"targets": [target]}})).await;
    }

    async fn refuses(&self, why: &str) {
        self.tells(&["TEC-K403", why]).await;
    }

    async fn tells(&self, words: &[&str]) {
        let clusters = self.bench.objects::<TrustedExecutionCluster>().unwrap();
        let mut seen = String::new();
        let refused = eventually("the target is refused", async || {
            let status = clusters.get("cluster").await?.status.unwrap_or_default();
            let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
            seen = ready.map(|c| c.message.clone()).unwrap_or_default();
            Ok(words.iter().all(|word| seen.contains(word)))
        })
        .await;
        assert!(refused.is_ok(), "{seen}");
        assert_eq!(self.outside.paths().await, [], "nothing was sent there");
    }

    /// The foreign admin's key in a Secret that names an address.
    async fn secret(&self, name: &str, url: Option<&str>) {
        let mut secret: Secret = self.outside.admin_secret();
        secret.metadata.name = Some(name.to_owned());
        if let (Some(url), Some(data)) = (url, &mut secret.data) {
            let url = k8s_openapi::ByteString(url.as_bytes().to_vec());
            data.insert("url".to_owned(), url);
        }
        self.bench.create(&secret).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_no_secret_vouches_for_gets_no_key() {
    let world = World::new(&plain_cluster("cluster")).await;
    let url = world.outside.url().to_owned();
    world.secret("without", None).await;
    world.name_target("without").await;
    world.refuses("does not name").await;
    // The admin key of the cluster's own Trustee is not for others, either.
    world.name_target("trustee-auth").await;
    world.refuses("trustee-auth").await;
    world.secret("other", Some("https://elsewhere.example")).await;
    world.name_target("other").await;
    world.refuses("other").await;

    world.secret("named", Some(&url)).await;
    world.name_target("named").await;
    world.arrives(&world.outside, 1).await;
    world.machine(2).await;
    world.arrives(&world.outside, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_over_plain_http_is_refused_where_the_cluster_speaks_tls() {
    let world = World::new(&cluster("cluster")).await;
    world.secret("named", Some(world.outside.url())).await;
    world.name_target("named").await;
    world.refuses("https").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_refused_keeps_nothing_from_the_own_trustee() {
    // It exists before the operator starts, as after an upgrade or a restart.
    let target = json!({
        "name": "old", "url": "https://old.example", "adminKeySecret": "nowhere",
    });
    let mut cluster = plain_cluster("cluster");
    let publish = json!({"targets": [target]});
    cluster.spec.publish = Some(serde_json::from_value(publish).unwrap());
    let world = World::new(&cluster).await;
    world.machine(2).await;
    world.tells(&["nowhere"]).await;
}
