//! Objects of the Prometheus operator, and the dashboard for Grafana's sidecar.

use anyhow::Result;
use serde_json::{Value, json};
use tec_k8s::render::DEFAULT_NAMESPACE;
use tec_k8s::signal::Alert;

use crate::{Files, base_url, dashboard, yaml};

const NAME: &str = "trusted-execution-clusters";

pub(crate) fn files() -> Result<Files> {
    let resources = ["servicemonitor.yaml", "prometheusrule.yaml", "dashboard.yaml"];
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": DEFAULT_NAMESPACE,
        "resources": resources,
    });
    let dashboard = dashboard::json()?;
    Ok(Files::from([
        ("kustomization.yaml".to_owned(), yaml::document(&kustomization)?),
        ("servicemonitor.yaml".to_owned(), yaml::document(&service_monitor())?),
        ("prometheusrule.yaml".to_owned(), yaml::document(&rules())?),
        ("dashboard.yaml".to_owned(), yaml::document(&dashboard_config_map(&dashboard))?),
        ("dashboard.json".to_owned(), dashboard),
    ]))
}

fn metadata(labels: &Value) -> Value {
    let mut labels = labels.clone();
    if let Some(labels) = labels.as_object_mut() {
        labels.insert("app.kubernetes.io/part-of".to_owned(), json!(NAME));
    }
    json!({"name": NAME, "labels": labels})
}

/// All programs: their Services for metrics share a label and the name of the port. The label `job` is the
/// Service's name, which the alerts rely on.
pub(crate) fn service_monitor() -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(&json!({})),
        "spec": {
            "endpoints": [{"interval": "30s", "port": "metrics"}],
            "selector": {"matchLabels": {"app.kubernetes.io/part-of": NAME}},
        },
    })
}

pub(crate) fn rules() -> Value {
    let rules: Vec<Value> = Alert::ALL.iter().map(rule).collect();
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(&json!({})),
        "spec": {"groups": [{"name": NAME, "rules": rules}]},
    })
}

fn rule(alert: &Alert) -> Value {
    let mut rule = json!({
        "alert": alert.name,
        "annotations": {
            "description": alert.impact,
            "summary": alert.summary,
        },
        "expr": alert.expression(),
        "labels": {"severity": alert.severity.as_str()},
    });
    yaml::set(&mut rule, "for", json!(alert.hold));
    let runbook = match base_url() {
        Some(url) => ("runbook_url", format!("{url}/runbooks/{}.html", alert.name)),
        None => ("runbook", format!("docs/runbooks/{}.md", alert.name)),
    };
    if let Some(annotations) = rule.get_mut("annotations") {
        yaml::set(annotations, runbook.0, json!(runbook.1));
    }
    rule
}

/// Grafana's sidecar loads every ConfigMap with this label.
pub(crate) fn dashboard_config_map(dashboard: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": dashboard_metadata(),
        "data": {"tec.json": dashboard},
    })
}

fn dashboard_metadata() -> Value {
    let mut metadata = metadata(&json!({"grafana_dashboard": "1"}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("name".to_owned(), json!(format!("{NAME}-dashboard")));
    }
    metadata
}
