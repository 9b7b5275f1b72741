//! `kubectl tec` and `tec` are one program over the same ports: equal contents read the same, and changes
//! reach the objects.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tec_core::ak::{ClockReading, TpmClock as Reading};
use tec_core::explain::Gate;
use tec_core::id::ResourcePath;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::pcr::PcrIndex;
use tec_core::port::{
    AkRegistry, AttemptLog, AuditAction, AuditEvent, Clock as _, ClockLog as _, ImageRegistry,
    MachineRegistry, SecretStore, UnclaimedLimit,
};
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_e2e::settings::own_program;
use tec_k8s::api::{
    ApprovedImage, ApprovedImageSpec, MACHINE_LABEL, TpmClock, TrustedExecutionCluster,
};
use tec_k8s::client::{AttemptRecords, KubeRegistry};
use tec_support::{SystemClock, SystemEntropy};

use crate::packages::Plugin;

/// A plugin, and the namespace as a registry that contains machine 1.
async fn world() -> (Plugin, KubeRegistry, String) {
    let plugin = Plugin::start().await;
    let admin = plugin.plane.admin().unwrap();
    let registry = KubeRegistry::new(admin, &plugin.namespace, Arc::new(SystemClock));
    let id = sample::machine_id(1);
    let machine = Known::unclaimed(id, RegisteredBy::Admin, SystemClock.now());
    let machines: &dyn MachineRegistry = &registry;
    machines.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    (plugin, registry, id.to_string())
}

fn text(plugin: &Plugin, arguments: &[&str]) -> String {
    printed("table", plugin, arguments)
}

