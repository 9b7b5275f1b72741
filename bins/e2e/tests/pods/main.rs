//! The charts on a Kubernetes node with real pods. One node for all tests, one after another.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's own tools may fail the test"
)]

mod stage;

use std::time::Duration;

use self::stage::{NAMESPACE, OPERATOR, SERVERS, Stage};

/// Everything of the chart, from its installation with default values to the end.
#[test]
fn the_charts_with_default_values_on_a_real_node() {
    let stage = Stage::begin();
    stage.install();
    a_stranger_pod_that_is_not_restricted_is_refused(&stage);
    stage.apply_cluster();
    for server in SERVERS {
        stage.available(server);
    }
    pods_that_die_come_back(&stage);
}

/// The namespace enforces the Pod Security Standard "restricted", and all of ours live with it.
fn a_stranger_pod_that_is_not_restricted_is_refused(stage: &Stage) {
    let run = ["run", "stranger", "--image=registry.k8s.io/pause:3.10", "--privileged"];
    let refused = stage.kubectl(&run).unwrap_err();
    assert!(format!("{refused:#}").contains("violates PodSecurity"), "{refused:#}");
}

fn pods_that_die_come_back(stage: &Stage) {
    for name in [&[OPERATOR][..], &SERVERS].concat() {
        let before = stage.pods(name);
        let kill = ["delete", "pod", "--grace-period=1", before.first().unwrap()];
        stage.kubectl(&kill).unwrap();
        stage.available(name);
        assert_ne!(stage.pods(name), before);
    }
    stage.kubectl(&["delete", "pods", "--all", "--grace-period=1"]).unwrap();
    for name in [&[OPERATOR][..], &SERVERS].concat() {
        stage.available(name);
    }
    stage.within("all are ready", Duration::from_mins(1), || {
        let machines = stage.kubectl(&["get", "machines"]);
        machines.is_ok()
    });
    assert!(stage.kubectl(&["get", "namespace", NAMESPACE]).is_ok());
}
