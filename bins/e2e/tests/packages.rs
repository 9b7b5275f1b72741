//! The operator's packages: valid, and identical whichever way they are installed.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tec_e2e::packages::{directory, documents, helm, kustomize, whole_numbers};
use tec_k8s::render::{Component, DEFAULT_NAMESPACE};

/// Third-party kinds without a type here; their operators check them.
const FOREIGN: [&str; 2] = ["PrometheusRule", "ServiceMonitor"];

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or("")
}

/// Documents by kind and name.
fn by_name(documents: Vec<Value>) -> BTreeMap<String, Value> {
    documents
        .into_iter()
        .map(|document| {
            let name = text(&document, "/metadata/name");
            (format!("{} {name}", text(&document, "/kind")), document)
        })
        .collect()
}

/// Refuses fields unknown to the type, which would be lost in the conversion.
fn round_trip<K: Serialize + DeserializeOwned>(document: &Value) -> Value {
    let object: K = serde_json::from_value(document.clone()).unwrap();
    whole_numbers(serde_json::to_value(object).unwrap())
}

fn assert_valid(document: &Value) {
    let kind = text(document, "/kind");
    let through_the_type = match kind {
        "ClusterRole" => round_trip::<ClusterRole>(document),
        "ClusterRoleBinding" => round_trip::<ClusterRoleBinding>(document),
        "ConfigMap" => round_trip::<ConfigMap>(document),
        "CustomResourceDefinition" => round_trip::<CustomResourceDefinition>(document),
        "Deployment" => round_trip::<Deployment>(document),
        "Namespace" => round_trip::<Namespace>(document),
        "NetworkPolicy" => round_trip::<NetworkPolicy>(document),
        "PodDisruptionBudget" => round_trip::<PodDisruptionBudget>(document),
        "Role" => round_trip::<Role>(document),
        "RoleBinding" => round_trip::<RoleBinding>(document),
        "Service" => round_trip::<Service>(document),
        "ServiceAccount" => round_trip::<ServiceAccount>(document),
        "ValidatingAdmissionPolicy" => round_trip::<ValidatingAdmissionPolicy>(document),
        "ValidatingAdmissionPolicyBinding" => {
            round_trip::<ValidatingAdmissionPolicyBinding>(document)
        }
        _ => {
            assert!(FOREIGN.contains(&kind), "unknown kind {kind}");
            return;
        }
    };
    assert_eq!(&through_the_type, document);
}

fn operator_of(overlay: &str) -> BTreeMap<String, Value> {
    let mut documents = kustomize(overlay).unwrap();
    documents.retain(|document| {
        let kind = text(document, "/kind");
        !["CustomResourceDefinition", "Namespace"].contains(&kind)
            && !kind.starts_with("ValidatingAdmissionPolicy")
    });
    by_name(documents)
}

/// The objects that the chart deploys, without the annotation for objects kept on uninstall, and the names of
/// the latter.
fn operator_of_the_chart(values: &str) -> (BTreeMap<String, Value>, Vec<String>) {
    let mut chart = by_name(helm("tec-operator", DEFAULT_NAMESPACE, &[values]).unwrap());
    let mut kept = Vec::new();
    for (name, document) in &mut chart {
        let metadata = document["metadata"].as_object_mut().unwrap();
        if let Some(annotations) = metadata.remove("annotations") {
            assert_eq!(annotations, json!({ "helm.sh/resource-policy": "keep" }), "{name}");
            kept.push(name.clone());
        }
    }
    (chart, kept)
}

#[test]
fn the_chart_and_the_kustomize_base_are_the_same() {
    let (chart, kept) = operator_of_the_chart("--set=userRoles=false");
    assert_eq!(chart, operator_of("kustomize/base"));
    let accounts = |names: Vec<&String>| -> Vec<String> {
        let accounts = names.into_iter().filter_map(|name| name.strip_prefix("ServiceAccount "));
        accounts.map(str::to_owned).collect()
    };
    // The operator and its Job end with the chart; every other account belongs to a server that keeps
    // running.
    let mut of_servers = accounts(chart.keys().collect());
    of_servers.retain(|name| !["trusted-cluster-operator", "compute-pcrs"].contains(&&**name));
    assert_eq!(accounts(kept.iter().collect()), of_servers);
}

#[test]
fn the_chart_for_openshift_and_the_overlay_are_the_same() {
    let (chart, _) = operator_of_the_chart("--set=userRoles=false,assignedPodUser=true");
    assert_eq!(chart, operator_of("kustomize/openshift"));
}

