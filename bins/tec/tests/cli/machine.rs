//! `tec machine` and `tec ak` as processes.

use tec_core::ak::{ClockReading, TpmClock};
use tec_core::attest::Attempt;
use tec_core::explain::Gate;
use tec_core::id::ResourcePath;
use tec_core::port::{
    AkRegistry as _, AttemptLog, ClockLog as _, ClockOutcome, MachineRegistry as _, SecretStore,
    UnclaimedLimit,
};
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::SystemEntropy;
use tempfile::TempDir;

use crate::world::{json, refused, str, text};

#[test]
fn a_tpm_is_readmitted_once_for_each_time_that_it_attested() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let (machine, key) = (sample::machine_id(1), sample::ak(1, 1).fingerprint());
    let attest = |reset_count| {
        let clock = TpmClock { clock_ms: 1, reset_count, restart_count: 0, safe: true };
        let reading = ClockReading::new(clock, sample::time(1), sample::time(1));
        let store = Store::open(&directory, &SystemEntropy).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let advanced = store.advance(&key, machine, &reading);
        runtime.block_on(advanced).unwrap()
    };
    assert_eq!(attest(9), ClockOutcome::Follows);
    assert!(matches!(attest(8), ClockOutcome::Refused(_)));

    let (state, id) = (str(&directory), machine.to_string());
    let readmit = ["--state-dir", state, "machine", "readmit", &id];
    assert_eq!(json(&readmit)["machines"], serde_json::json!([id]));
    refused(&readmit, 1, "error TEC-A403");
    let audit = json(&["--state-dir", state, "audit", "list"]);
    let lines = audit.as_array().unwrap();
    assert_eq!(lines.len(), 1, "{audit}");
    assert!(lines[0].to_string().contains("tpm-readmitted"), "{audit}");
    assert_eq!(attest(8), ClockOutcome::Follows);
}

#[test]
fn a_machine_that_gets_its_key_after_the_initramfs_is_shown_as_such() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let (state, id) = (str(&directory), sample::machine_id(1).to_string());
    let show = ["--state-dir", state, "machine", "show", &id];
    let shown = || (json(&show)["key_in_initramfs_only"].clone(), text(&show));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let with = |call: &dyn Fn(&Store)| call(&Store::open(&directory, &SystemEntropy).unwrap());
    with(&|store| {
        let (machine, key) = (sample::machine(1), sample::approved_ak(1, 1));
        runtime.block_on(store.create(&machine, UnclaimedLimit::Unlimited)).unwrap();
        runtime.block_on(store.bind(&key, &sample::line())).unwrap();
    });
    let attest = |reset_count, is_initramfs| {
        let clock = TpmClock { clock_ms: 1, reset_count, restart_count: 0, safe: true };
        let reading = ClockReading::new(clock, sample::time(1), sample::time(1));
        let reading = reading.with_initramfs(is_initramfs);
        let (machine, key) = (sample::machine_id(1), sample::ak(1, 1).fingerprint());
        with(&|store| {
            let advanced = runtime.block_on(store.advance(&key, machine, &reading)).unwrap();
            assert_eq!(advanced, ClockOutcome::Follows);
        });
    };
    let line = "the disk key is also released after the initramfs";
    let (only, said) = shown();
    assert!(only.is_null() && !said.contains(line), "nothing is known yet: {said}");
    for (reset_count, is_initramfs, is_bound) in [(1, true, false), (2, false, true)] {
        attest(reset_count, is_initramfs);
        let (only, said) = shown();
        assert_eq!((only, said.contains(line)), (is_bound.into(), !is_bound), "{said}");
    }
}

#[test]
fn a_machine_is_quarantined_released_and_retired_for_good() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let store = Store::open(&directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let machine = sample::machine(1);
    let created = store.create(&machine, UnclaimedLimit::Unlimited);
    runtime.block_on(created).unwrap();
    drop(store);
    let (state, id) = (str(&directory), machine.id.to_string());
    let verb = |verb: &str| json(&["--state-dir", state, "machine", verb, &id]);
    let stands = || verb("show")["machine"]["state"].as_str().unwrap().to_owned();
    json(&["--state-dir", state, "machine", "quarantine", &id, "--dry-run"]);
    assert_eq!(stands(), "unclaimed");
    json(&["--state-dir", state, "machine", "quarantine", &id, "--reason", "odd logins"]);
    assert_eq!(stands(), "quarantined");
    verb("release");
    assert_eq!(stands(), "unclaimed");
    let retire = ["--state-dir", state, "machine", "retire", &id];
    refused(&retire, 1, "cannot ask for confirmation");
    json(&[&retire[..], &["--dry-run"]].concat());
    assert_eq!(stands(), "unclaimed", "nobody agreed");
    json(&[&retire[..], &["--yes"]].concat());
    assert_eq!(stands(), "retired");
    for late in ["release", "quarantine"] {
        refused(&["--state-dir", state, "machine", late, &id], 1, "error TEC-A403");
    }
    let audit = json(&["--state-dir", state, "audit", "list"]).to_string();
    for told in ["machine-quarantined", "odd logins", "machine-released", "machine-retired"] {
        assert!(audit.contains(told), "{told} in {audit}");
    }
}

