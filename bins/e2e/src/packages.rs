//! The operator's packages as tests see them: the output of Helm and Kustomize for the committed files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tec_k8s::render::NO_REGISTRY;

use crate::settings::cache;

/// The Kubernetes version to pass to Helm; a Helm built from its module does not know one.
const KUBERNETES: &str = "1.34.0";

/// The registry that our images would be pushed to. Nodes of the tests load them from archives instead.
pub const REGISTRY: &str = "registry.example/tec";
/// The same as a value of the charts.
pub const SET_REGISTRY: &str = "--set=registry=registry.example/tec";

/// Directory of the packages.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../operator/deploy")
}

/// The example of a component, whose images are in the registry.
pub fn component() -> anyhow::Result<String> {
    let file = directory().join("../../../examples/component/component.yaml");
    let text = std::fs::read_to_string(&file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(text.contains(NO_REGISTRY), "{} names another registry", file.display());
    Ok(text.replace(NO_REGISTRY, REGISTRY))
}

/// Output of `helm template` for a chart in a namespace, with the registry of the bases and further arguments.
///
/// # Errors
/// Helm is missing (`cargo xtask tools`) or refuses; the error contains its output.
pub fn helm(chart: &str, namespace: &str, more: &[&str]) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(tool("bin/helm")?);
    command
        .args(["template", "tec", "--kube-version", KUBERNETES])
        .args(["--namespace", namespace])
        .arg(format!("--set=registry={NO_REGISTRY}"))
        .args(more)
        .arg(directory().join("helm").join(chart));
    documents(&stdout(&mut command)?)
}

/// Runs a Helm command on a cluster, and returns its output.
///
/// # Errors
/// Helm is missing or refuses; the error contains its output.
pub fn helm_at(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(tool("bin/helm")?);
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
    stdout(&mut command)
}

/// Output of `kubectl kustomize` for a directory.
///
/// # Errors
/// kubectl is missing or refuses; the error contains its output.
pub fn kustomize(below: &str) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(tool("bin/kubectl")?);
    command.arg("kustomize").arg(directory().join(below));
    documents(&stdout(&mut command)?)
}

/// The documents of a YAML stream.
pub fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("not YAML")?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).map(whole_numbers).collect())
}

/// Replaces 0.0 with 0: programs do not agree on how to write it.
pub fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            // A float without a fraction is printed like an integer.
            Some(float) if number.is_f64() => {
                format!("{float}").parse().map_or(Value::Number(number), Value::Number)
            }
            _ => Value::Number(number),
        },
        Value::Array(values) => values.into_iter().map(whole_numbers).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, whole_numbers(value))).collect()
        }
        other => other,
    }
}

/// A program in the tools cache.
///
/// # Errors
/// The program is missing; the error names the command that sets it up.
pub fn tool(below: &str) -> anyhow::Result<PathBuf> {
    let path = cache()?.join(below);
    ensure!(path.is_file(), "{} is missing; run `cargo xtask tools`", path.display());
    Ok(path)
}

fn stdout(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("the output is not UTF-8 text")
}
