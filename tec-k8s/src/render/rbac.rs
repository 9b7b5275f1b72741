//! Service accounts and their permissions: for each program, a Role in one namespace with only the
//! permissions that it uses.

use k8s_openapi::api::core::v1::{LocalObjectReference, ServiceAccount};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Object;
use super::certificate::CERT_MANAGER;
use super::installation::Installation;
use super::meta::{labels, text_map};
use super::name::Component;
use crate::api::{AUTHORITY, GROUP};

/// Lease of the leader; the only one that the operator may change.
const LEASE: &str = "trusted-cluster-operator";

const READ: [&str; 3] = ["get", "list", "watch"];
const OWN: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];
const STATUS: [&str; 3] = ["get", "patch", "update"];

const CLUSTERS: &str = "trustedexecutionclusters";
const MACHINES: &str = "machines";
const IMAGES: &str = "approvedimages";
const FOLLOWED: &str = "followedimages";
const KEYS: &str = "attestationkeys";
const CLOCKS: &str = "tpmclocks";
const PLATFORMS: &str = "platformbaselines";
const PLATFORM_APPROVALS: &str = "platformapprovals";
const RECORDS: &str = "attestationrecords";
const RECOVERY_KEYS: &str = "recoverykeys";
const ALL: [&str; 4] = [CLUSTERS, MACHINES, IMAGES, KEYS];

/// Accounts, Roles and bindings of all components.
pub(super) fn accounts(installation: &Installation) -> Vec<Object> {
    Component::ALL.into_iter().flat_map(|component| account(installation, component)).collect()
}

fn account(installation: &Installation, component: Component) -> [Object; 3] {
    let name = component.service_account();
    let role_name = role_name(component);
    let metadata = |name: &str| installation.metadata(name, component);
    let named = |name: &String| LocalObjectReference { name: name.clone() };
    let pull_secrets: Vec<_> = installation.pull_secrets.iter().map(named).collect();
    let account = ServiceAccount {
        // Pods that talk to the API server mount the token themselves.
        automount_service_account_token: Some(false),
        image_pull_secrets: Some(pull_secrets).filter(|secrets| !secrets.is_empty()),
        metadata: metadata(name),
        ..ServiceAccount::default()
    };
    let role = Role { metadata: metadata(&role_name), rules: Some(rules(component)) };
    let binding = RoleBinding {
        metadata: metadata(&role_name),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: role_name,
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(installation.namespace.clone()),
            ..Subject::default()
        }]),
    };
    [account.into(), role.into(), binding.into()]
}

fn role_name(component: Component) -> String {
    format!("{}-role", component.service_account())
}

/// What a component may do in its namespace.
pub(super) fn rules(component: Component) -> Vec<PolicyRule> {
    match component {
        Component::Operator => operator_rules(),
        // The guard looks up the machine of a key and the approved images for each attempt, keeps the clock
        // of the TPM and the platform, and reports the outcome. It may write neither a machine's status,
        // which holds the key that the machine is bound to, nor a key's, which holds approvals.
        Component::Trustee => {
            let mut rules = vec![
                rule(GROUP, &[MACHINES, KEYS, IMAGES], &READ),
                rule(GROUP, &[RECORDS], &["create", "get", "update"]),
                events(),
            ];
            rules.extend(platform_rules());
            rules
        }
        Component::KeyBroker => key_broker_rules(),
        // It may register machines. It may not change them, and sees no Secret. One ConfigMap tells whether
        // this anchor may approve.
        Component::RegisterServer => vec![
            rule(GROUP, &[CLUSTERS], &READ),
            rule(GROUP, &[MACHINES], &["create", "get", "list", "watch"]),
            named(rule("", &["configmaps"], &["get"]), AUTHORITY),
            owning(),
            events(),
        ],
        // It may submit keys. Binding them is up to the operator.
        Component::AttestationKeyRegister => vec![
            rule(GROUP, &[CLUSTERS, MACHINES], &READ),
            rule(GROUP, &[KEYS], &["create", "get", "list", "watch"]),
            named(rule("", &["configmaps"], &["get"]), AUTHORITY),
            owning(),
            events(),
        ],
        Component::ComputePcrs => {
            vec![rule(GROUP, &[IMAGES], &["get"]), rule(GROUP, &["approvedimages/status"], &STATUS)]
        }
    }
}

/// The guard and the key broker record the clock and the platform of each machine, and delete approvals that no machine
/// needs. They cannot approve.
fn platform_rules() -> [PolicyRule; 2] {
    [
        rule(GROUP, &[CLOCKS, PLATFORMS], &["create", "get", "list", "update"]),
        rule(GROUP, &[PLATFORM_APPROVALS], &["delete", "get"]),
    ]
}

/// For each request, the built-in key broker reads what its decision depends on. It writes clocks,
/// platforms and attempts, and stores recovery keys, which it can neither change nor remove. Like the guard, it can bind no
/// key and approve nothing. Permissions cannot distinguish the Secrets of disk keys from others in the
/// namespace; it may not list Secrets, nor create any, since a new one could be a token of another account.
fn key_broker_rules() -> Vec<PolicyRule> {
    let mut rules = vec![
        rule(GROUP, &[MACHINES], &["get", "list"]),
        rule(GROUP, &[KEYS], &["get"]),
        rule(GROUP, &[CLUSTERS], &["list"]),
        rule(GROUP, &[IMAGES], &["list", "watch"]),
        rule(GROUP, &[RECORDS], &["create", "get", "update"]),
        rule(GROUP, &[RECOVERY_KEYS], &["create", "get"]),
        named(rule("", &["configmaps"], &["get"]), AUTHORITY),
        rule("", &["secrets"], &["get"]),
        events(),
    ];
    rules.extend(platform_rules());
    rules
}

