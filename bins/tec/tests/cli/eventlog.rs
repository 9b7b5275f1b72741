//! `tec eventlog` as a process.

use std::fs;

use serde_json::Value;
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{Bank, EventKind, EventLogBuilder};

use crate::world::{json, recorded, refused, str, text, write};

fn log(kernel: &str) -> Vec<u8> {
    let mut log = EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256]);
    for part in ["shim", kernel] {
        log.measure(PcrIndex::BOOT_MANAGER, EventKind::IPL, part.as_bytes());
    }
    log.build()
}

#[test]
fn a_log_is_shown_and_folded_in_the_banks_that_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "log", log("kernel"));
    let file = str(&file);
    let shown = json(&["eventlog", "show", file]);
    assert_eq!(shown["events"].as_array().unwrap().len(), 3);
    assert!(text(&["eventlog", "show", file]).contains("EV_IPL"));
    let replayed = json(&["eventlog", "show", file, "--values-only"]);
    let banks: Vec<_> = replayed.as_object().unwrap().keys().collect();
    assert_eq!(banks, ["sha1", "sha256"]);
    let one = json(&["eventlog", "show", file, "--values-only", "--bank", "sha256"]);
    assert_eq!(one["sha256"]["4"], replayed["sha256"]["4"]);
    refused(&["eventlog", "show", file, "--values-only", "--bank", "sha384"], 1, "sha384");
}

#[test]
fn two_logs_differ_in_the_event_that_differs() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| write(directory.path(), name, log(name)));
    let diff = json(&["eventlog", "diff", str(&old), str(&new)]);
    let changes = diff["registers"][0]["changes"].as_array().unwrap();
    let marks: Vec<_> = changes.iter().map(|c| c["change"].as_str().unwrap()).collect();
    assert_eq!(marks, ["same", "removed", "added"]);
    let same = json(&["eventlog", "diff", str(&old), str(&old)]);
    assert_eq!(same["registers"], Value::Array(Vec::new()));
}

#[test]
fn what_is_no_log_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "log", "no log");
    refused(&["eventlog", "show", str(&file)], 1, str(&file));
    refused(&["eventlog", "show", "/nowhere"], 1, "/nowhere");
}

#[test]
fn a_recorded_log_folds_to_the_registers_of_its_machine() {
    let boot = recorded("trixie-sb-on");
    let measured = fs::read(boot.join("pcrs.json")).unwrap();
    let measured: Value = serde_json::from_slice(&measured).unwrap();
    let file = boot.join("eventlog.bin");
    let replayed = json(&["eventlog", "show", "--values-only", str(&file)]);
    for bank in ["sha1", "sha256", "sha384"] {
        for register in ["4", "7", "14"] {
            assert_eq!(replayed[bank][register], measured[bank][register]);
        }
    }
}
