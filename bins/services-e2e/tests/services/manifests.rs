//! The chart, as an API server takes it.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::rbac::v1::Role;
use kube::Api;
use tec_e2e::packages::tool;
use tec_services_e2e::cluster::Cluster;
use tec_services_e2e::cluster::callers_rules;
use tec_services_e2e::cluster::controller_rules;

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_is_taken_and_its_controller_may_do_what_the_tests_let_it_do() {
    let cluster = Cluster::shared().await.unwrap();
    let logs = cluster.plane.logs();
    let namespace = cluster.plane.namespace("chart").await.unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../services-bootstrap/deploy/helm/tec-services");
    let apps = cluster.plane.namespace("chart-apps").await.unwrap();
    let mut helm = Command::new(tool("bin/helm").unwrap());
    helm.args(["install", "services", "--namespace", &namespace])
        .args(["--set", &format!("componentNamespaces={{{apps}}}")])
        .arg(chart)
        .env("KUBECONFIG", cluster.plane.admin_kubeconfig().unwrap());
    logs.must(&mut helm).unwrap();

    let admin = cluster.plane.admin().unwrap();
    let roles: Api<Role> = Api::namespaced(admin.clone(), &namespace);
    let role = roles.get("services-bootstrap").await.unwrap();
    assert_eq!(role.rules, Some(controller_rules()));
    let roles: Api<Role> = Api::namespaced(admin.clone(), &apps);
    let role = format!("{namespace}-services-bootstrap");
    let role = roles.get(&role).await.unwrap();
    assert_eq!(role.rules, Some(callers_rules()));
    let sets: Api<StatefulSet> = Api::namespaced(admin, &namespace);
    for (name, containers) in [("vault", 2), ("nats", 2), ("opensearch", 2)] {
        let pod = sets
            .get(name)
            .await
            .unwrap()
            .spec
            .unwrap()
            .template
            .spec
            .unwrap();
        assert_eq!(pod.containers.len(), containers);
        let volumes = serde_json::to_value(&pod.volumes).unwrap().to_string();
        assert!(
            volumes.contains(r#""audience":"tec-services""#),
            "{volumes}"
        );
    }
}