fn operator_rules() -> Vec<PolicyRule> {
    let status = ALL.map(|kind| format!("{kind}/status"));
    let finalizers = ALL.map(|kind| format!("{kind}/finalizers"));
    vec![
        rule(GROUP, &ALL, &OWN),
        rule(GROUP, &status, &STATUS),
        rule(GROUP, &finalizers, &["update"]),
        // Only people say which tags are followed. Patching makes one go with the cluster object.
        rule(GROUP, &[FOLLOWED], &["get", "list", "patch", "watch"]),
        rule(GROUP, &["followedimages/status"], &STATUS),
        // Needed if a cert-manager issuer is named.
        rule(CERT_MANAGER, &["certificates"], &["create", "get", "patch"]),
        // Which CAs machines reported that they trust, and how machines attest after boot.
        rule(GROUP, &[RECORDS], &["get", "list", "watch"]),
        rule("", &["configmaps", "services"], &OWN),
        // Permissions cannot distinguish metadata from data, nor names that are not known beforehand; the
        // Role makes sure that Secrets of other namespaces are out of reach.
        rule("", &["secrets"], &OWN),
        rule("", &["pods"], &READ),
        rule("apps", &["deployments"], &OWN),
        rule("batch", &["jobs"], &OWN),
        rule("networking.k8s.io", &["networkpolicies"], &OWN),
        rule("policy", &["poddisruptionbudgets"], &OWN),
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named(rule("coordination.k8s.io", &["leases"], &STATUS), LEASE),
        events(),
    ]
}

/// An object whose owner waits for the object's removal may be created only by an account that may delay the
/// owner's removal, as enforced by the admission plugin OwnerReferencesPermissionEnforcement, which OpenShift
/// runs.
fn owning() -> PolicyRule {
    let resource = format!("{CLUSTERS}/finalizers");
    rule(GROUP, &[resource], &["update"])
}

fn events() -> PolicyRule {
    rule("events.k8s.io", &["events"], &["create", "patch"])
}

fn rule<R: AsRef<str>>(group: &str, resources: &[R], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(resources.iter().map(|r| r.as_ref().to_owned()).collect()),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

fn named(rule: PolicyRule, name: &str) -> PolicyRule {
    PolicyRule { resource_names: Some(vec![name.to_owned()]), ..rule }
}

/// Name of the ClusterRole and its binding that let the operator of a namespace change Nodes.
pub fn node_rights_name(namespace: &str) -> String {
    format!("{}-nodes-{namespace}", Component::Operator.service_account())
}

/// What the operator needs beyond its namespace for the actions on Nodes of `spec.onUntrusted`: not part of
/// [`operator`](super::operator), since permissions cannot be limited to taints.
pub fn node_rights(installation: &Installation) -> Vec<Object> {
    let (name, account) =
        (node_rights_name(&installation.namespace), Component::Operator.service_account());
    let mut labels = labels(Component::Operator);
    labels.remove("app");
    let metadata =
        ObjectMeta { labels: Some(labels), name: Some(name.clone()), ..ObjectMeta::default() };
    let role = ClusterRole {
        metadata: metadata.clone(),
        rules: Some(vec![rule("", &["nodes"], &["get", "patch"])]),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name,
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(installation.namespace.clone()),
            ..Subject::default()
        }]),
    };
    vec![role.into(), binding.into()]
}

/// ClusterRoles for people, without bindings: for each kind, one to change it and one to read it, with the
/// names that existing clusters use (trusted-cluster-operator), aggregated to the Kubernetes roles `admin`
/// and `view`.
pub fn user_roles() -> Vec<Object> {
    let kinds = [
        ("trustedexecutioncluster", CLUSTERS),
        ("machine", MACHINES),
        ("approvedimage", IMAGES),
        ("followedimage", FOLLOWED),
        ("attestationkey", KEYS),
        ("tpmclock", CLOCKS),
        ("platformbaseline", PLATFORMS),
        ("platformapproval", PLATFORM_APPROVALS),
        ("attestationrecord", RECORDS),
    ];
    kinds
        .into_iter()
        .flat_map(|(kind, plural)| {
            [user_role(kind, plural, "admin", &OWN), user_role(kind, plural, "viewer", &READ)]
        })
        // Like Secrets, recovery keys are for admins only, even though they are sealed.
        .chain([user_role("recoverykey", RECOVERY_KEYS, "admin", &OWN)])
        .collect()
}

fn user_role(kind: &str, plural: &str, who: &str, verbs: &[&str]) -> Object {
    let aggregate = if who == "admin" { "admin" } else { "view" };
    let aggregate = format!("rbac.authorization.k8s.io/aggregate-to-{aggregate}");
    let mut labels = labels(Component::Operator);
    // Approving an attestation key is a condition of its status. The status of an image has its measurements, which a
    // signature may have to cover.
    let status: &[_] = if (plural, who) == (KEYS, "admin") { &["get", "patch"] } else { &["get"] };
    let mut rules =
        vec![rule(GROUP, &[plural], verbs), rule(GROUP, &[format!("{plural}/status")], status)];
    if who == "admin" {
        // A change checks that the namespace still has the authority, and leaves an audit line.
        let line = rule("events.k8s.io", &["events"], &["create"]);
        rules.extend([named(rule("", &["configmaps"], &["get"]), AUTHORITY), line]);
    }
    // The label `app` selects pods, and a role for people has none.
    labels.remove("app");
    labels.extend(text_map([(aggregate.as_str(), "true")]));
    ClusterRole {
        metadata: ObjectMeta {
            labels: Some(labels),
            name: Some(format!("{kind}-{who}-role")),
            ..ObjectMeta::default()
        },
        rules: Some(rules),
        ..ClusterRole::default()
    }
    .into()
}
