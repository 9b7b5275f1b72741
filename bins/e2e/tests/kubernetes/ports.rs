//! The registries over a real API server honor the contracts of every implementation.

use std::sync::Arc;

use kube::Client;
use kube::api::ListParams;
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::port::{AttemptLog as _, Clock as _, MachineRegistry, UnclaimedLimit};
use tec_core::testing;
use tec_core::testing::sample;
use tec_e2e::kube::ControlPlane;
use tec_k8s::api::AttestationRecord;
use tec_k8s::client::{AttemptRecords, KubeRegistry};
use tec_support::SystemClock;

struct Suite {
    plane: ControlPlane,
    client: Client,
}

impl Suite {
    async fn start() -> Self {
        let plane = ControlPlane::start().await.unwrap();
        plane.install_resources().await.unwrap();
        let client = plane.admin().unwrap();
        Self { plane, client }
    }

    /// Registries in their own namespace.
    async fn registry(&self) -> KubeRegistry {
        let namespace = self.plane.namespace("ports").await.unwrap();
        KubeRegistry::new(self.client.clone(), namespace, Arc::new(SystemClock))
    }
}

/// Registries that contain four machines.
async fn with_machines(suite: &Suite) -> KubeRegistry {
    let registry = suite.registry().await;
    for number in 1..=4 {
        let id = sample::machine_id(number);
        let machine = Machine::unclaimed(id, RegisteredBy::Admin, SystemClock.now());
        let machines: &dyn MachineRegistry = &registry;
        machines.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    }
    registry
}

/// An attempt log for existing machines.
async fn records(suite: &Suite) -> AttemptRecords {
    AttemptRecords::new(with_machines(suite).await)
}

#[tokio::test]
async fn attempts_over_an_api_server_conform() {
    let suite = Suite::start().await;
    testing::attempt_log(async || records(&suite).await).await;
}

#[tokio::test]
async fn attempts_of_a_machine_that_is_not_there_make_no_object() {
    let suite = Suite::start().await;
    let (records, registry) = (records(&suite).await, suite.registry().await);
    for number in 100..110 {
        records.record(&sample::attempt(number, Some(number))).await.unwrap();
    }
    let found = records.find(&sample::attempt_id(109)).await.unwrap();
    assert!(found.is_some(), "it is kept with those of strangers");
    let objects = registry.objects::<AttestationRecord>();
    assert_eq!(objects.list(&ListParams::default()).await.unwrap().items.len(), 0);
}

#[tokio::test]
async fn the_registries_over_an_api_server_conform() {
    let suite = Suite::start().await;
    let make = async || suite.registry().await;
    testing::machine_registry(make).await;
    testing::ak_registry(make).await;
    testing::image_registry(make).await;
    testing::clock_log(make).await;
    testing::platform_log(async || with_machines(&suite).await).await;
    testing::secret_store(async || with_machines(&suite).await).await;
    testing::trust_anchor(make).await;
}
