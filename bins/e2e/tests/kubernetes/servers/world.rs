//! A namespace with the servers.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{ListParams, PostParams};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tec_core::testing::sample;
use tec_e2e::kube::{ControlPlane, Server};
use tec_k8s::api::{AttestationKey, Machine, TrustedExecutionCluster};
use tec_k8s::render::Component;
use tokio::time::Instant;

/// Deadline for changes by the operator or the kubelet to take effect.
pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const CONFIG: &str = "/ignition-clevis-pin-trustee";

pub(crate) struct World {
    plane: Arc<ControlPlane>,
    namespace: String,
    pub(crate) http: reqwest::Client,
}

impl World {
    pub(crate) async fn new(word: &str) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        Self {
            namespace: plane.namespace(word).await.unwrap(),
            plane,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.plane.admin().unwrap(), &self.namespace)
    }

    /// A cluster whose servers speak plain HTTP unless they get a certificate.
    pub(crate) async fn cluster(&self, name: &str, spec: &Value) -> TrustedExecutionCluster {
        let mut spec = spec.clone();
        spec["dangerousPlainHttp"] = true.into();
        let mut object = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "TrustedExecutionCluster",
            "metadata": { "name": name },
            "spec": spec,
        });
        // Tokens are covered by a separate test.
        let registration = &mut object["spec"]["registration"];
        if registration["mode"].is_null() {
            registration["mode"] = json!("Open");
        }
        let object = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) async fn server(&self, component: Component, flags: &[&OsStr]) -> Server {
        Server::start(&self.plane, component, &self.namespace, flags).await.unwrap()
    }

    pub(crate) async fn machines(&self) -> Vec<Machine> {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn keys(&self) -> Vec<AttestationKey> {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn get(&self, server: &Server, path: &str) -> (StatusCode, Value) {
        let answer = self.http.get(format!("http://{}{path}", server.address));
        let answer = answer.send().await.unwrap();
        let status = answer.status();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default())
    }

    /// Sends requests until the status is as expected.
    pub(crate) async fn until(&self, server: &Server, expected: StatusCode) -> Value {
        let end = Instant::now() + SOON;
        loop {
            let (status, body) = self.get(server, CONFIG).await;
            if status == expected {
                return body;
            }
            assert!(Instant::now() < end, "{status} {body}: {}", server.log().unwrap());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn metrics(&self, server: &Server) -> String {
        let metrics = self.http.get(format!("http://{}/metrics", server.status));
        metrics.send().await.unwrap().text().await.unwrap()
    }

    pub(crate) async fn put(&self, server: &Server, body: &Value) -> (StatusCode, Value) {
        self.put_at(server, "/register-ak", body).await
    }

    pub(crate) async fn put_at(
        &self,
        server: &Server,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let answer = self.http.put(format!("http://{}{path}", server.address));
        let answer = answer.header("content-type", "application/json");
        let answer = answer.body(body.to_string()).send().await.unwrap();
        let status = answer.status();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
    }

    /// Sends registrations until the status is as expected.
    pub(crate) async fn until_put(
        &self,
        server: &Server,
        body: &Value,
        expected: StatusCode,
    ) -> Value {
        let end = Instant::now() + SOON;
        loop {
            let (status, answer) = self.put(server, body).await;
            if status == expected {
                return answer;
            }
            assert!(Instant::now() < end, "{status} {answer}: {}", server.log().unwrap());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn machine(&self, number: u64) -> String {
        let id = sample::machine_id(number).to_string();
        let object = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": format!("machine-{id}") }, "spec": { "id": id },
        });
        let object: Machine = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap();
        id
    }
}

pub(crate) fn assert_has_line(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line} in {text}");
}

/// The pin's config, which is text within the Ignition config.
pub(crate) fn pin(config: &Value) -> Value {
    let clevis = &config["storage"]["luks"][0]["clevis"]["custom"];
    assert_eq!((&clevis["pin"], &clevis["needsNetwork"]), (&json!("trustee"), &json!(true)));
    serde_json::from_str(clevis["config"].as_str().unwrap()).unwrap()
}

pub(crate) fn id_of(pin: &Value) -> String {
    let path = pin["path"].as_str().unwrap();
    let id = path.strip_prefix("default/").and_then(|rest| rest.strip_suffix("/root"));
    id.unwrap().to_owned()
}
