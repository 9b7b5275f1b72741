//! A bundle for the Operator Lifecycle Manager: it creates accounts and Roles from the ClusterServiceVersion
//! and applies the rest as it is.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tec_k8s::api::{GROUP, VERSION as API_VERSION, crds};
use tec_k8s::render::{
    Component, Installation, OPERATOR_IMAGE, Object, PodUser, operator, user_roles,
};

use crate::helm::KUBERNETES;
use crate::{Files, VERSION, base_url, kustomize, yaml};

const PACKAGE: &str = OPERATOR_IMAGE;
const CHANNEL: &str = "dev-preview";
const BUNDLE: &str = "operators.operatorframework.io.bundle";

pub(crate) fn files() -> Result<Files> {
    let installation = installation();
    let objects = operator(&installation);
    let mut files = Files::from([
        (
            format!("manifests/{PACKAGE}.clusterserviceversion.yaml"),
            clusterserviceversion(&installation, &objects)?,
        ),
        ("metadata/annotations.yaml".to_owned(), annotations()?),
        ("bundle.Containerfile".to_owned(), containerfile()),
    ]);
    for crd in crds() {
        let name = crd.metadata.name.clone().context("a CRD has no name")?;
        files.insert(format!("manifests/{name}.yaml"), yaml::document(&crd)?);
    }
    // The manager applies only kinds that it knows; it does not know NetworkPolicy everywhere.
    for object in objects.iter().chain(&user_roles()) {
        if matches!(object.kind(), "Service" | "PodDisruptionBudget" | "ClusterRole") {
            let kind = object.kind().to_lowercase();
            let name = format!("manifests/{}.{kind}.yaml", object.name());
            files.insert(name, yaml::document(&without_namespace(object)?)?);
        }
    }
    Ok(files)
}

fn clusterserviceversion(installation: &Installation, objects: &[Object]) -> Result<String> {
    let mut value = version(installation, objects)?;
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|_, member| !member.is_null());
    }
    let text = yaml::document(&value)?;
    let head = format!("{}{}", yaml::GENERATED, kustomize::PLACEHOLDER);
    Ok(text.replacen(yaml::GENERATED, &head, 1))
}

/// OpenShift ships the manager; it assigns users.
fn installation() -> Installation {
    let mut installation = Installation::default();
    installation.deploy.user = PodUser::Assigned;
    installation
}

/// The manager picks the namespace.
fn without_namespace(object: &Object) -> Result<Value> {
    let mut value = serde_json::to_value(object)?;
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("namespace");
    }
    Ok(value)
}

fn version(installation: &Installation, objects: &[Object]) -> Result<Value> {
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "annotations": {
                "alm-examples": examples()?,
                "capabilities": "Deep Insights",
                "categories": "Security",
                "containerImage": installation.image,
                "description": SUMMARY,
            },
            "name": format!("{PACKAGE}.v{VERSION}"),
        },
        "spec": {
            "customresourcedefinitions": {"owned": owned()},
            "description": DESCRIPTION,
            "displayName": "Trusted Execution Clusters",
            "install": {"strategy": "deployment", "spec": install(installation, objects)?},
            "installModes": modes(),
            "keywords": ["attestation", "tpm", "confidential computing", "disk encryption"],
            "links": base_url().map(|url| json!([{"name": "Documentation", "url": url}])),
            "maturity": "alpha",
            "minKubeVersion": KUBERNETES,
            "provider": {"name": "Trusted Execution Clusters"},
            "relatedImages": related_images(installation)?,
            "version": VERSION,
        },
    }))
}

const SUMMARY: &str = "Keys only for nodes that prove what they booted";
const DESCRIPTION: &str = "A node's disk is encrypted. Its key is released only when the node's TPM \
     proves which machine it is and what it booted. This operator runs the servers that nodes \
     register at and the Trustee that releases keys, and keeps the Trustee in step with the machines, \
     keys and images that are approved.";

/// Only the namespace of the operator, because Roles apply to no other.
fn modes() -> Value {
    let mode = |name: &str, supported: bool| json!({"type": name, "supported": supported});
    json!([
        mode("OwnNamespace", true),
        mode("SingleNamespace", false),
        mode("MultiNamespace", false),
        mode("AllNamespaces", false),
    ])
}