fn printed(format: &str, plugin: &Plugin, arguments: &[&str]) -> String {
    let output = plugin.command(format).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_explained_by_its_id_and_listed() {
    let (plugin, registry, machine) = world().await;
    let attempt = sample::attempt(7, Some(1));
    AttemptRecords::new(registry.clone()).record(&attempt).await.unwrap();
    let id = attempt.id.to_string();
    let explained = plugin.json(&["explain", &id]);
    assert_eq!(explained, serde_json::to_value(&attempt).unwrap());
    let listed = plugin.json(&["audit", "attempts", "--machine", &machine]);
    assert_eq!(listed, json!([explained]));
    plugin.json(&["machine", "name", &machine, "worker-1"]);
    for name in [["audit", "attempts"], ["audit", "list"], ["ak", "list"]] {
        let by = |machine: &str| plugin.json(&[&name[..], &["--machine", machine]].concat());
        assert_eq!(by("worker-1"), by(&machine), "{name:?}");
        let unknown = plugin.run(&[&name[..], &["--machine", "no-such-node"]].concat());
        assert!(String::from_utf8_lossy(&unknown.stderr).contains("TEC-A403"), "{name:?}");
    }
    assert_eq!(plugin.json(&["audit", "attempts", "--machine", "worker-1"]), json!([explained]));
    let others = sample::machine_id(2).to_string();
    assert_eq!(plugin.json(&["audit", "attempts", "--machine", &others]), json!([]));
    let unknown = sample::attempt(8, None).id.to_string();
    let refused = plugin.run(&["explain", &unknown]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("TEC-A403"));
}

/// What an anchor of either kind is given.
async fn fill<T>(ports: &T)
where
    T: MachineRegistry + AkRegistry + ImageRegistry,
{
    let at = sample::time(1);
    let machine = Known::unclaimed(sample::machine_id(2), RegisteredBy::FirstBoot, at);
    MachineRegistry::create(ports, &machine, UnclaimedLimit::Unlimited).await.unwrap();
    let record = sample::ak(2, 2);
    let line = AuditEvent::new(at, AuditAction::AkSubmitted, Some(machine.id), "");
    AkRegistry::submit(ports, &record, &line).await.unwrap();
    ImageRegistry::put(ports, &sample::image(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_contents_read_the_same_in_a_directory_and_in_a_namespace() {
    let plugin = Plugin::start().await;
    let admin = plugin.plane.admin().unwrap();
    let registry = KubeRegistry::new(admin, &plugin.namespace, Arc::new(SystemClock));
    let directory = tempfile::tempdir().unwrap();
    let state_dir = directory.path().join("state");
    let store = Store::open(&state_dir, &SystemEntropy).unwrap();
    fill(&registry).await;
    fill(&store).await;
    // The operator commits what was approved.
    let committed = json!({ "status": { "conditions": [{
        "type": "Committed", "status": "True", "reason": "Committed", "message": "",
        "lastTransitionTime": "2026-11-24T00:00:00Z",
    }] } });
    let images = plugin.api::<ApprovedImage>();
    let name = sample::image(1).name.to_string();
    images.patch_status(&name, &PatchParams::default(), &Patch::Merge(committed)).await.unwrap();
    let tec = |arguments: &[&str]| -> Value {
        let mut tec = std::process::Command::new(own_program("tec").unwrap());
        tec.arg("--state-dir").arg(&state_dir).args(["-o", "json"]).args(arguments);
        serde_json::from_slice(&tec.output().unwrap().stdout).unwrap()
    };
    let machine = sample::machine_id(2).to_string();
    let lists: [&[&str]; 5] = [
        &["machine", "list"],
        &["ak", "list", "--machine", &machine],
        &["image", "list"],
        &["platform", "list"],
        &["audit", "attempts"],
    ];
    for list in lists.iter().take(3) {
        assert!(!tec(list).as_array().unwrap().is_empty(), "{list:?}");
    }
    for same in lists {
        let mut there = plugin.json(same);
        if same[0] == "machine" {
            // What the operator has not done yet.
            there[0].as_object_mut().unwrap().remove("unmet");
        }
        assert_eq!(there, tec(same), "{same:?}");
    }
    let attempt = sample::attempt(7, Some(2));
    AttemptRecords::new(registry.clone()).record(&attempt).await.unwrap();
    AttemptLog::record(&store, &attempt).await.unwrap();
    for same in [&["explain"][..], &["explain", &machine], &["audit", "attempts"]] {
        assert_eq!(plugin.json(same), tec(same), "{same:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_boot_is_approved_as_it_was() {
    let (plugin, registry, _) = world().await;
    plugin.make_cluster().await;
    let clusters = plugin.api::<TrustedExecutionCluster>();
    let said = Patch::Merge(json!({ "status": { "pins": "Predicted" } }));
    clusters.patch_status("tec", &PatchParams::default(), &said).await.unwrap();
    let mut refused = sample::attempt(7, Some(1));
    refused.ladder.fail(Gate::Pcrs, "PCR 4 differs");
    refused.measured = sample::image(1).expected;
    AttemptRecords::new(registry.clone()).record(&refused).await.unwrap();
    let (id, machine) = (refused.id.to_string(), sample::machine_id(1).to_string());
    let approve = ["image", "approve", "as-booted", "--accept-unpinned", "--from-attempt"];
    let approve =
        |attempt: &str, flag: &str| plugin.json(&[&approve[..], &[attempt, flag]].concat());
    let planned = approve(&id, "--dry-run");
    assert!(!planned["review"]["events"].as_array().unwrap().is_empty(), "{planned}");
    assert!(ImageRegistry::list(&registry).await.unwrap().is_empty(), "nothing was changed");
    approve(&machine, "--yes");
    let image =
        ImageRegistry::find(&registry, &"as-booted".parse().unwrap()).await.unwrap().unwrap();
    assert!(image.expected.pcr(PcrIndex::BOOT_MANAGER).is_some(), "{image:?}");
    assert!(image.reference.contains(&id), "{image:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_readmitted_tpm_has_no_clock_and_a_line_says_so() {
    let (plugin, registry, machine) = world().await;
    let at = sample::time(1);
    let clock: Reading = serde_json::from_value(json!({
        "clock_ms": 5, "reset_count": 1, "restart_count": 0, "safe": true,
    }))
    .unwrap();
    let reading = ClockReading::new(clock, at, at);
    let key = sample::public_key(1).fingerprint();
    registry.advance(&key, sample::machine_id(1), &reading).await.unwrap();
    let clocks = plugin.api::<TpmClock>();
    let count = async || clocks.list(&ListParams::default()).await.unwrap().items.len();
    let planned = plugin.json(&["machine", "readmit", &machine, "--dry-run"]);
    assert_eq!((planned["dry_run"].as_bool(), count().await), (Some(true), 1));
    let done = plugin.json(&["machine", "readmit", &machine]);
    assert_eq!((done["dry_run"].as_bool(), count().await), (Some(false), 0));
    let again = plugin.run(&["machine", "readmit", &machine]);
    assert_eq!(again.status.code(), Some(1));
    let lines = plugin.json(&["audit", "list", "--machine", &machine]);
    let last = lines.as_array().unwrap().first().unwrap().clone();
    assert_eq!(last["event"]["action"], "tpm-readmitted", "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_keys_of_a_machine_are_printed_and_their_audit_lines_listed() {
    let (plugin, registry, machine) = world().await;
    let none = plugin.run(&["machine", "recovery-key", &machine]);
    assert_eq!(none.status.code(), Some(1));
    let sealed = json!({
        "protected": "e30", "encrypted_key": "AA", "iv": "AA", "ciphertext": "AA", "tag": "AA",
    });
    let path = ResourcePath::recovery(&sample::machine_id(1), 1);
    let action = AuditAction::RecoveryEscrowed;
    let line =
        AuditEvent::new(SystemClock.now(), action, Some(sample::machine_id(1)), path.as_str());
    let secrets: &dyn SecretStore = &registry;
    let bytes = SecretBytes::new(sealed.to_string().into_bytes());
    secrets.put_new(&path, &bytes, &line).await.unwrap();
    let printed = plugin.json(&["machine", "recovery-key", &machine]);
    assert_eq!(printed[0]["number"], 1);
    assert_eq!(printed[0]["sealed"]["ciphertext"], sealed["ciphertext"]);
    let lines = plugin.json(&["audit", "list", "--machine", &machine]);
    assert_eq!(lines[0]["event"]["action"], "recovery-escrowed", "{lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_shown_with_components_pins_and_machines() {
    let (plugin, _registry, machine) = world().await;
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/os@sha256:{:064x}", 1);
    let images = plugin.api::<ApprovedImage>();
    images.create(&PostParams::default(), &ApprovedImage::new("44", spec)).await.unwrap();
    let known = sample::image(1).expected.pcrs;
    let status = |status: Value| Patch::Merge(json!({ "status": status }));
    let params = PatchParams::default();
    let pcrs = status(json!({"pcrs": known, "pinnedPcrs": [4]}));
    images.patch_status("44", &params, &pcrs).await.unwrap();
    let machines = plugin.api::<tec_k8s::api::Machine>();
    let name = tec_k8s::api::Machine::name_of(&sample::machine_id(1));
    machines.patch_status(&name, &params, &status(json!({"image": "44"}))).await.unwrap();
    let shown = text(&plugin, &["image", "show", "44"]);
    let component = &known[0].events[0].id;
    let machine = format!("machine {machine}: last 44");
    for part in [component, "PCR  4 = ", "held back", &machine] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let shown = plugin.json(&["image", "show", "44"]);
    assert_eq!(shown["last_booted_by"][0]["booted"], "44", "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_names_its_machine_for_people_and_no_command_takes_its_word() {
    let (plugin, _registry, machine) = world().await;
    let nodes: Api<Node> = Api::all(plugin.plane.admin().unwrap());
    let claim = async |name: &str| {
        let node = json!({"metadata": {"name": name, "labels": {MACHINE_LABEL: machine}}});
        let node: Node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    };
    claim("worker-1").await;
    let booted = json!({"lastBoot": "2026-11-24T01:00:00Z", "lastAttestation": {
        "at": "2026-11-24T02:00:00Z", "code": "TEC-A412",
    }});
    let machines = plugin.api::<tec_k8s::api::Machine>();
    let name = tec_k8s::api::Machine::name_of(&sample::machine_id(1));
    let patch = Patch::Merge(json!({ "status": booted }));
    machines.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    for part in ["(worker-1)", "refused TEC-A412"] {
        let listed = printed("wide", &plugin, &["machine", "list"]);
        assert!(listed.contains(part), "{part} in {listed}");
    }
    assert!(text(&plugin, &["machine", "show", &machine]).contains("(worker-1)"));
    // A kubelet can claim anything about its own Node.
    for verb in ["show", "release", "revoke"] {
        let refused = plugin.run(&["machine", verb, "worker-1"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("TEC-A403"), "{verb}");
    }
    claim("worker-2").await;
    assert!(text(&plugin, &["machine", "list"]).contains("(2 Nodes claim it)"));
    plugin.json(&["machine", "name", &machine, "worker-9"]);
    let listed = printed("wide", &plugin, &["machine", "list"]);
    assert!(listed.contains("worker-9") && !listed.contains('('), "{listed}");
}
