//! Kustomize: the definitions, the operator, and optional overlays.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tec_k8s::api::crds;
use tec_k8s::render::{
    Component, DEFAULT_NAMESPACE, Installation, Object, PodUser, definition_guard, namespace,
    node_rights, operator, user_roles,
};

use crate::{Files, yaml};

/// How to fill in the registry, which only the admin knows.
pub(crate) const PLACEHOLDER: &str = "# Replace registry.invalid with the registry that you pushed the images of this \
     release to:\n#   sed -i s#registry.invalid#registry.example/tec# <this file>\n";
/// The file with the policy that protects the definitions.
pub(crate) const GUARD: &str = "guard.yaml";

pub(crate) fn files() -> Result<Files> {
    let mut files = Files::new();
    let mut names = Vec::new();
    for crd in crds() {
        let name = crd.metadata.name.clone().context("a CRD has no name")?;
        let name = format!("{name}.yaml");
        files.insert(format!("crds/{name}"), yaml::document(&crd)?);
        names.push(name);
    }
    let (policy, binding) = definition_guard();
    let guard = yaml::documents(&[serde_json::to_value(policy)?, serde_json::to_value(binding)?])?;
    files.insert(format!("crds/{GUARD}"), guard);
    names.push(GUARD.to_owned());
    files.insert("crds/kustomization.yaml".to_owned(), kustomization(&names)?);

    let objects = operator(&Installation::default());
    let (programs, accounts): (Vec<Object>, Vec<Object>) =
        objects.into_iter().partition(is_of_a_program);
    base(&mut files, &accounts, &programs)?;
    files.insert("users/roles.yaml".to_owned(), yaml::documents(&user_roles())?);
    files.insert("users/kustomization.yaml".to_owned(), kustomization(&["roles.yaml".to_owned()])?);
    let nodes = node_rights(&Installation::default());
    files.insert("nodes/rights.yaml".to_owned(), yaml::documents(&nodes)?);
    files
        .insert("nodes/kustomization.yaml".to_owned(), kustomization(&["rights.yaml".to_owned()])?);
    files.insert("openshift/kustomization.yaml".to_owned(), openshift()?);
    Ok(files)
}

fn is_of_a_program(object: &Object) -> bool {
    !matches!(object.kind(), "ServiceAccount" | "Role" | "RoleBinding")
}

fn base(files: &mut Files, accounts: &[Object], programs: &[Object]) -> Result<()> {
    let name_space = [namespace(DEFAULT_NAMESPACE)];
    let programs = yaml::documents(programs)?;
    let programs =
        programs.replacen(yaml::GENERATED, &format!("{}{PLACEHOLDER}", yaml::GENERATED), 1);
    for (name, text) in [
        ("namespace.yaml", yaml::documents(&name_space)?),
        ("accounts.yaml", yaml::documents(accounts)?),
        ("operator.yaml", programs),
    ] {
        files.insert(format!("base/{name}"), text);
    }
    let mut value = resources(&[
        "../crds".to_owned(),
        "namespace.yaml".to_owned(),
        "accounts.yaml".to_owned(),
        "operator.yaml".to_owned(),
    ]);
    yaml::set(&mut value, "namespace", json!(DEFAULT_NAMESPACE));
    files.insert("base/kustomization.yaml".to_owned(), yaml::document(&value)?);
    Ok(())
}

/// OpenShift picks the users of pods itself, so the operator's Deployment sets none, and the operator is
/// configured to set none in the pods that it deploys.
fn openshift() -> Result<String> {
    let name = Component::Operator.deployment();
    let mut installation = Installation::default();
    installation.deploy.user = PodUser::Assigned;
    let assigned = deployment(&installation)?;
    let arguments = assigned
        .pointer("/spec/template/spec/containers/0/args")
        .context("the operator has no arguments")?;
    let remove = |field: &str| json!({"op": "remove", "path": format!("/spec/template/spec/securityContext/{field}")});
    let patch = json!([
        remove("fsGroup"),
        remove("runAsGroup"),
        remove("runAsUser"),
        {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments},
    ]);
    let mut value = resources(&["../base".to_owned()]);
    yaml::set(
        &mut value,
        "patches",
        json!([{
            "target": {"kind": "Deployment", "name": name},
            "patch": serde_saphyr::to_string(&patch)?,
        }]),
    );
    yaml::document(&value)
}

/// The operator's Deployment, as a value.
pub(crate) fn deployment(installation: &Installation) -> Result<Value> {
    let objects = operator(installation);
    let deployment = objects.iter().find(|object| object.kind() == "Deployment");
    let deployment = deployment.context("the operator has no Deployment")?;
    Ok(serde_json::to_value(deployment)?)
}

fn kustomization(names: &[String]) -> Result<String> {
    yaml::document(&resources(names))
}

fn resources(names: &[String]) -> Value {
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    })
}
