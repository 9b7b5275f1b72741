//! `tec node nextboot` as a process.

mod world;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tec_tpm::compute::testing::application;
use tec_tpm::compute::testing::debian_chain;
use tempfile::TempDir;

use crate::world::KERNEL;
use crate::world::allowed;
use crate::world::efivars;
use crate::world::json;
use crate::world::recorded;
use crate::world::refused;
use crate::world::said;
use crate::world::str;
use crate::world::tec;
use crate::world::text;
use crate::world::write;

/// An image, and the variables of a machine that allows it.
struct Staged {
    image: TempDir,
    variables: TempDir,
}

fn staged(kernel: &str) -> Staged {
    let image = debian_chain("2.12").with(KERNEL, application(kernel));
    let (image, variables) = allowed(&image);
    Staged { image, variables }
}

impl Staged {
    fn nextboot<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let (image, variables) = (str(self.image.path()), str(self.variables.path()));
        let own = ["node", "nextboot", image, "--efivars", variables];
        [&own, more].concat()
    }

    /// The values of the image on this machine, in a file.
    fn label(&self, directory: &TempDir, name: &str) -> PathBuf {
        let (image, variables) = (str(self.image.path()), str(self.variables.path()));
        let compute = ["pcr", "compute", image, "--efivars", variables];
        let label = text(&[&compute[..], &["--form", "label"]].concat());
        write(directory.path(), name, label)
    }
}

#[test]
fn the_exit_code_says_whether_the_next_boot_would_be_refused() {
    let (now, next) = (staged("old"), staged("new"));
    let files = TempDir::new().unwrap();
    let (old, new) = (
        now.label(&files, "old.json"),
        next.label(&files, "new.json"),
    );
    let accepted = json(&next.nextboot(&["--reference", str(&old), "--reference", str(&new)]));
    assert_eq!(accepted["verdict"]["answer"], "accepted");
    assert_eq!(accepted["verdict"]["by"], serde_json::json!(["new"]));

    let refused = tec(&next.nextboot(&["--reference", str(&old)]));
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    let printed = String::from_utf8(refused.stdout).unwrap();
    assert!(
        printed.contains("refused: nobody accepts PCR 4"),
        "{printed}"
    );

    let pinned = ["--reference", str(&new), "--pin-pcr", "4", "--pin-pcr", "9"];
    let unknown = tec(&next.nextboot(&pinned));
    assert_eq!(unknown.status.code(), Some(3), "PCR 9 cannot be told");
    assert_eq!(tec(&next.nextboot(&[])).status.code(), Some(0));
}

#[test]
fn lists_of_trustee_are_references_too() {
    let next = staged("new");
    let files = TempDir::new().unwrap();
    for form in ["trustee-config-map", "trustee-message"] {
        let (image, variables) = (str(next.image.path()), str(next.variables.path()));
        let compute = ["pcr", "compute", image, "--efivars", variables];
        let list = text(&[&compute[..], &["--form", form]].concat());
        let list = write(files.path(), form, list);
        let named = format!("fleet={}", str(&list));
        let accepted = json(&next.nextboot(&["--reference", &named]));
        assert_eq!(accepted["verdict"]["by"], serde_json::json!(["fleet"]));
    }
}

#[test]
fn a_revocation_makes_the_next_boot_impossible() {
    let next = staged("new");
    let other = efivars(&[]);
    let image = str(next.image.path());
    let nextboot = ["node", "nextboot", image, "--efivars", str(other.path())];
    refused(&nextboot, 1, "error TEC-I400");
}

#[test]
fn a_recorded_machine_boots_as_it_did_and_its_firmware_is_carried_over() {
    let Some(boot) = recorded("trixie-sb-on") else {
        println!("skipped: there is no recorded boot");
        return;
    };
    let measured = fs::read(boot.join("pcrs.json")).unwrap();
    let measured: Value = serde_json::from_slice(&measured).unwrap();
    let mut values = String::from("sha256:\n");
    for (register, value) in measured["sha256"].as_object().unwrap() {
        let _ = writeln!(values, "  {register}: 0x{}", value.as_str().unwrap());
    }
    let files = TempDir::new().unwrap();
    let values = write(files.path(), "values", values);
    let (esp, variables, log) = (
        boot.join("esp"),
        boot.join("efivars"),
        boot.join("eventlog.bin"),
    );
    let next = json(&[
        "node",
        "nextboot",
        str(&esp),
        "--efivars",
        str(&variables),
        "--log-file",
        str(&log),
        "--pcr-values",
        str(&values),
    ]);
    let registers = next["registers"].as_array().unwrap();
    let known: Vec<_> = registers
        .iter()
        .map(|r| r["pcr"].as_u64().unwrap())
        .collect();
    for pcr in [0, 2, 4, 7, 8, 9, 14] {
        assert!(known.contains(&pcr), "{known:?}");
    }
    for register in registers {
        assert_eq!(register["next"], register["now"], "{register}");
        assert_eq!((register.get("gone"), register.get("new")), (None, None));
    }
}
