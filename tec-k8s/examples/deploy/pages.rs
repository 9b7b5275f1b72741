//! Documentation pages: what the programs report, and what to do about it.

use tec_k8s::signal::{Alert, Event, Metric};

use crate::Files;

const GENERATED: &str = "<!-- Written by `cargo xtask codegen` from tec-k8s/src/signal. -->\n";

pub(crate) fn reference() -> Files {
    Files::from([("metrics.md".to_owned(), metrics()), ("events.md".to_owned(), events())])
}

fn metrics() -> String {
    let head = format!(
        "{GENERATED}# Metrics\n\nEach program serves them at `/metrics` of its port 9090. No label names a \
         machine, a key or an image, so their number does not grow with the fleet. Alerts over them \
         are in [runbooks](../../runbooks/README.md).\n\n"
    );
    let rows = Metric::ALL.iter().map(|metric| {
        let labels: Vec<String> = metric.labels().iter().map(|l| format!("`{l}`")).collect();
        [
            format!("`{}`", metric.as_str()),
            metric.kind().as_str().to_owned(),
            labels.join(", "),
            metric.program().to_owned(),
            metric.help().to_owned(),
        ]
    });
    head + &table(["metric", "kind", "labels", "program", "meaning"], rows)
}

fn events() -> String {
    let head = format!(
        "{GENERATED}# Events\n\n`kubectl get events` shows them, and `kubectl describe` those of one \
         object.\n\n"
    );
    let rows = Event::ALL.iter().map(|event| {
        [
            format!("`{}`", event.as_str()),
            event.event_type().as_str().to_owned(),
            event.on().to_owned(),
            event.program().to_owned(),
            event.help().to_owned(),
        ]
    });
    head + &table(["reason", "type", "on", "program", "meaning"], rows)
}

pub(crate) fn runbooks() -> Files {
    let head =
        format!("{GENERATED}# Runbooks\n\nOne page for each alert of the PrometheusRule.\n\n");
    let rows = Alert::ALL.iter().map(|alert| {
        [
            format!("[{name}]({name}.md)", name = alert.name),
            alert.severity.as_str().to_owned(),
            alert.summary.to_owned(),
        ]
    });
    let index = head + &table(["alert", "severity", "meaning"], rows);
    let pages = Alert::ALL.iter().map(|alert| (format!("{}.md", alert.name), runbook(alert)));
    pages.chain([("README.md".to_owned(), index)]).collect()
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head = [head.map(str::to_owned), [(); N].map(|()| "---".to_owned())];
    head.into_iter().chain(rows).map(|cells| line(&cells)).collect::<Vec<_>>().concat()
}

fn runbook(alert: &Alert) -> String {
    let steps: Vec<String> =
        (1..).zip(alert.steps).map(|(number, step)| format!("{number}. {step}\n")).collect();
    format!(
        "{GENERATED}# {name}: {summary}\n\nSeverity: {severity}. Fires after {hold} of\n\n\
         ```promql\n{expression}\n```\n\n## What it means for nodes\n\n{impact}\n\n\
         ## What to do\n\n{steps}\n[All runbooks](README.md)\n",
        name = alert.name,
        summary = alert.summary,
        severity = alert.severity.as_str(),
        hold = alert.hold,
        expression = alert.expression(),
        impact = alert.impact,
        steps = steps.concat(),
    )
}
