//! `kubectl tec check`: checks what must be present, by category; each check has a page with help.

mod facts;
mod pods;
#[cfg(test)]
mod tests;

use k8s_openapi::api::apps::v1::Deployment;
use serde::Serialize;
use tec_k8s::api::ConditionKind;
use tec_k8s::render::Component;
use tec_support::exit::{FAILED, OK};

use self::facts::{Facts, Seen};
use super::access::Cluster;
use super::condition;
use super::image::is_live;
use crate::output::Output;

/// Page whose headings are the IDs of the checks.
const PAGE: &str = "docs/how-to/check-an-installation.md";
/// The oldest Kubernetes with selectable fields of custom resources by default.
const KUBERNETES: (u32, u32) = (1, 31);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Warning,
    Failed,
    /// This user may not read the object.
    Unknown,
}

#[derive(Debug, Serialize)]
struct Check {
    category: &'static str,
    id: &'static str,
    outcome: Outcome,
    message: String,
    hint: String,
}

#[derive(Debug, Serialize)]
struct Report {
    namespace: String,
    ok: bool,
    checks: Vec<Check>,
}

pub(crate) async fn check(cluster: &Cluster, output: &Output) -> anyhow::Result<u8> {
    let facts = Facts::gather(cluster).await?;
    let checks = checks(&facts);
    let report = Report {
        namespace: cluster.namespace.clone(),
        ok: checks.iter().all(|check| check.outcome != Outcome::Failed),
        checks,
    };
    output.print(&report, render)?;
    Ok(if report.ok { OK } else { FAILED })
}

fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![version(facts)];
    checks.extend(definitions(facts));
    checks.extend(programs(facts));
    checks.push(leader(facts));
    checks.extend(cluster_object(facts));
    checks.extend(secrets(facts));
    checks.extend(content(facts));
    checks
}

fn made(
    category: &'static str,
    id: &'static str,
    outcome: Outcome,
    message: impl Into<String>,
) -> Check {
    Check { category, id, outcome, message: message.into(), hint: format!("{PAGE}#{id}") }
}

fn failed_unless(is_so: bool) -> Outcome {
    if is_so { Outcome::Ok } else { Outcome::Failed }
}

fn warned_unless(is_so: bool) -> Outcome {
    if is_so { Outcome::Ok } else { Outcome::Warning }
}

/// Whether the object exists, if this could be determined.
fn presence<T>(seen: &Seen<T>) -> Outcome {
    match seen {
        Seen::There(_) => Outcome::Ok,
        Seen::Missing => Outcome::Failed,
        Seen::Hidden => Outcome::Unknown,
    }
}

fn version(facts: &Facts) -> Check {
    let (major, minor) = facts.version;
    let message = format!("the API server is Kubernetes {major}.{minor}");
    let outcome = failed_unless(facts.version >= KUBERNETES);
    made("kubernetes", "kubernetes-version", outcome, message)
}

fn definitions(facts: &Facts) -> impl Iterator<Item = Check> {
    facts.definitions.iter().map(|(name, seen)| {
        let outcome = match seen {
            Seen::There(established) => failed_unless(*established),
            other => presence(other),
        };
        made("definitions", "definitions", outcome, format!("{name} is served"))
    })
}

fn programs(facts: &Facts) -> impl Iterator<Item = Check> {
    facts.deployments.iter().map(|(component, seen)| {
        let name = component.deployment();
        let (outcome, message) = match seen {
            Seen::There(deployment) => {
                let (available, wanted) = replicas(deployment);
                let reasons = facts.reasons.get(component).into_iter().flatten();
                let mut message = format!("{name} has {available} of {wanted} replicas");
                if available >= wanted && is_behind(deployment) {
                    message += ", and a new version does not become available";
                }
                let message = reasons.fold(message, |message, reason| message + "; " + reason);
                let outcome = match available {
                    0 => Outcome::Failed,
                    _ => warned_unless(!is_behind(deployment)),
                };
                (outcome, message)
            }
            other => (presence(other), format!("the Deployment {name} is there")),
        };
        made("programs", heading(*component), outcome, message)
    })
}

