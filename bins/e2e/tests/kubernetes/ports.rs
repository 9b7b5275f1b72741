//! The registries over a real API server keep the contracts that every implementation keeps.

use std::sync::Arc;

use kube::Client;
use tec_core::testing;
use tec_e2e::kube::ControlPlane;
use tec_k8s::client::KubeRegistry;
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

    /// Registries in a namespace of their own.
    async fn registry(&self) -> KubeRegistry {
        let namespace = self.plane.namespace("ports").await.unwrap();
        KubeRegistry::new(self.client.clone(), namespace, Arc::new(SystemClock))
    }
}

#[tokio::test]
async fn the_registries_over_an_api_server_conform() {
    let suite = Suite::start().await;
    let make = async || suite.registry().await;
    testing::machine_registry(make).await;
    testing::ak_registry(make).await;
    testing::image_registry(make).await;
    testing::clock_log(make).await;
    testing::secret_store(make).await;
    testing::trust_anchor(make).await;
}
