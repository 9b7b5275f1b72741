//! The permissions of each service account, as reported by the API server: exactly these, and none in other
//! namespaces.

use std::collections::BTreeSet;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, ResourceRule, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tec_e2e::kube::ControlPlane;
use tec_e2e::packages::{SET_REGISTRY, directory, helm_at};
use tec_k8s::render::Component;

const NAMESPACE: &str = "tec-rights";
/// Our API group in the tables below; `core` is the unnamed group.
const TEC: &str = "trusted-execution-clusters.io";

/// Verbs and their objects: group, resources, and a single resource name, if limited to one.
type Right = (&'static str, &'static str, &'static str, Option<&'static str>);

const READ: &str = "get list watch";
const OWN: &str = "create delete get list patch update watch";
const STATUS: &str = "get patch update";

const OPERATOR: [Right; 18] = [
    (OWN, TEC, "trustedexecutionclusters machines approvedimages attestationkeys", None),
    (STATUS, TEC, "trustedexecutionclusters/status machines/status", None),
    (STATUS, TEC, "approvedimages/status attestationkeys/status", None),
    ("update", TEC, "trustedexecutionclusters/finalizers machines/finalizers", None),
    ("update", TEC, "approvedimages/finalizers attestationkeys/finalizers", None),
    ("get list patch watch", TEC, "followedimages", None),
    (STATUS, TEC, "followedimages/status", None),
    (OWN, "core", "configmaps services secrets", None),
    ("create get patch", "cert-manager.io", "certificates", None),
    ("get list watch", TEC, "attestationrecords", None),
    (READ, "core", "pods", None),
    (OWN, "apps", "deployments", None),
    (OWN, "batch", "jobs", None),
    (OWN, "networking.k8s.io", "networkpolicies", None),
    (OWN, "policy", "poddisruptionbudgets", None),
    ("create", "coordination.k8s.io", "leases", None),
    (STATUS, "coordination.k8s.io", "leases", Some("trusted-cluster-operator")),
    ("create patch", "events.k8s.io", "events", None),
];
const TRUSTEE: [Right; 5] = [
    (READ, TEC, "machines attestationkeys approvedimages", None),
    ("create get update", TEC, "attestationrecords", None),
    ("create get list update", TEC, "tpmclocks platformbaselines", None),
    ("delete get", TEC, "platformapprovals", None),
    ("create patch", "events.k8s.io", "events", None),
];
const KEY_BROKER: [Right; 11] = [
    ("get list", TEC, "machines", None),
    ("get", TEC, "attestationkeys", None),
    ("list", TEC, "trustedexecutionclusters", None),
    ("list watch", TEC, "approvedimages", None),
    ("create get", TEC, "recoverykeys", None),
    ("create get update", TEC, "attestationrecords", None),
    ("create get list update", TEC, "tpmclocks platformbaselines", None),
    ("delete get", TEC, "platformapprovals", None),
    ("get", "core", "configmaps", Some("trust-authority")),
    ("get", "core", "secrets", None),
    ("create patch", "events.k8s.io", "events", None),
];
const REGISTER_SERVER: [Right; 5] = [
    (READ, TEC, "trustedexecutionclusters", None),
    ("create get list watch", TEC, "machines", None),
    ("get", "core", "configmaps", Some("trust-authority")),
    ("update", TEC, "trustedexecutionclusters/finalizers", None),
    ("create patch", "events.k8s.io", "events", None),
];
const ATTESTATION_KEY_REGISTER: [Right; 5] = [
    (READ, TEC, "trustedexecutionclusters machines", None),
    ("create get list watch", TEC, "attestationkeys", None),
    ("get", "core", "configmaps", Some("trust-authority")),
    ("update", TEC, "trustedexecutionclusters/finalizers", None),
    ("create patch", "events.k8s.io", "events", None),
];
const COMPUTE_PCRS: [Right; 2] =
    [("get", TEC, "approvedimages", None), (STATUS, TEC, "approvedimages/status", None)];

/// Permissions worth an attack, which no account has: verb, group, resource, namespace.
const NOBODY: [[&str; 4]; 25] = [
    // Every kubelet can write them, so nothing may depend on them.
    ["list", "events.k8s.io", "events", NAMESPACE],
    ["get", "", "secrets", "kube-system"],
    ["list", "", "secrets", "default"],
    ["get", TEC, "machines", "default"],
    ["list", TEC, "recoverykeys", NAMESPACE],
    ["patch", TEC, "recoverykeys", NAMESPACE],
    ["delete", TEC, "recoverykeys", NAMESPACE],
    ["create", TEC, "platformapprovals", NAMESPACE],
    ["update", TEC, "platformapprovals", NAMESPACE],
    ["patch", TEC, "platformapprovals", NAMESPACE],
    ["delete", TEC, "platformbaselines", NAMESPACE],
    ["create", TEC, "followedimages", NAMESPACE],
    ["update", TEC, "followedimages", NAMESPACE],
    ["create", "", "pods", NAMESPACE],
    ["create", "", "pods/exec", NAMESPACE],
    ["get", "", "pods/log", NAMESPACE],
    ["create", "", "serviceaccounts/token", NAMESPACE],
    ["impersonate", "", "serviceaccounts", NAMESPACE],
    ["create", "rbac.authorization.k8s.io", "rolebindings", NAMESPACE],
    ["escalate", "rbac.authorization.k8s.io", "roles", NAMESPACE],
    ["bind", "rbac.authorization.k8s.io", "clusterroles", ""],
    ["patch", "apiextensions.k8s.io", "customresourcedefinitions", ""],
    ["create", "admissionregistration.k8s.io", "validatingwebhookconfigurations", ""],
    ["get", "", "nodes", ""],
    ["delete", "", "namespaces", ""],
];
/// Permissions of the operator only.
const OPERATOR_ONLY: [[&str; 4]; 7] = [
    ["list", "", "secrets", NAMESPACE],
    ["create", "", "secrets", NAMESPACE],
    ["patch", TEC, "machines/status", NAMESPACE],
    ["patch", TEC, "attestationkeys/status", NAMESPACE],
    ["patch", TEC, "machines", NAMESPACE],
    ["delete", TEC, "attestationkeys", NAMESPACE],
    ["create", "apps", "deployments", NAMESPACE],
];

