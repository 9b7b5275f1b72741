//! A node that is tampered with while it runs: its own timer tells, and the operator taints its Node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tec_e2e::pods::{Charts, until};
use tec_e2e::systemd::{DropIns, System};

use crate::machine::One;
use crate::{all_available, ours};

/// Time between two attestations here; on nodes it is ten minutes.
const PERIOD: u32 = 10;
const LIMIT: Duration = Duration::from_mins(1);
const UNIT: &str = "tec-attest.service";

/// The machine is the node of this cluster. Everything between the register and the taint is what an
/// installation has: the timer under systemd, the key broker and the operator as pods, kubelet and API server.
pub(crate) fn a_tampered_node_is_tainted_until_it_boots_well(charts: &Charts, one: &mut One) {
    charts.upgrade_with("actOnNodes=true").unwrap();
    all_available(charts, &ours());
    let id = one.id.to_string();
    charts.tec(&["machine", "name", &id, "n1"]).unwrap();
    let label =
        format!("trusted-execution-clusters.io.node-restriction.kubernetes.io/machine={id}");
    charts.everywhere(&["label", "node", "n1", &label]).unwrap();
    set_policy(charts, &json!({"actions": ["Taint"]}));
    until("the operator may act", LIMIT, || condition(charts) == "Acting").unwrap();

    one.opens();
    let system = boot(one);
    until("the timer attested twice", LIMIT, || attested(&system, &id) >= 2).unwrap();
    assert!(!is_tainted(charts));

    one.machine.extend_unlisted().unwrap();
    let begin = Instant::now();
    until("the Node is tainted", LIMIT, || is_tainted(charts)).unwrap();
    println!("tainted {:.1} s after the change, period {PERIOD} s", begin.elapsed().as_secs_f64());
    let journal = system.journal(UNIT).unwrap();
    assert!(journal.contains("TEC-A407"), "{journal}");
    // A unit that fails still runs at its next time.
    let refusals = || system.journal(UNIT).unwrap().matches("TEC-A407").count();
    let before = refusals();
    until("the timer asks again", LIMIT, || refusals() > before).unwrap();
    assert!(is_tainted(charts));
    drop(system);

    one.opens();
    let system = boot(one);
    until("the taint is gone", LIMIT, || !is_tainted(charts)).unwrap();
    assert!(attested(&system, &id) > 0);
    drop(system);
    set_policy(charts, &Value::Null);
}

fn boot(one: &One) -> System {
    let mut drop_ins = DropIns::of(&one.machine);
    // An empty value forgets the times of the unit.
    drop_ins.timer = ["OnBootSec=", "OnUnitActiveSec=", "OnActiveSec=1", "AccuracySec=1"]
        .map(str::to_owned)
        .to_vec();
    drop_ins.timer.extend([format!("OnUnitActiveSec={PERIOD}"), "RandomizedDelaySec=0".to_owned()]);
    let directory = one.machine.directory();
    let system = System::boot(&one.machine, directory, directory, &drop_ins).unwrap();
    system.start("tec-attest.timer").unwrap();
    system
}

fn attested(system: &System, id: &str) -> usize {
    system.journal(UNIT).unwrap().matches(&format!("machine {id} attested")).count()
}

fn set_policy(charts: &Charts, policy: &Value) {
    let patch = json!({"spec": {"onUntrusted": policy}}).to_string();
    let object = "trustedexecutioncluster/cluster";
    charts.kubectl(&["patch", object, "--type=merge", "--patch", &patch]).unwrap();
}

fn condition(charts: &Charts) -> String {
    let path = "--output=jsonpath={.status.conditions[?(@.type==\"ActsOnUntrusted\")].reason}";
    charts.kubectl(&["get", "trustedexecutioncluster/cluster", path]).unwrap()
}

fn is_tainted(charts: &Charts) -> bool {
    let taints = ["get", "node", "n1", "--output=jsonpath={.spec.taints}"];
    charts.everywhere(&taints).unwrap().contains("trusted-execution-clusters.io/untrusted")
}