fn heading(component: Component) -> &'static str {
    match component {
        Component::Operator => "operator",
        Component::Trustee => "trustee",
        Component::KeyBroker => "key-broker",
        _ => "servers",
    }
}

fn replicas(deployment: &Deployment) -> (i32, i32) {
    let status = deployment.status.as_ref();
    let available = status.and_then(|status| status.available_replicas);
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    (available.unwrap_or(0), wanted.unwrap_or(1))
}

/// Whether replicas are missing, or a new version does not become available.
fn is_behind(deployment: &Deployment) -> bool {
    let (available, wanted) = replicas(deployment);
    available < wanted || unavailable(deployment) > 0
}

fn unavailable(deployment: &Deployment) -> i32 {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.unavailable_replicas).unwrap_or(0)
}

fn leader(facts: &Facts) -> Check {
    let (outcome, message) = match &facts.leader {
        Seen::There(Some(holder)) => (Outcome::Ok, format!("{holder} leads")),
        Seen::There(None) => (Outcome::Failed, "no replica of the operator leads".to_owned()),
        other => (presence(other), "a replica of the operator leads".to_owned()),
    };
    made("programs", "leader", outcome, message)
}

fn cluster_object(facts: &Facts) -> Vec<Check> {
    let count = facts.clusters.len();
    let message = format!("there is one TrustedExecutionCluster, and there are {count}");
    let mut checks = vec![made("cluster", "one-cluster", failed_unless(count == 1), message)];
    for object in &facts.clusters {
        let conditions = object.status.as_ref().map(|status| &*status.conditions);
        for (id, kind, otherwise) in [
            ("cluster-ready", ConditionKind::Ready, Outcome::Failed),
            ("tls", ConditionKind::Tls, Outcome::Warning),
            ("trustee-address", ConditionKind::KnownTrusteeAddress, Outcome::Failed),
            ("certificate-authority", ConditionKind::CertificateAuthority, Outcome::Warning),
        ] {
            let found = condition(conditions.unwrap_or_default(), kind.as_str());
            // Absent if the admin supplies the certificates.
            if found.is_none() && kind == ConditionKind::CertificateAuthority {
                continue;
            }
            let is_so = found.is_some_and(|condition| condition.status == "True");
            let why = found.map_or_else(
                || "nobody has looked at it yet".to_owned(),
                |condition| format!("{} {}", condition.reason, condition.message),
            );
            let message = format!("{}: {why}", kind.as_str());
            let outcome = if is_so { Outcome::Ok } else { otherwise };
            checks.push(made("cluster", id, outcome, message));
        }
    }
    checks
}

fn secrets(facts: &Facts) -> impl Iterator<Item = Check> {
    facts.secrets.iter().map(|(name, seen)| {
        let message = format!("the Secret {name} is there");
        made("certificates", "certificates", presence(seen), message)
    })
}

fn content(facts: &Facts) -> [Check; 2] {
    let live = facts.images.iter().filter(|image| is_live(image)).count();
    let failing = facts.failing_machines.len();
    let images = format!("{live} of {} images are approved and known", facts.images.len());
    let machines = format!("{failing} machines cannot be brought to what they should be");
    [
        made("content", "images", warned_unless(live > 0), images),
        made("content", "machines", warned_unless(failing == 0), machines),
    ]
}

fn render(report: &Report) -> String {
    let mut lines = Vec::new();
    let mut category = "";
    for check in &report.checks {
        if check.category != category {
            category = check.category;
            lines.push(category.to_owned());
        }
        let mark = match check.outcome {
            Outcome::Ok => "ok",
            Outcome::Warning => "!!",
            Outcome::Failed => "NO",
            Outcome::Unknown => "??",
        };
        lines.push(format!(" {mark} {}", check.message));
        if check.outcome != Outcome::Ok {
            lines.push(format!("    see {}", check.hint));
        }
    }
    let verdict = if report.ok { "is in order" } else { "is not in order" };
    lines.push(format!("the installation in {} {verdict}", report.namespace));
    lines.join("\n")
}
