//! What commands report about the validity of a log: `tec eventlog show` and `verify`, `tec pcr identify`.

#![expect(clippy::unwrap_used, reason = "all of this file is test code, its helper functions too")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use serde_json::json as object;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{EventKind, EventLog, EventLogBuilder};
use tec_tpm::output;

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;

/// The log of a machine that started this kernel, and its TPM's values as printed by `tpm2_pcrread`.
fn boot(folder: &Path, kernel: &str) -> (String, String) {
    let bytes = EventLogBuilder::new()
        .separator(PCR4)
        .image(Sha256Digest::of("shim"), "\\EFI\\debian\\shimx64.efi")
        .image(Sha256Digest::of(kernel), "/vmlinuz")
        .measure_other(PcrIndex::BOOT_COMMANDS, EventKind::IPL, b"boot", b"grub_cmd: boot\0")
        .build();
    let values = EventLog::parse(&bytes).unwrap().replay_sha256().unwrap();
    let values = values.iter().map(|(pcr, value)| (pcr, *value)).collect();
    let path = |end: &str| folder.join(format!("{kernel}.{end}")).to_str().unwrap().to_owned();
    fs::write(path("log"), bytes).unwrap();
    fs::write(path("values"), output::pcrread(&values)).unwrap();
    (path("log"), path("values"))
}

/// Exit status and standard output.
fn tec(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tec")).args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn json(arguments: &[&str]) -> Value {
    let (status, printed) = tec(&[&["--output", "json"], arguments].concat());
    assert_eq!(status, 0);
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn show_marks_what_was_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = boot(folder.path(), "linux");
    let (status, table) = tec(&["eventlog", "show", &log]);
    assert_eq!(status, 0);
    assert!(table.contains("(\\EFI\\debian\\shimx64.efi)"), "{table}");
    assert!(table.contains("grub_cmd: boot *"), "{table}");
    let shown = json(&["eventlog", "show", &log]);
    assert_eq!(shown["format"], "crypto-agile");
    assert_eq!(shown["events"][2]["content"]["type"], "image");
    assert_eq!(shown["events"][4]["data"], "part");
}

#[test]
fn verify_succeeds_only_where_the_log_explains_the_registers() {
    let folder = tempfile::tempdir().unwrap();
    let (log, values) = boot(folder.path(), "linux");
    let (_, other) = boot(folder.path(), "evil");
    let verdict = json(&["eventlog", "verify", &log, "--values", &values]);
    assert_eq!(verdict["registers"].as_array().unwrap().len(), 2);
    assert_eq!(verdict["events"].as_array().unwrap().len(), 4);

    let (status, table) = tec(&["eventlog", "verify", &log, "--values", &other]);
    assert_eq!(status, 1);
    let lines: Vec<&str> = table.lines().take(2).collect();
    assert!(lines[0].starts_with("PCR  4") && lines[0].contains("NOT explained"), "{table}");
    assert!(
        lines[1].starts_with("PCR  8") && lines[1].ends_with("explained by the log"),
        "{table}"
    );
    // Events of the unexplained register are not shown.
    assert!(!table.contains("shimx64"), "{table}");
    let only = ["eventlog", "verify", &log, "--values", &other, "--pcr", "8"];
    assert_eq!(tec(&only).0, 0);
}

#[test]
fn verify_names_what_systemd_measured_after_the_log_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = boot(folder.path(), "linux");
    let (pcr9, init) = (PcrIndex::BOOT_FILES, "nvpcr-init:hardware:0x1d10200:000b9f0e");
    let replayed = EventLog::parse(&fs::read(&log).unwrap()).unwrap().replay_sha256().unwrap();
    let (mut values, mut records) = (replayed, String::new());
    for (pcr, text) in [
        (PCR4, "os-separator"),
        (pcr9, "os-separator"),
        (pcr9, init),
        (PcrIndex::CLUSTER, "machine-id:01"),
    ] {
        let digest = Sha256Digest::of(text);
        let value = values.value(pcr).extended(&digest);
        values = values.with(pcr, value);
        let digests = object!([{ "hashAlg": "sha256", "digest": digest }]);
        let record = object!({ "pcr": pcr, "digests": digests, "content": { "string": text } });
        records.extend(["\u{1e}", &record.to_string(), "\n"]);
    }
    let path = |end: &str| folder.path().join(end).to_str().unwrap().to_owned();
    let (after, systemd, bad) = (path("after"), path("systemd"), path("bad"));
    let values = values.iter().map(|(pcr, value)| (pcr, *value)).collect();
    fs::write(&after, output::pcrread(&values)).unwrap();
    fs::write(&systemd, &records).unwrap();
    fs::write(&bad, records.trim_end_matches("}\n")).unwrap();

    let verify = ["eventlog", "verify", &log, "--values", &after];
    let verdict = json(&[&verify[..], &["--systemd-log", &systemd]].concat());
    assert_eq!(verdict["registers"].as_array().unwrap().len(), 4);
    let events = verdict["events"].as_array().unwrap().iter();
    let named: Vec<_> = events.filter(|event| event["kind"] == "systemd").collect();
    assert_eq!(named.len(), 4);
    assert!(named.iter().any(|event| event["detail"] == init && event["data"] == "hashed"));
    assert_eq!(tec(&[&verify[..], &["--pcr", "4"]].concat()).0, 0);
    assert_eq!(tec(&[&verify[..], &["--pcr", "9"]].concat()).0, 1);
    assert_eq!(tec(&[&verify[..], &["--systemd-log", &bad]].concat()).0, 1);
}

#[test]
fn identify_names_image_and_component_of_each_event() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = boot(folder.path(), "linux");
    let event = |id: &str, content: &str| {
        let digest = Sha256Digest::of(content);
        ImageEvent::new("EV_EFI_BOOT_SERVICES_APPLICATION", PCR4, digest, id).from_file(content)
    };
    let events = [event("Pcr4Shim", "shim"), event("Pcr4Vmlinuz", "linux")];
    let image = ExpectedPcrs::new(vec![ExpectedPcr::from_events(PCR4, events)]);
    let path = folder.path().join("image.json");
    fs::write(&path, output::label(&image).unwrap()).unwrap();

    let named = format!("debian={}", path.display());
    let found = json(&["pcr", "identify", "--image", &named, "--log-file", &log]);
    assert_eq!(found[0]["well_known"], "separator");
    assert_eq!(found[1]["known_as"][0]["component"], "Pcr4Shim");
    assert_eq!(found[2]["known_as"][0]["image"], "debian");
    assert_eq!(found[3]["known_as"].as_array().unwrap().len(), 0);

    let value = image.pcrs[0].value.to_string();
    let found = json(&["pcr", "identify", "--image", &named, "--value", &value]);
    assert_eq!(found["liberty"], "image");
}
