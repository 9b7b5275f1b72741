//! The charts on a Kubernetes node with real pods. One node for all tests, one after another.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's own tools may fail the test")]

mod stage;

use std::time::Duration;

use tec_e2e::pods::until;
use tec_k8s::render::Images;

use self::stage::{OPERATOR, SERVERS, Stage};

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
    an_image_that_cannot_be_pulled_is_named_by_the_check(&stage);
    pods_that_die_come_back(&stage);
}

/// The namespace enforces the Pod Security Standard "restricted", and all of ours live with it.
fn a_stranger_pod_that_is_not_restricted_is_refused(stage: &Stage) {
    let run = ["run", "stranger", "--image=registry.k8s.io/pause:3.10", "--privileged"];
    let refused = stage.kubectl(&run).unwrap_err();
    assert!(format!("{refused:#}").contains("violates PodSecurity"), "{refused:#}");
}

/// The key broker is another project's, and its image is not on this node.
fn an_image_that_cannot_be_pulled_is_named_by_the_check(stage: &Stage) {
    let image = Images::default().trustee;
    until("the check names the image", Duration::from_mins(1), || {
        let said = stage.tec(&["check"]);
        said.contains("kbs: ") && said.contains("ImagePull") && said.contains(&image)
    })
    .unwrap();
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
}