#[test]
fn a_machine_has_a_name_that_no_other_one_has_until_it_is_removed() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let store = Store::open(&directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for number in [1, 2] {
        let machine = sample::machine(number);
        let created = store.create(&machine, UnclaimedLimit::Unlimited);
        runtime.block_on(created).unwrap();
    }
    drop(store);
    let state = str(&directory);
    let ids = [1, 2].map(|number| sample::machine_id(number).to_string());
    let run = |words: &[&str]| json(&[&["--state-dir", state, "machine"], words].concat());
    let name = |id: &str| run(&["show", id])["machine"]["name"].clone();
    run(&["name", &ids[0], "worker-1", "--dry-run"]);
    assert_eq!(name(&ids[0]), serde_json::Value::Null);
    run(&["name", &ids[0], "old"]);
    run(&["name", &ids[0], "worker-1"]);
    assert_eq!(name(&ids[0]), "worker-1");
    let listed = run(&["list"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert!(names.contains(&&"worker-1".into()) && listed[0]["id"].is_string(), "{listed}");
    let taken = ["--state-dir", state, "machine", "name", &ids[1], "worker-1"];
    refused(&taken, 1, "cannot name machine");
    run(&["name", &ids[1], "old"]);
    run(&["remove", &ids[0], "--yes"]);
    run(&["name", &ids[1], "worker-1"]);
    assert_eq!(name(&ids[1]), "worker-1");
}

#[test]
fn the_admin_says_which_form_the_disk_key_of_a_machine_has() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let open = || Store::open(&directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let state = str(&directory);
    // 24 bytes in 32 characters of base64, and 32 bytes in 43.
    for (number, form, characters) in [(1, "compatible", 32), (2, "random256", 43)] {
        let (machine, key) = (sample::machine(number), sample::ak(number, number));
        let store = open();
        let created = store.create(&machine, UnclaimedLimit::Unlimited);
        runtime.block_on(created).unwrap();
        let line = sample::line();
        let submitted = store.submit(&key, &line);
        runtime.block_on(submitted).unwrap();
        drop(store);
        let key = key.fingerprint().to_string();
        json(&["--state-dir", state, "ak", "approve", &key, "--disk-keys", form]);
        let store = open();
        let path = ResourcePath::luks_root(&machine.id);
        let found = runtime.block_on(SecretStore::find(&store, &path));
        let resource = found.unwrap().unwrap();
        let resource: serde_json::Value =
            serde_json::from_slice(resource.expose("count its characters")).unwrap();
        assert_eq!(resource["key"].as_str().unwrap().len(), characters);
    }
}

const OTHER: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

#[test]
fn lists_come_in_every_form_and_audit_lines_newest_first() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let store = Store::open(&directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for number in [1, 2] {
        let mut machine = sample::machine(number);
        if number == 2 {
            machine.id = OTHER.parse().unwrap();
        }
        let created = store.create(&machine, UnclaimedLimit::Unlimited);
        runtime.block_on(created).unwrap();
    }
    drop(store);
    let state = str(&directory);
    let words = |more: &[&'static str]| -> Vec<&str> {
        let start = ["--state-dir", state];
        start.iter().chain(more).copied().collect()
    };
    let id = sample::machine_id(1).to_string();
    let names = text(&words(&["-o", "name", "machine", "list"]));
    assert_eq!(names.lines().count(), 2);
    assert!(names.lines().any(|line| line == id), "{names}");
    let yaml = text(&words(&["-o", "yaml", "machine", "list"]));
    assert!(yaml.contains(&format!("id: {id}")), "{yaml}");
    assert!(text(&words(&["machine", "list"])).starts_with("MACHINE "));
    assert_eq!(text(&words(&["-o", "name", "image", "list"])), "", "nothing has no name");
    refused(&words(&["-o", "name", "status"]), 1, "-o name works only for lists");

    let prefix = &id[..id.len() - 2];
    for verb in ["quarantine", "release"] {
        json(&["--state-dir", state, "machine", verb, prefix]);
    }
    let actions = |more: &[&'static str]| {
        let listed = json(&words(&[&["audit", "list"], more].concat()));
        let lines = listed.as_array().unwrap().clone();
        lines.iter().map(|line| line["event"]["action"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(actions(&[]), [r#""machine-released""#, r#""machine-quarantined""#]);
    assert_eq!(actions(&["--limit", "1"]), [r#""machine-released""#]);
    assert_eq!(actions(&["--action", "machine-quarantined"]), [r#""machine-quarantined""#]);
    assert_eq!(actions(&["--since", "1h"]).len(), 2);
    assert!(actions(&["--machine", "00000000-0000-4000-8000-0000000000ff"]).is_empty());
}

#[test]
fn a_node_that_attests_often_keeps_its_boots_and_a_refusal_after_boot_is_shown() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let record = |attempt: &Attempt| {
        let store = Store::open(&directory, &SystemEntropy).unwrap();
        runtime.block_on(AttemptLog::record(&store, attempt)).unwrap();
    };
    let store = Store::open(&directory, &SystemEntropy).unwrap();
    let machine = sample::machine(1);
    let created = store.create(&machine, UnclaimedLimit::Unlimited);
    runtime.block_on(created).unwrap();
    drop(store);
    for boot in 1..=3 {
        record(&sample::attempt_in_boot(u64::from(boot), boot));
    }
    for number in 101..=140 {
        record(&sample::attempt_in_boot(number, 4));
    }
    let (state, id) = (str(&directory), machine.id.to_string());
    let attempts = json(&["--state-dir", state, "audit", "attempts", "--machine", &id]);
    assert_eq!(attempts.as_array().unwrap().len(), 4, "{attempts}");
    assert_eq!(attempts[0]["repeats"]["count"], 40);
    let explained = sample::attempt_id(1).to_string();
    let explained = json(&["--state-dir", state, "explain", &explained]);
    assert_eq!(explained["boot"]["resets"], 1, "the first boot is still explained");
    let list = || json(&["--state-dir", state, "machine", "list"])[0]["last_seen"].clone();
    assert_eq!(list()["result"], "attested");

    let mut refused = sample::attempt_in_boot(141, 4);
    refused.ladder.fail(Gate::Pcrs, "PCR 4 differs");
    record(&refused);
    assert_eq!(list()["result"], "refused TEC-A412");
    let wide = text(&["--state-dir", state, "machine", "list", "-o", "wide"]);
    assert!(wide.contains("LAST SEEN") && wide.contains("refused TEC-A412"), "{wide}");
    let shown = text(&["--state-dir", state, "machine", "show", &id]);
    assert!(shown.contains("\nlast seen ") && shown.contains("40 times since"), "{shown}");
    let status = shown_status(state);
    assert_eq!(status["refused_now"], 1, "{status}");
    assert_eq!(status["last_seen"]["result"], "refused TEC-A412");

    // Nobody signed this one: it says nothing of the machine.
    let mut unsigned = sample::attempt_in_boot(142, 4);
    unsigned.unsigned = true;
    record(&unsigned);
    assert_eq!(list()["result"], "refused TEC-A412");

    let mut without = sample::attempt_in_boot(143, 5);
    without.ladder.skip(Gate::EventLog, "no event log was sent; the PCR values alone decide");
    record(&without);
    assert_eq!(list()["event_log_unused"], "no event log was sent; the PCR values alone decide");
    let shown = text(&["--state-dir", state, "machine", "show", &id]);
    let may =
        "\nevent log: no event log was sent; the PCR values alone decide; an attacker may then";
    assert!(shown.contains(may), "{shown}");
    assert_eq!(shown_status(state)["without_event_log"], serde_json::json!([id]));
    let page = dir.path().join("page.html");
    crate::world::tec(&["--state-dir", state, "status", "--html", str(&page)]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("machines that sent no usable event log: 1"), "{page}");
}

/// The server does not run, so the exit code is that for "not ready".
fn shown_status(state: &str) -> serde_json::Value {
    let mut tec = std::process::Command::new(env!("CARGO_BIN_EXE_tec"));
    let output = tec.args(["--state-dir", state, "-o", "json", "status"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}
