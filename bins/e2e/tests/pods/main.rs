//! The charts on a Kubernetes node with real pods. One node for all tests, which run one after another.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]
#![expect(clippy::print_stdout, reason = "how long a step took is shown with the test's output")]

mod accounts;
mod life;
mod machine;
mod page;
mod signals;
mod watched;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tec_e2e::kube::Prometheus;
use tec_e2e::packages::directory;
use tec_e2e::pods::{BROKER, Charts, OPERATOR, Registry, SERVERS, charts_of_today, until};
use tec_e2e::settings::cache;
use tec_k8s::render::Images;

use self::machine::Fleet;

/// All chart tests, from the installation with default values to the removal.
#[test]
fn the_charts_with_default_values_on_a_real_node() {
    let charts = Charts::begin().unwrap();
    charts.namespace().unwrap();
    charts.charts("install", &charts_before(&charts)).unwrap();
    a_stranger_pod_that_is_not_restricted_is_refused(&charts);
    charts.charts("upgrade", &charts_of_today()).unwrap();
    let upgraded = Instant::now();
    charts.cluster("Trustee").unwrap();
    all_available(&charts, &SERVERS);
    an_image_that_cannot_be_pulled_is_named_by_the_check(&charts);
    charts.cluster("Builtin").unwrap();
    all_available(&charts, &ours());
    nothing_is_forbidden(&charts, upgraded.elapsed());
    charts.expose().unwrap();
    let registry = Registry::start(&charts).unwrap();
    let image = registry.push_tree(&charts, &image_root()).unwrap();
    let fleet = Fleet::begin(&charts, &image);
    let mut one = fleet.first_boot(&charts, "one");
    one.opens();
    life::pods_that_die_come_back(&charts, &mut one);
    life::a_drain_leaves_a_key_broker(&charts, &mut one);
    life::a_broken_key_broker_replaces_no_good_one(&charts, &mut one);
    life::an_api_server_that_was_away(&charts, &mut one);
    let mut prometheus = Prometheus::default();
    signals::nothing_fires(&charts, &mut prometheus);
    one.a_changed_kernel_is_refused_and_named(&charts);
    signals::scrape(&charts, &mut prometheus);
    signals::a_refusal_fires(&prometheus);
    watched::a_tampered_node_is_tainted_until_it_boots_well(&charts, &mut one);
    accounts::no_account_may_do_what_it_must_not(&charts);
    life::an_uninstallation_keeps_machines(&charts, &mut one);
    charts.remove_everything().unwrap();
    page::every_command_prints_what_the_page_says(&charts, &image);
}

/// Debian's boot files.
fn image_root() -> PathBuf {
    cache().unwrap().join("images/debian/current")
}

/// Deployments of a cluster with the built-in key broker.
fn ours() -> Vec<&'static str> {
    [&[OPERATOR, BROKER][..], &SERVERS].concat()
}

fn all_available(charts: &Charts, names: &[&str]) {
    for name in names {
        charts.available(name).unwrap();
    }
}

/// Since the chart of today grants its rights, the operator lacks none.
fn nothing_is_forbidden(charts: &Charts, since: Duration) {
    let since = format!("--since={}s", since.as_secs());
    let log = charts.kubectl(&["logs", &format!("deployment/{OPERATOR}"), &since]).unwrap();
    assert!(!log.contains("forbidden"), "{log}");
}

/// The charts as of the commit before HEAD, or the current ones if there is no such history. They deploy the
/// current images, whose names and tags are the same.
fn charts_before(charts: &Charts) -> PathBuf {
    let into = charts.files().join("before");
    std::fs::create_dir(&into).unwrap();
    let place = "bins/operator/deploy/helm";
    let script = format!("git archive HEAD~1 {place} | tar -x -C \"$0\"");
    let mut shell = Command::new("bash");
    shell
        .args(["-o", "pipefail", "-c", &script])
        .arg(&into)
        .current_dir(directory().join("../../.."));
    if shell.status().unwrap().success() && asks_for_a_registry(&into.join(place)) {
        return into.join(place);
    }
    let why = "NOT RUN needs history: an upgrade from the charts of the commit before";
    // Bypasses the capture of output from passing tests: `cargo xtask test` counts it.
    let mut aloud = std::io::stderr();
    writeln!(aloud, "{why}").unwrap();
    charts_of_today()
}

/// Charts that name images of another registry and of other names cannot run here.
fn asks_for_a_registry(charts: &Path) -> bool {
    let values = std::fs::read_to_string(charts.join("tec-operator/values.yaml"));
    values.is_ok_and(|values| values.lines().any(|line| line.starts_with("registry:")))
}

/// The namespace enforces the Pod Security Standard "restricted", which all our pods satisfy.
fn a_stranger_pod_that_is_not_restricted_is_refused(charts: &Charts) {
    let run = ["run", "stranger", "--image=registry.k8s.io/pause:3.10", "--privileged"];
    let refused = charts.kubectl(&run).unwrap_err();
    assert!(format!("{refused:#}").contains("violates PodSecurity"), "{refused:#}");
}

/// Trustee is a third-party project, and its image is not on this node.
fn an_image_that_cannot_be_pulled_is_named_by_the_check(charts: &Charts) {
    let image = Images::default().trustee;
    until("the check names the image", Duration::from_mins(1), || {
        let said = charts.tec(&["check"]).unwrap();
        said.contains("kbs: ") && said.contains("ImagePull") && said.contains(&image)
    })
    .unwrap();
}
