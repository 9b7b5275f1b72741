//! The services' chart on a Kubernetes node with real pods. There is one node, shared with the other charts,
//! so these tests run one after another.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

mod raft;

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tec_e2e::packages;
use tec_e2e::pods::{APPS, PLATFORM, Platform, until};

/// Longest time for a platform to start from nothing, on a node that has the images.
const UP: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_mins(2);

static NODE: Mutex<()> = Mutex::new(());

#[test]
fn the_chart_with_default_values_and_a_component_that_publishes() {
    let _one_node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
    let platform = Platform::begin().unwrap();
    let begin = Instant::now();
    platform.install(&[]).unwrap();
    for set in ["statefulset/vault", "statefulset/nats"] {
        platform.ready(PLATFORM, set, UP).unwrap();
    }
    let took = begin.elapsed();
    assert!(took < UP, "the pods were ready after {took:?}");
    tell(&format!("all pods ready after {:.1} s", took.as_secs_f32()));
    nothing_was_restarted(&platform, PLATFORM);
    an_admin_is_shown_a_password(&platform);
    component(&platform);
    a_vault_that_dies_comes_back_and_components_get_identities_again(&platform);
}

/// Bypasses the capture of output from passing tests.
fn tell(line: &str) {
    let mut aloud = std::io::stderr();
    writeln!(aloud, "{line}").unwrap();
}

/// The password of an OpenSearch user, as requested by an admin.
fn password(platform: &Platform, pod: &str, user: &str) -> anyhow::Result<String> {
    let exec = ["--namespace", PLATFORM, "exec", pod, "--container=controller", "--"];
    platform.kubectl(&[&exec[..], &["services-bootstrap", "password", user]].concat())
}

fn an_admin_is_shown_a_password(platform: &Platform) {
    let show = |user| password(platform, "vault-0", user);
    let [admin, viewer] = ["admin", "viewer"].map(|user| show(user).unwrap());
    assert_eq!([admin.trim_end().len(), viewer.trim_end().len()], [64, 64]);
    assert_ne!(admin, viewer);
    show("nobody").unwrap_err();
}

#[test]
fn three_pods_of_the_vault_with_certificates_of_the_chart() {
    let _one_node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
    let platform = Platform::begin().unwrap();
    platform.install(&["vault.replicas=3"]).unwrap();
    platform.ready(PLATFORM, "statefulset/nats", SOON).unwrap();
    raft::each_pod_is_killed_and_the_others_serve_what_it_knew(&platform);
    component(&platform);
}

fn component(platform: &Platform) {
    platform.share_authorities().unwrap();
    let file = platform.files().join("component.yaml");
    std::fs::write(&file, packages::component().unwrap()).unwrap();
    platform.apply(APPS, &file).unwrap();
    platform.ready(APPS, "deployment/hello", SOON).unwrap();
    hears_itself(platform);
    nothing_was_restarted(platform, APPS);
}

/// A current pod publishes, and reads from NATS what it published.
fn hears_itself(platform: &Platform) {
    let log = ["--namespace", APPS, "logs", "deployment/hello", "--container=component"];
    until("a message comes back", SOON, || {
        let said = platform.kubectl(&log).unwrap_or_default();
        said.contains("evt.apps.hello.greeting hello 1\n")
    })
    .unwrap();
}

fn a_vault_that_dies_comes_back_and_components_get_identities_again(platform: &Platform) {
    let pod = ["--namespace", PLATFORM, "delete", "pod", "vault-0", "--grace-period=0", "--force"];
    platform.kubectl(&pod).unwrap();
    platform.ready(PLATFORM, "statefulset/vault", SOON).unwrap();
    let again = ["--namespace", APPS, "rollout", "restart", "deployment/hello"];
    platform.kubectl(&again).unwrap();
    platform.ready(APPS, "deployment/hello", SOON).unwrap();
    hears_itself(platform);
}

fn nothing_was_restarted(platform: &Platform, namespace: &str) {
    let pods = ["--namespace", namespace, "get", "pods", "--output=json"];
    let pods: Value = serde_json::from_str(&platform.kubectl(&pods).unwrap()).unwrap();
    let items = pods.get("items").and_then(Value::as_array).unwrap();
    assert!(!items.is_empty());
    let statuses = ["/status/containerStatuses", "/status/initContainerStatuses"];
    for status in items.iter().flat_map(|pod| statuses.map(|place| pod.pointer(place))) {
        for container in status.and_then(Value::as_array).into_iter().flatten() {
            assert_eq!(container.get("restartCount"), Some(&Value::from(0)), "{container}");
        }
    }
}
