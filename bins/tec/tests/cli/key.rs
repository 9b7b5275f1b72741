//! `tec key` as a process, on a store of its own.

use std::fs;
use std::path::Path;

use tec_core::port::{
    AkRegistry as _, AuditAction, AuditEvent, AuditSink as _, Clock as _, DiskKeys as _,
    MachineRegistry, SecretStore, UnclaimedLimit,
};
use tec_core::rotation::{Confirmation, KeyMark, Keys};
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::{SystemClock, SystemEntropy};
use tempfile::TempDir;

use crate::world::{json, refused, str};

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    with(&state, async |store| {
        for number in 1..=3 {
            let machine = sample::machine(number);
            MachineRegistry::create(store, &machine, UnclaimedLimit::Unlimited).await.unwrap();
            store.bind(&sample::approved_ak(number, number), &sample::line()).await.unwrap();
            let (path, key) = (sample::secret_path(number), sample::secret(number));
            store.put_new(&path, &key, &sample::line()).await.unwrap();
        }
    });
    directory
}

fn with<T>(state: &Path, run: impl AsyncFnOnce(&Store) -> T) -> T {
    let store = Store::open(state, &SystemEntropy).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(run(&store))
}

#[test]
fn a_new_key_is_pending_and_the_old_one_is_released_until_the_machine_confirms() {
    let directory = directory();
    let state = directory.path().join("state");
    let id = sample::machine_id(1).to_string();
    let base = ["--state-dir", str(&state), "key"];
    let run = |more: &[&str]| json(&[&base[..], more].concat());

    assert_eq!(run(&["rotate", &id, "--dry-run"])[0]["rotation"], "would-begin");
    assert_eq!(run(&["list"]), serde_json::json!([]), "a dry run changes nothing");
    assert_eq!(run(&["rotate", &id])[0]["rotation"], "pending");
    let kept = || {
        let id = sample::machine_id(1);
        with(&state, async |store| store.rotation(&id).await.unwrap().unwrap())
    };
    let before = kept();
    let Keys::Pending { current, pending } = before else { panic!("{before:?}") };
    assert_eq!(current, KeyMark::of(&sample::secret(1)));
    assert_eq!(run(&["rotate", &id])[0]["rotation"], "pending", "it is never generated twice");
    assert_eq!(kept(), Keys::Pending { current, pending });

    with(&state, async |store| {
        let step = Confirmation::Staged;
        store.confirm(&sample::machine_id(1), step, &pending, &sample::line()).await.unwrap();
        let released = SecretStore::find(store, &sample::secret_path(1)).await.unwrap().unwrap();
        assert_eq!(KeyMark::of(&released), pending);
    });
    assert_eq!(run(&["list"])[0]["rotation"], "promoted");
}

#[test]
fn a_fleet_is_rotated_a_few_machines_at_a_time() {
    let directory = directory();
    let state = directory.path().join("state");
    let base = ["--state-dir", str(&state), "key"];
    let run = |more: &[&str]| json(&[&base[..], more].concat());
    let all = ["rotate", "--all", "--yes", "--at-most", "2"];
    assert_eq!(run(&all).as_array().unwrap().len(), 2);
    assert_eq!(run(&all), serde_json::json!([]), "two are under way");
    assert_eq!(run(&["list"]).as_array().unwrap().len(), 2);
}