fn rights(component: Component) -> &'static [Right] {
    match component {
        Component::Operator => &OPERATOR,
        Component::Trustee => &TRUSTEE,
        Component::KeyBroker => &KEY_BROKER,
        Component::RegisterServer => &REGISTER_SERVER,
        Component::AttestationKeyRegister => &ATTESTATION_KEY_REGISTER,
        Component::ComputePcrs => &COMPUTE_PCRS,
        other => panic!("{other:?} has no table"),
    }
}

/// One line per verb and resource.
fn expected(component: Component) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (verbs, group, resources, name) in rights(component) {
        for verb in verbs.split(' ') {
            let name = name.map(|name| format!(" {name}")).unwrap_or_default();
            let line = |resource| format!("{verb} {group}/{resource}{name}");
            lines.extend(resources.split(' ').map(line));
        }
    }
    lines
}

fn lines(rule: &ResourceRule) -> Vec<String> {
    let mut lines = Vec::new();
    let names = rule.resource_names.clone().unwrap_or_default();
    let names: Vec<_> = names.iter().map(|name| format!(" {name}")).collect();
    let names = if names.is_empty() { vec![String::new()] } else { names };
    for verb in &rule.verbs {
        for group in rule.api_groups.iter().flatten() {
            let group = if group.is_empty() { "core" } else { group };
            for resource in rule.resources.iter().flatten() {
                lines.extend(names.iter().map(|name| format!("{verb} {group}/{resource}{name}")));
            }
        }
    }
    lines
}

/// All permissions of this client's user in a namespace.
async fn allowed(client: &Client, namespace: &str) -> BTreeSet<String> {
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec { namespace: Some(namespace.to_owned()) },
        ..SelfSubjectRulesReview::default()
    };
    let reviews = Api::<SelfSubjectRulesReview>::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let status = answer.unwrap().status.unwrap();
    assert!(!status.incomplete, "{:?}", status.evaluation_error);
    status.resource_rules.iter().flat_map(lines).collect()
}

async fn may(client: &Client, [verb, group, resource, namespace]: [&str; 4]) -> bool {
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: text(group),
                namespace: text(namespace),
                resource: text(resource),
                subresource: text(part),
                verb: text(verb),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.unwrap().status.unwrap().allowed
}

#[tokio::test]
async fn each_account_may_do_what_it_must_and_nothing_else() {
    let plane = ControlPlane::start().await.unwrap();
    let chart = directory().join("helm/tec-operator");
    let install = ["install", "tec", chart.to_str().unwrap(), SET_REGISTRY, "--create-namespace"];
    let admin = plane.admin_kubeconfig().unwrap();
    helm_at(&admin, &[&install[..], &["--namespace", NAMESPACE]].concat()).unwrap();
    let nobody = plane.account(NAMESPACE, "nobody", &[]).await.unwrap();
    let everybodys = allowed(&nobody, NAMESPACE).await;
    for component in Component::ALL {
        let account = component.service_account();
        let token = plane.token(NAMESPACE, account).await.unwrap();
        let client = plane.client(&token).unwrap();
        let all = allowed(&client, NAMESPACE).await;
        let own: BTreeSet<_> = all.difference(&everybodys).cloned().collect();
        assert_eq!(own, expected(component), "{account}");
        assert_eq!(allowed(&client, "default").await, everybodys, "{account}");
        for forbidden in NOBODY {
            assert!(!may(&client, forbidden).await, "{account}: {forbidden:?}");
        }
        let releases_keys = [Component::Operator, Component::KeyBroker].contains(&component);
        let reads_keys = may(&client, ["get", "", "secrets", NAMESPACE]).await;
        assert_eq!(reads_keys, releases_keys, "{account}");
        for delicate in OPERATOR_ONLY {
            let is_operator = component == Component::Operator;
            let is_allowed = may(&client, delicate).await;
            assert_eq!(is_allowed, is_operator, "{account}: {delicate:?}");
        }
    }
}

#[tokio::test]
async fn only_where_it_is_asked_for_may_the_operator_change_nodes_and_nobody_else() {
    let plane = ControlPlane::start().await.unwrap();
    let chart = directory().join("helm/tec-operator");
    let install = ["install", "tec", chart.to_str().unwrap(), SET_REGISTRY, "--create-namespace"];
    let admin = plane.admin_kubeconfig().unwrap();
    let asked = ["--namespace", NAMESPACE, "--set", "actOnNodes=true"];
    helm_at(&admin, &[&install[..], &asked].concat()).unwrap();
    for component in Component::ALL {
        let token = plane.token(NAMESPACE, component.service_account()).await.unwrap();
        let client = plane.client(&token).unwrap();
        for verb in ["get", "patch", "list", "watch", "update", "create", "delete"] {
            let is_allowed = may(&client, [verb, "", "nodes", ""]).await;
            let is_granted = component == Component::Operator && ["get", "patch"].contains(&verb);
            assert_eq!(is_allowed, is_granted, "{component:?}: {verb}");
        }
        assert!(!may(&client, ["patch", "", "nodes/status", ""]).await, "{component:?}");
        assert!(!may(&client, ["get", "", "secrets", "kube-system"]).await, "{component:?}");
    }
}
