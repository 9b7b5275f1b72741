//! The charts, installed by Helm on a real API server; the operator runs with what they grant.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams};
use kube::{Api, Resource, ResourceExt as _};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{ControlPlane, Guarded, eventually, start_operator};
use tec_e2e::packages::{SET_REGISTRY, directory, helm_at};
use tec_k8s::api::{Machine, TrustedExecutionCluster, TrustedExecutionClusterSpec};
use tec_support::SystemClock;

const NAMESPACE: &str = "tec-by-helm";
const ACCOUNT: &str = "trusted-cluster-operator";

struct Installed {
    plane: ControlPlane,
    admin: PathBuf,
}

impl Installed {
    async fn new() -> Self {
        let plane = ControlPlane::start().await.unwrap();
        let admin = plane.admin_kubeconfig().unwrap();
        let installed = Self { plane, admin };
        installed.helm(&["install", "tec-crds", &chart("tec-crds")]);
        let release = ["install", "tec", &chart("tec-operator"), "--create-namespace"];
        let image = "--set=images.operator=registry.example/operator:1";
        installed.helm(&[&release[..], &[image, SET_REGISTRY, "--namespace", NAMESPACE]].concat());
        installed
    }

    fn helm(&self, arguments: &[&str]) -> String {
        helm_at(&self.admin, arguments).unwrap()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.plane.admin().unwrap(), NAMESPACE)
    }

    /// The operator as a process with its account's token.
    async fn operator(&self) -> Guarded {
        let kubeconfig = self.plane.account_kubeconfig(NAMESPACE, ACCOUNT).await;
        start_operator(&self.plane, NAMESPACE, "one", &kubeconfig.unwrap()).unwrap()
    }

    async fn deployments(&self) -> BTreeSet<String> {
        let all = self.api::<Deployment>().list(&ListParams::default()).await;
        all.unwrap().iter().map(Deployment::name_any).collect()
    }
}

fn chart(name: &str) -> String {
    let path = directory().join("helm").join(name);
    path.to_str().unwrap().to_owned()
}

fn cluster() -> TrustedExecutionCluster {
    let mut spec = TrustedExecutionClusterSpec::default();
    spec.public_trustee_addr = Some("kbs.example.com:8080".to_owned());
    TrustedExecutionCluster::new("cluster", spec)
}

fn machine() -> Machine {
    let (id, now) = (sample::machine_id(1), SystemClock.now());
    Machine::from_core(&Known::unclaimed(id, RegisteredBy::Admin, now))
}

#[tokio::test]
async fn the_operator_of_the_chart_sets_a_cluster_up_with_the_rights_of_the_chart() {
    let installed = Installed::new().await;
    let deployment = installed.api::<Deployment>().get(ACCOUNT).await.unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.service_account_name.as_deref(), Some(ACCOUNT));
    assert_eq!(pod.containers[0].image.as_deref(), Some("registry.example/operator:1"));

    let operator = installed.operator().await;
    let clusters = installed.api::<TrustedExecutionCluster>();
    let post = PostParams::default();
    clusters.create(&post, &cluster()).await.unwrap();
    let servers = ["attestation-key-register", "register-server", "trustee-deployment"];
    let expected = BTreeSet::from([ACCOUNT].map(str::to_owned));
    let expected = &expected | &servers.map(str::to_owned).into();
    eventually("the Deployments are there", async || Ok(installed.deployments().await == expected))
        .await
        .unwrap();
    eventually("the cluster is installed", async || {
        let status = clusters.get("cluster").await?.status.unwrap_or_default();
        let mut conditions = status.conditions.iter();
        Ok(conditions.any(|c| c.type_ == "Installed" && c.status == "True"))
    })
    .await
    .unwrap();
    let machines = installed.api::<Machine>();
    machines.create(&post, &machine()).await.unwrap();
    let (secrets, id) = (installed.api::<Secret>(), sample::machine_id(1).to_string());
    eventually("the machine has a key", async || Ok(secrets.get_opt(&id).await?.is_some()))
        .await
        .unwrap();
    let log = operator.log().unwrap();
    assert!(!log.contains("forbidden"), "{log}");
}

#[tokio::test]
async fn machines_outlive_both_charts() {
    let installed = Installed::new().await;
    let machines = installed.api::<Machine>();
    let made = machines.create(&PostParams::default(), &machine()).await;
    let name = made.unwrap().name_any();
    installed.helm(&["uninstall", "tec", "--namespace", NAMESPACE]);
    let told = installed.helm(&["uninstall", "tec-crds"]);
    assert!(told.contains("kept"), "{told}");
    assert!(machines.get_opt(&name).await.unwrap().is_some());
    assert!(installed.deployments().await.is_empty());
}

#[tokio::test]
async fn an_upgrade_of_the_chart_changes_the_image_and_a_rollback_brings_it_back() {
    let installed = Installed::new().await;
    let image = async || {
        let deployment = installed.api::<Deployment>().get(ACCOUNT).await.unwrap();
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        pod.containers[0].image.clone().unwrap()
    };
    let upgrade = ["upgrade", "tec", &chart("tec-operator"), "--namespace", NAMESPACE];
    let newer = [SET_REGISTRY, "--set=images.operator=registry.example/operator:2"];
    installed.helm(&[&upgrade[..], &newer].concat());
    assert_eq!(image().await, "registry.example/operator:2");
    installed.helm(&["rollback", "tec", "1", "--namespace", NAMESPACE]);
    assert_eq!(image().await, "registry.example/operator:1");
}
