//! The program `operator` as a process, with the permissions that the packages grant.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use serde_json::json;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::api::{Machine, TrustedExecutionCluster};
use tec_support::SystemClock;

#[tokio::test]
async fn the_program_serves_machines_tells_what_is_wrong_and_survives_a_kill() {
    let bench = Bench::new().await.unwrap();
    let cluster = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "TrustedExecutionCluster",
        "metadata": {"name": "cluster"}, "spec": {},
    });
    let cluster: TrustedExecutionCluster = serde_json::from_value(cluster).unwrap();
    bench.create(&cluster).await.unwrap();
    let machine = |number| {
        let (id, now) = (sample::machine_id(number), SystemClock.now());
        Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, now))
    };
    let secrets = bench.objects::<Secret>().unwrap();
    let has_key = async |number| {
        let name = sample::machine_id(number).to_string();
        Ok(secrets.get_opt(&name).await?.is_some())
    };
    let mut program = bench.start_program("one", &[]).unwrap();
    bench.create(&machine(1)).await.unwrap();
    eventually("the first machine has a key", async || has_key(1).await).await.unwrap();
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    eventually("the Trustee that is not there is told of", async || {
        let status = clusters.get("cluster").await?.status.unwrap_or_default();
        let own = status.targets.iter().find(|target| target.name == "trustee");
        Ok(own.is_some_and(|own| !own.converged && own.message.is_some()))
    })
    .await
    .unwrap();
    let signer = secrets.get("trustee-token-signer").await.unwrap();
    let entries: Vec<_> = signer.data.unwrap().into_keys().collect();
    assert_eq!(entries, ["ca.crt", "tls.crt", "tls.key"]);
    let key = secrets.get(&sample::machine_id(1).to_string()).await.unwrap();
    program.kill();
    bench.create(&machine(2)).await.unwrap();
    let _second = bench.start_program("two", &[]).unwrap();
    eventually("the second machine has a key", async || has_key(2).await).await.unwrap();
    let again = secrets.get(&key.name_any()).await.unwrap();
    assert_eq!(again.resource_version(), key.resource_version());
}
