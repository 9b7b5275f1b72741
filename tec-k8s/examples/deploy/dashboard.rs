//! A Grafana dashboard with a panel for each metric, grouped by program.

use anyhow::Result;
use serde_json::{Value, json};
use tec_k8s::signal::{Metric, MetricKind};

/// Columns of Grafana's grid, and the width of a panel.
const GRID: usize = 24;
const WIDTH: usize = 8;
const HEIGHT: usize = 7;

pub(crate) fn json() -> Result<String> {
    let dashboard = json!({
        "editable": false,
        "panels": panels(),
        "refresh": "1m",
        "schemaVersion": 39,
        "tags": ["trusted-execution-clusters"],
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "time": {"from": "now-6h", "to": "now"},
        "title": "Trusted Execution Clusters",
        "uid": "trusted-execution-clusters",
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&dashboard)?))
}

fn panels() -> Vec<Value> {
    let mut panels = Vec::new();
    let (mut x, mut y) = (0, 0);
    let mut program = "";
    for metric in Metric::ALL {
        if metric.program() != program {
            program = metric.program();
            if x > 0 {
                (x, y) = (0, y + HEIGHT);
            }
            panels.push(row(program, panels.len() + 1, y));
            y += 1;
        }
        panels.push(panel(*metric, panels.len() + 1, (x, y)));
        x += WIDTH;
        if x >= GRID {
            (x, y) = (0, y + HEIGHT);
        }
    }
    panels
}

fn row(title: &str, id: usize, y: usize) -> Value {
    let title = if title == "all" { "Every program" } else { title };
    let place = json!({"h": 1, "w": GRID, "x": 0, "y": y});
    json!({"id": id, "type": "row", "title": title, "gridPos": place, "panels": []})
}

fn panel(metric: Metric, id: usize, (x, y): (usize, usize)) -> Value {
    let legend: Vec<String> =
        metric.labels().iter().map(|label| format!("{{{{{label}}}}}")).collect();
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let place = json!({"h": HEIGHT, "w": WIDTH, "x": x, "y": y});
    let target = json!({
        "datasource": source,
        "expr": expression(metric),
        "legendFormat": legend.join(" "),
        "refId": "A",
    });
    let unit = json!({"defaults": {"min": 0, "unit": unit(metric)}, "overrides": []});
    json!({
        "datasource": source,
        "description": metric.help(),
        "fieldConfig": unit,
        "gridPos": place,
        "id": id,
        "targets": [target],
        "title": metric.as_str(),
        "type": "timeseries",
    })
}

/// Rates of counters, the 99th percentile of histograms, and the maximum of gauges, because only the leader
/// reports them.
fn expression(metric: Metric) -> String {
    let (name, by) = (metric.as_str(), metric.labels().join(", "));
    match metric.kind() {
        MetricKind::Counter => format!("sum by ({by}) (rate({name}[5m]))"),
        MetricKind::Histogram => {
            let by = [metric.labels(), &["le"]].concat().join(", ");
            format!("histogram_quantile(0.99, sum by ({by}) (rate({name}_bucket[5m])))")
        }
        _ if metric == Metric::CertificateNotAfter => format!("min by (job) ({name}) - time()"),
        _ => format!("max by ({by}) ({name})"),
    }
}

fn unit(metric: Metric) -> &'static str {
    match metric.kind() {
        MetricKind::Counter => "ops",
        MetricKind::Histogram => "s",
        _ if metric == Metric::CertificateNotAfter => "s",
        _ => "short",
    }
}
