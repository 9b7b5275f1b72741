use k8s_openapi::api::apps::v1::{DeploymentSpec, DeploymentStatus};
use tec_k8s::api::{TrustedExecutionCluster, TrustedExecutionClusterSpec};

use super::*;

fn outcome_of(facts: &Facts, id: &str) -> Outcome {
    let checks = checks(facts);
    let check = checks.iter().find(|check| check.id == id);
    check.unwrap().outcome
}

fn with_operator(available: i32) -> Facts {
    let deployment = Deployment {
        spec: Some(DeploymentSpec { replicas: Some(2), ..DeploymentSpec::default() }),
        status: Some(DeploymentStatus {
            available_replicas: Some(available),
            ..DeploymentStatus::default()
        }),
        ..Deployment::default()
    };
    let mut facts = Facts::default();
    let seen = Seen::There(deployment);
    facts.deployments.insert(Component::Operator, seen);
    facts
}

#[test]
fn an_empty_cluster_fails_and_says_where_to_read_on() {
    let facts = Facts::default();
    assert_eq!(outcome_of(&facts, "kubernetes-version"), Outcome::Failed);
    assert_eq!(outcome_of(&facts, "one-cluster"), Outcome::Failed);
    let report = Report { namespace: "ns".to_owned(), ok: false, checks: checks(&facts) };
    assert!(render(&report).contains("check-an-installation.md#one-cluster"));
}

#[test]
fn a_replica_that_is_missing_is_a_warning_and_none_at_all_a_failure() {
    assert_eq!(outcome_of(&with_operator(2), "operator"), Outcome::Ok);
    assert_eq!(outcome_of(&with_operator(1), "operator"), Outcome::Warning);
    assert_eq!(outcome_of(&with_operator(0), "operator"), Outcome::Failed);
}

#[test]
fn a_new_version_that_does_not_become_available_is_a_warning() {
    let mut facts = with_operator(2);
    let Some(Seen::There(deployment)) = facts.deployments.get_mut(&Component::Operator) else {
        panic!("there is one");
    };
    deployment.status.as_mut().unwrap().unavailable_replicas = Some(1);
    assert_eq!(outcome_of(&facts, "operator"), Outcome::Warning);
}

#[test]
fn what_a_user_may_not_see_is_no_failure() {
    let facts = Facts { leader: Seen::Hidden, ..Facts::default() };
    assert_eq!(outcome_of(&facts, "leader"), Outcome::Unknown);
}

/// A cluster object with a condition about its CA.
fn with_ca(status: &str, reason: &str, message: &str) -> TrustedExecutionCluster {
    let mut object = TrustedExecutionCluster::new("tec", TrustedExecutionClusterSpec::default());
    let condition = serde_json::json!({
        "type": "CertificateAuthority", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-24T00:00:00Z",
    });
    let status = serde_json::json!({ "conditions": [condition] });
    object.status = Some(serde_json::from_value(status).unwrap());
    object
}

#[test]
fn a_ca_that_waits_for_machines_is_a_warning_that_names_them_and_the_commands() {
    let said = "TEC-T409: 1 of 2 machines: worker-1 (id). kubectl tec machine retire <machine>";
    let mut facts = Facts::default();
    facts.clusters.push(with_ca("False", "AuthorityHeldBack", said));
    assert_eq!(outcome_of(&facts, "certificate-authority"), Outcome::Warning);
    let report = Report { namespace: "ns".to_owned(), ok: true, checks: checks(&facts) };
    assert!(render(&report).contains(said));
    facts.clusters = vec![with_ca("True", "AuthorityCurrent", "")];
    assert_eq!(outcome_of(&facts, "certificate-authority"), Outcome::Ok);
    let brought = TrustedExecutionCluster::new("tec", TrustedExecutionClusterSpec::default());
    facts.clusters = vec![brought];
    assert!(checks(&facts).iter().all(|check| check.id != "certificate-authority"));
}

#[test]
fn every_check_has_its_heading_on_the_page() {
    let page = include_str!("../../../../../docs/how-to/check-an-installation.md");
    let mut facts = with_operator(1);
    for component in Component::ALL {
        facts.deployments.insert(component, Seen::Missing);
    }
    facts.definitions.insert("machines".to_owned(), Seen::Missing);
    facts.secrets.insert("tls".to_owned(), Seen::Missing);
    facts.clusters.push(with_ca("True", "AuthorityCurrent", ""));
    for check in checks(&facts) {
        let heading = format!("\n## {}\n", check.id);
        assert!(page.contains(&heading), "{}", check.id);
    }
}