fn install(installation: &Installation, objects: &[Object]) -> Result<Value> {
    let deployment = kustomize::deployment(installation)?;
    let spec = deployment.get("spec").context("the Deployment has no spec")?;
    let labels = deployment.pointer("/metadata/labels");
    let rules: BTreeMap<&str, _> = objects
        .iter()
        .filter_map(|object| match object {
            Object::Role(role) => Some((object.name(), role.rules.clone())),
            _ => None,
        })
        .collect();
    let permission = |component: Component| {
        let account = component.service_account();
        let rules = rules.get(format!("{account}-role").as_str());
        json!({"serviceAccountName": account, "rules": rules})
    };
    Ok(json!({
        "deployments": [{
            "name": Component::Operator.deployment(),
            "label": labels,
            "spec": spec,
        }],
        "permissions": Component::ALL.map(permission),
    }))
}

fn owned() -> Vec<Value> {
    crds()
        .into_iter()
        .map(|crd| {
            let schema = crd.spec.versions.first().and_then(|version| {
                let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
                schema.description.clone()
            });
            json!({
                "description": schema,
                "displayName": crd.spec.names.kind,
                "kind": crd.spec.names.kind,
                "name": crd.metadata.name,
                "version": API_VERSION,
            })
        })
        .collect()
}

fn related_images(installation: &Installation) -> Result<Vec<Value>> {
    let deployment = kustomize::deployment(installation)?;
    let variables = deployment
        .pointer("/spec/template/spec/containers/0/env")
        .and_then(Value::as_array)
        .context("the operator has no environment")?;
    let mut images = vec![json!({"name": PACKAGE, "image": installation.image})];
    for variable in variables {
        let name = variable.get("name").and_then(Value::as_str).unwrap_or("");
        if let Some(name) = name.strip_prefix("RELATED_IMAGE_") {
            let name = name.to_lowercase().replace('_', "-");
            images.push(json!({"name": name, "image": variable.get("value")}));
        }
    }
    Ok(images)
}

/// Example objects that an admin starts with.
fn examples() -> Result<String> {
    let api_version = format!("{GROUP}/{API_VERSION}");
    let cluster = json!({
        "apiVersion": api_version,
        "kind": "TrustedExecutionCluster",
        "metadata": {"name": "trusted-execution-cluster"},
        "spec": {
            "publicTrusteeAddr": "kbs.example.com:8080",
            "publicAttestationKeyRegisterAddr": "attestation-key-register.example.com:8001",
            "trusteeSecret": "trustee-tls",
            "registerServerSecret": "register-server-tls",
            "attestationKeyRegisterSecret": "attestation-key-register-tls",
        },
    });
    let image = json!({
        "apiVersion": api_version,
        "kind": "ApprovedImage",
        "metadata": {"name": "coreos"},
        "spec": {"image": format!("registry.example.com/coreos@sha256:{}", "0".repeat(64))},
    });
    Ok(serde_json::to_string_pretty(&json!([cluster, image]))?)
}

fn annotations() -> Result<String> {
    let mut annotations = BTreeMap::new();
    for (name, value) in labels() {
        annotations.insert(name, value);
    }
    yaml::document(&json!({"annotations": annotations}))
}

fn labels() -> [(String, &'static str); 6] {
    [
        ("channel.default.v1", CHANNEL),
        ("channels.v1", CHANNEL),
        ("manifests.v1", "manifests/"),
        ("mediatype.v1", "registry+v1"),
        ("metadata.v1", "metadata/"),
        ("package.v1", PACKAGE),
    ]
    .map(|(name, value)| (format!("{BUNDLE}.{name}"), value))
}

fn containerfile() -> String {
    let mut text = format!("{}FROM scratch\n", yaml::GENERATED);
    for (name, value) in labels() {
        text.extend(["LABEL ", &name, "=", value, "\n"]);
    }
    text.push_str("COPY manifests /manifests/\nCOPY metadata /metadata/\n");
    text
}