#[test]
fn every_document_of_the_chart_is_valid_with_every_option_on() {
    let values = [
        "--set=monitoring.serviceMonitor=true,monitoring.prometheusRule=true",
        "--set=monitoring.dashboard=true,assignedPodUser=true",
        "--set=imagePullSecrets[0].name=registry,actOnNodes=true",
    ];
    let chart = helm("tec-operator", "elsewhere", &values).unwrap();
    for document in &chart {
        assert_valid(document);
        let namespace = text(document, "/metadata/namespace");
        assert!(["", "elsewhere"].contains(&namespace), "{document}");
        if text(document, "/kind") == "ServiceAccount" {
            let secret = text(document, "/imagePullSecrets/0/name");
            assert_eq!(secret, "registry");
        }
    }
    let map = by_name(chart);
    let dashboard = &map["ConfigMap trusted-execution-clusters-dashboard"];
    let dashboard: Value = serde_json::from_str(text(dashboard, "/data/tec.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn every_document_of_the_bases_is_valid() {
    for base in
        ["kustomize/base", "kustomize/crds", "kustomize/nodes", "kustomize/users", "monitoring"]
    {
        for document in kustomize(base).unwrap() {
            assert_valid(&document);
        }
    }
}

#[test]
fn the_right_to_change_nodes_is_an_option_of_both_packages() {
    let (chart, _) = operator_of_the_chart("--set=userRoles=false,actOnNodes=true");
    let mut base = operator_of("kustomize/base");
    base.extend(operator_of("kustomize/nodes"));
    assert_eq!(chart, base);
}

#[test]
fn the_chart_of_definitions_and_the_base_differ_in_what_keeps_them() {
    let mut chart = helm("tec-crds", DEFAULT_NAMESPACE, &[]).unwrap();
    for crd in &mut chart {
        let metadata = crd["metadata"].as_object_mut().unwrap();
        let annotations = metadata.remove("annotations").unwrap();
        assert_eq!(annotations["helm.sh/resource-policy"], "keep");
    }
    let base = kustomize("kustomize/crds").unwrap();
    assert_eq!(by_name(chart), by_name(base));
}

#[test]
fn an_image_of_the_values_reaches_the_operator_and_what_it_deploys() {
    let image = "registry.example/kbs@sha256:0123";
    let value = format!("--set=images.trustee={image}");
    let chart = by_name(helm("tec-operator", "ns", &[&value]).unwrap());
    let operator = &chart["Deployment trusted-cluster-operator"];
    let variables = operator.pointer("/spec/template/spec/containers/0/env");
    let mut variables = variables.and_then(Value::as_array).unwrap().iter();
    let trustee = variables.find(|variable| variable["name"] == "RELATED_IMAGE_TRUSTEE");
    assert_eq!(trustee.unwrap()["value"], image);
}

#[test]
fn without_a_registry_nothing_is_rendered_and_one_sentence_says_what_to_set() {
    let error = helm("tec-operator", "ns", &["--set=registry="]).unwrap_err();
    let sentence = "set the registry that you pushed the images of this release to: --set \
                    registry=registry.example/tec";
    assert!(error.to_string().contains(sentence), "{error}");
    // Whoever names every image needs none.
    let named = ["operator", "kbsGuard", "keyBroker", "registrationServer"];
    let named = named.into_iter().chain(["attestationKeyRegister", "computePcrs"]);
    let named: Vec<_> = named.map(|name| format!("images.{name}=a.example/{name}:1")).collect();
    let named = format!("--set={}", named.join(","));
    helm("tec-operator", "ns", &["--set=registry=", &named]).unwrap();
}

#[test]
fn a_slip_in_the_values_is_refused() {
    let error = helm("tec-operator", "ns", &["--set=image.trustee=x"]).unwrap_err();
    assert!(error.to_string().contains("image"), "{error}");
}

#[test]
fn the_bundle_gives_each_program_the_rights_of_its_role() {
    let bundle = directory().join("olm/manifests");
    let name = "tec-operator.clusterserviceversion.yaml";
    let version = fs::read_to_string(bundle.join(name)).unwrap();
    let version = documents(&version).unwrap().remove(0);
    let base = operator_of("kustomize/base");
    let permissions = version.pointer("/spec/install/spec/permissions").unwrap();
    let permissions = permissions.as_array().unwrap();
    assert_eq!(permissions.len(), Component::ALL.len());
    for permission in permissions {
        let account = text(permission, "/serviceAccountName");
        let role = &base[&format!("Role {account}-role")];
        assert_eq!(permission["rules"], role["rules"], "{account}");
    }
    let owned = version.pointer("/spec/customresourcedefinitions/owned");
    for crd in owned.and_then(Value::as_array).unwrap() {
        let file = bundle.join(format!("{}.yaml", text(crd, "/name")));
        assert!(file.is_file(), "{}", file.display());
    }
}

#[test]
fn every_alert_has_its_runbook() {
    let runbooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
    let rules = by_name(kustomize("monitoring").unwrap());
    let rules = &rules["PrometheusRule trusted-execution-clusters"];
    let rules = rules.pointer("/spec/groups/0/rules").unwrap();
    for rule in rules.as_array().unwrap() {
        let page = format!("{}.md", text(rule, "/alert"));
        assert!(runbooks.join(&page).is_file(), "{page}");
    }
}
