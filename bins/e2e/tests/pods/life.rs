//! What happens to pods, without any effect on machines.

use std::time::Duration;

use tec_e2e::pods::{BROKER, Charts, charts_of_today, until};

use crate::machine::One;
use crate::{all_available, ours};

/// One pod of each program is killed, then all pods: they come back, and the machine opens its disk.
pub(crate) fn pods_that_die_come_back(charts: &Charts, one: &mut One) {
    for name in ours() {
        let before = charts.pods(name).unwrap();
        charts.kubectl(&["delete", "pod", "--grace-period=1", before.first().unwrap()]).unwrap();
        one.opens();
        charts.available(name).unwrap();
        assert_ne!(charts.pods(name).unwrap(), before);
    }
    charts.kubectl(&["delete", "pods", "--all", "--grace-period=1"]).unwrap();
    all_available(charts, &ours());
    one.opens();
}

/// The only node is drained: a broker stays, held by a disruption budget, and nodes boot.
pub(crate) fn a_drain_leaves_a_key_broker(charts: &Charts, one: &mut One) {
    let selector = "--pod-selector=app.kubernetes.io/part-of=trusted-execution-clusters";
    let drain = ["drain", "n1", "--delete-emptydir-data", "--timeout=15s", selector];
    let drained = charts.everywhere(&drain);
    let said = format!("{:#}", drained.unwrap_err());
    assert!(said.contains("disruption budget"), "{said}");
    assert!(!charts.pods(BROKER).unwrap().is_empty());
    one.opens();
    charts.everywhere(&["uncordon", "n1"]).unwrap();
    all_available(charts, &ours());
    one.opens();
}

/// A version whose image does not exist replaces no working pod; Helm rolls back.
pub(crate) fn a_broken_key_broker_replaces_no_good_one(charts: &Charts, one: &mut One) {
    let before = charts.pods(BROKER).unwrap();
    charts.upgrade_with("images.keyBroker=registry.example/none:1").unwrap();
    until("a pod of the new version waits", Duration::from_mins(2), || {
        charts.pods(BROKER).unwrap().len() > before.len()
    })
    .unwrap();
    one.opens();
    until("the check names the image", Duration::from_mins(1), || {
        charts.tec(&["check"]).unwrap().contains("registry.example/none:1")
    })
    .unwrap();
    charts.roll_back().unwrap();
    all_available(charts, &ours());
    until("the pods are those of before", Duration::from_mins(1), || {
        charts.pods(BROKER).unwrap() == before
    })
    .unwrap();
    one.opens();
}

/// Without an API server nothing decides, so no key is released; once it is back, everything works.
pub(crate) fn an_api_server_that_was_away(charts: &Charts, one: &mut One) {
    charts.node().stop_api_server();
    one.is_refused("TEC-S503");
    charts.node().start_api_server().unwrap();
    all_available(charts, &ours());
    one.opens();
}

/// Without the chart, the machines and their keys still exist; once it is back, disks open.
pub(crate) fn an_uninstallation_keeps_machines(charts: &Charts, one: &mut One) {
    let id = one.id.to_string();
    let machine = format!("machine/machine-{id}");
    let key = ["get", "secret", &id, "--output=jsonpath={.metadata.uid} {.data}"];
    let before = charts.kubectl(&key).unwrap();
    let account = ["get", "serviceaccount", BROKER, "--output=jsonpath={.metadata.uid}"];
    let account_before = charts.kubectl(&account).unwrap();
    charts.uninstall().unwrap();
    charts.kubectl(&["get", &machine]).unwrap();
    assert_eq!(charts.kubectl(&key).unwrap(), before);
    // A new account with that name would invalidate the tokens of running pods.
    assert_eq!(charts.kubectl(&account).unwrap(), account_before);
    one.opens();
    charts.operator("install", &charts_of_today()).unwrap();
    all_available(charts, &ours());
    one.opens();
    assert_eq!(charts.kubectl(&key).unwrap(), before);
}
