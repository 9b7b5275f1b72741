//! `tec platform` as a process.

use std::path::Path;

use tec_core::platform::Platform;
use tec_core::port::UnclaimedLimit;
use tec_core::port::{AkRegistry as _, MachineRegistry as _, PlatformLog, PlatformOutcome};
use tec_core::store::Store;
use tec_core::testing::{PlatformBoot, sample};
use tec_support::SystemEntropy;
use tempfile::TempDir;

use crate::world::{json, refused, str, text};

/// Boots of machines 1 to 3, whose keys have the same numbers.
fn boot(directory: &Path, machine: u64, seen: &Platform) -> PlatformOutcome {
    let store = Store::open(directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (id, key) = (sample::machine_id(machine), sample::public_key(machine).fingerprint());
    runtime.block_on(async {
        let limit = UnclaimedLimit::Unlimited;
        store.create(&sample::machine(machine), limit).await.unwrap();
        store.bind(&sample::approved_ak(machine, machine), &sample::line()).await.unwrap();
        store.admit(&key, id, seen, sample::time(9)).await.unwrap()
    })
}

#[test]
fn an_update_of_firmware_is_shown_and_approved_for_all_machines_of_the_model() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let (old, new) = (PlatformBoot::new(), PlatformBoot::new().firmware("2.0"));
    let other = PlatformBoot::new().option_rom("another card").word("UEFI Debug Mode").platform();
    for (machine, seen) in [(1, &old.platform()), (2, &old.platform()), (3, &other)] {
        assert_eq!(boot(&directory, machine, seen), PlatformOutcome::Recorded);
    }
    let [one, two, three] = [1, 2, 3].map(|number| sample::machine_id(number).to_string());
    let platform = |verb: &[&str]| -> Vec<String> {
        let start = ["--state-dir", str(&directory), "platform"];
        start.iter().chain(verb).map(|word| (*word).to_owned()).collect()
    };
    let run = |verb: &[&str]| {
        let words = platform(verb);
        json(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let order = || -> Vec<String> {
        let machines = run(&["list"]);
        let machines = machines.as_array().unwrap().iter();
        machines.map(|one| one["machine"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(order(), [three.clone(), one.clone(), two.clone()], "the odd one comes first");
    assert_eq!(run(&["list"])[1]["machines"], 2);
    assert_eq!(run(&["diff", &two])["changes"], serde_json::json!([]));
    assert_eq!(run(&["diff", &two])["weaknesses"], serde_json::json!([]));
    let words = platform(&["diff", &three]);
    let shown = text(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(shown.contains("weakness: the firmware says that it could be debugged"), "{shown}");

    let update = new.boot_order("network").platform();
    assert!(matches!(boot(&directory, 2, &update), PlatformOutcome::Refused(_)));
    assert_eq!(order()[0], two, "what waits comes first");
    let diff = run(&["diff", &two]);
    let effects: Vec<_> =
        diff["changes"].as_array().unwrap().iter().map(|c| &c["effect"]).collect();
    assert_eq!(effects, ["refused", "recorded"]);
    let words = platform(&["diff", &two]);
    let shown = text(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(shown.contains("refused   PCR 0 EV_S_CRTM_VERSION 1.0 -> 2.0: "), "{shown}");

    let approve = platform(&["approve", &two]);
    let approve: Vec<_> = approve.iter().map(String::as_str).collect();
    refused(&approve, 1, "cannot ask for confirmation");
    json(&[&approve[..], &["--dry-run"]].concat());
    assert_eq!(run(&["list"])[0]["state"], "waits for approval");
    let approved = json(&[&approve[..], &["--yes"]].concat());
    assert_eq!(approved["machines"], serde_json::json!([one, two]));
    refused(&[&approve[..], &["--yes"]].concat(), 1, "nothing waits for approval");
    assert_eq!(boot(&directory, 1, &update), PlatformOutcome::Moved);
    let audit = json(&["--state-dir", str(&directory), "audit", "list"]).to_string();
    assert!(audit.contains("platform-approved"), "{audit}");
}

#[test]
fn a_machine_that_never_booted_has_no_baseline() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    boot(&directory, 1, &PlatformBoot::new().platform());
    let unknown = sample::machine_id(9).to_string();
    for verb in ["diff", "approve"] {
        let words = ["--state-dir", str(&directory), "platform", verb, &unknown];
        refused(&words, 1, "error TEC-A403");
    }
}