#[test]
fn keys_that_are_younger_than_asked_are_left_alone() {
    let directory = directory();
    let state = directory.path().join("state");
    let now = SystemClock.now();
    with(&state, async |store| {
        for (number, action, age) in [
            (1, AuditAction::RotationPromoted, 20 * 86_400),
            (2, AuditAction::KeyGenerated, 5 * 86_400),
            (3, AuditAction::KeyReleased, 60),
        ] {
            let id = Some(sample::machine_id(number));
            let event = AuditEvent::new(now.plus_seconds(-age), action, id, "x");
            store.append(&event).await.unwrap();
        }
    });
    let due = |age: &str| {
        let arguments = ["key", "rotate", "--all", "--dry-run", "--older-than", age];
        let rows = json(&[&["--state-dir", str(&state)][..], &arguments].concat());
        let rows = rows.as_array().unwrap().clone();
        rows.iter().map(|row| row["machine"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let ids = |numbers: &[u64]| -> Vec<String> {
        numbers.iter().map(|number| sample::machine_id(*number).to_string()).collect()
    };
    assert_eq!(due("30days"), ids(&[3]));
    assert_eq!(due("10days"), ids(&[1, 3]));
    assert_eq!(due("1hour"), ids(&[1, 2, 3]));
}

#[test]
fn no_backup_is_made_while_a_key_is_rotated() {
    let directory = directory();
    let state = directory.path().join("state");
    let [key, file] = ["backup.key", "backup"].map(|name| directory.path().join(name));
    let base = ["--state-dir", str(&state)];
    let run = |more: &[&str]| json(&[&base[..], more].concat());
    let recipient = run(&["backup", "key", str(&key)])["recipient"].as_str().unwrap().to_owned();
    let backup = ["backup", "create", "--recipient", &recipient, str(&file)];
    run(&["key", "rotate", &sample::machine_id(1).to_string()]);
    refused(&[&base[..], &backup].concat(), 1, "TEC-K410");
    assert!(!file.exists());
    run(&["machine", "remove", &sample::machine_id(1).to_string(), "--yes"]);
    run(&backup);
    assert!(file.exists());
}

#[test]
fn a_canceled_rotation_keeps_the_released_key_and_backups_work_again() {
    let directory = directory();
    let state = directory.path().join("state");
    let [key, file] = ["backup.key", "backup"].map(|name| directory.path().join(name));
    let id = sample::machine_id(1).to_string();
    let base = ["--state-dir", str(&state)];
    let run = |more: &[&str]| json(&[&base[..], more].concat());
    assert_eq!(run(&["key", "cancel", &id])[0]["rotation"], "none");
    run(&["key", "rotate", &id]);
    assert_eq!(run(&["key", "cancel", &id, "--dry-run"])[0]["rotation"], "would-cancel");
    refused(&[&base[..], &["key", "cancel", &id]].concat(), 1, "pass --yes");
    assert_eq!(run(&["key", "list"])[0]["rotation"], "pending", "nothing changed so far");
    assert_eq!(run(&["key", "cancel", &id, "--yes"])[0]["rotation"], "canceled");
    assert_eq!(run(&["key", "list"]), serde_json::json!([]));
    let id = sample::machine_id(1);
    let keys = with(&state, async |store| store.rotation(&id).await.unwrap());
    assert_eq!(keys, Some(Keys::Settled { current: KeyMark::of(&sample::secret(1)) }));
    let recipient = run(&["backup", "key", str(&key)])["recipient"].as_str().unwrap().to_owned();
    run(&["backup", "create", "--recipient", &recipient, str(&file)]);
    assert!(file.exists());
}

#[test]
fn a_previous_key_is_forgotten_only_with_the_dangerous_flag() {
    let directory = directory();
    let state = directory.path().join("state");
    let id = sample::machine_id(1).to_string();
    let base = ["--state-dir", str(&state), "key"];
    let run = |more: &[&str]| json(&[&base[..], more].concat());
    run(&["rotate", &id]);
    let kept = async |store: &Store| store.rotation(&sample::machine_id(1)).await.unwrap().unwrap();
    let promoted = with(&state, async |store| {
        let Keys::Pending { pending, .. } = kept(store).await else { panic!("not pending") };
        let (machine, line) = (sample::machine_id(1), sample::line());
        store.confirm(&machine, Confirmation::Staged, &pending, &line).await.unwrap();
        kept(store).await
    });
    for more in [&["--yes"][..], &["--dry-run"]] {
        let arguments = [&base[..], &["cancel", &id], more].concat();
        refused(&arguments, 1, "node-agent key rotate");
        refused(&arguments, 1, "TEC-K410");
    }
    assert_eq!(with(&state, kept), promoted);
    let dangerous = ["cancel", &id, "--dangerously-forget-previous-key", "--yes"];
    assert_eq!(run(&dangerous)[0]["rotation"], "canceled");
    assert_eq!(with(&state, kept), Keys::Settled { current: *promoted.current() });
}

#[test]
fn a_machine_without_a_key_and_a_cluster_are_refused() {
    let directory = directory();
    let state = directory.path().join("state");
    let unknown = sample::machine_id(9).to_string();
    refused(&["--state-dir", str(&state), "key", "rotate", &unknown], 1, "TEC-A414");
    refused(&["--state-dir", str(&state), "key", "cancel", &unknown, "--yes"], 1, &unknown);
    refused(&["--state-dir", str(&state), "key", "rotate"], 2, "--all");
    refused(&["--namespace", "tec", "key", "rotate", &unknown], 2, "a state directory only");
    refused(&["--namespace", "tec", "key", "reseal", "--yes"], 2, "a state directory only");
}

#[test]
fn the_seal_key_is_replaced_after_confirmation_and_the_old_file_is_refused() {
    let directory = directory();
    let state = directory.path().join("state");
    let file = state.join("seal.key");
    let old = fs::read(&file).unwrap();
    let base = ["--state-dir", str(&state)];
    let reseal = [&base[..], &["key", "reseal"]].concat();
    let run = |more: &[&str]| json(&[&reseal[..], more].concat());
    assert_eq!(run(&["--dry-run"]), serde_json::json!({"secrets": 3, "replaced": false}));
    refused(&reseal, 1, "pass --yes");
    assert_eq!(fs::read(&file).unwrap(), old, "nothing changed so far");
    assert_eq!(run(&["--yes"]), serde_json::json!({"secrets": 3, "replaced": true}));
    let key = with(&state, async |store| {
        SecretStore::find(store, &sample::secret_path(2)).await.unwrap().unwrap()
    });
    assert!(key.ct_eq(&sample::secret(2)));
    let lines = json(&[&base[..], &["audit", "list", "--action", "seal-key-replaced"]].concat());
    assert_eq!(lines.as_array().unwrap().len(), 1, "{lines}");
    let new = fs::read(&file).unwrap();
    fs::write(&file, &old).unwrap();
    for command in [&["key", "list"][..], &["key", "reseal", "--yes"], &["status"]] {
        refused(&[&base[..], command].concat(), 1, "TEC-K500");
        refused(&[&base[..], command].concat(), 1, "from before `tec key reseal`");
    }
    assert_eq!(fs::read(&file).unwrap(), old);
    fs::write(&file, new).unwrap();
    assert_eq!(run(&["--dry-run"])["secrets"], 3);
}

#[test]
fn the_seal_key_is_not_replaced_while_a_server_runs() {
    let directory = directory();
    let state = directory.path().join("state");
    let file = state.join("seal.key");
    let old = fs::read(&file).unwrap();
    let server = fs::File::create(state.join("serve.lock")).unwrap();
    server.lock().unwrap();
    for consent in ["--yes", "--dry-run"] {
        let arguments = ["--state-dir", str(&state), "key", "reseal", consent];
        refused(&arguments, 1, "TEC-S410");
        refused(&arguments, 1, "systemctl stop tec");
    }
    assert_eq!(fs::read(&file).unwrap(), old);
    drop(server);
    json(&["--state-dir", str(&state), "key", "reseal", "--yes"]);
    assert_ne!(fs::read(&file).unwrap(), old);
}
