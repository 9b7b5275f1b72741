//! `tec node nextboot` as a process.

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
    staged_by("2.12", kernel)
}

fn staged_by(grub: &str, kernel: &str) -> Staged {
    let image = debian_chain(grub).with(KERNEL, application(kernel));
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
    let accepted = json(&next.nextboot(&["--accepted", str(&old), "--accepted", str(&new)]));
    assert_eq!(accepted["verdict"]["answer"], "accepted");
    let state = &accepted["verdict"]["states"][0];
    assert_eq!(state["parts"][0]["images"], serde_json::json!(["new"]));

    let refused = tec(&next.nextboot(&["--accepted", str(&old)]));
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    let printed = String::from_utf8(refused.stdout).unwrap();
    assert!(
        printed.contains("refused: nobody accepts PCR 4"),
        "{printed}"
    );

    let pinned = ["--accepted", str(&new), "--pin-pcr", "4", "--pin-pcr", "9"];
    let unknown = tec(&next.nextboot(&pinned));
    assert_eq!(unknown.status.code(), Some(3), "PCR 9 cannot be told");
    assert_eq!(tec(&next.nextboot(&[])).status.code(), Some(0));
}

#[test]
fn a_machine_between_two_accepted_images_is_accepted() {
    let (old, new) = (staged_by("2.12", "old"), staged_by("2.14", "new"));
    let files = TempDir::new().unwrap();
    let (old, new) = (old.label(&files, "old.json"), new.label(&files, "new.json"));
    let between = staged_by("2.14", "old");
    let said = text(&between.nextboot(&["--accepted", str(&old), "--accepted", str(&new)]));
    let state = "accepted: boot between images: bootloader of new + kernel of old\n";
    assert!(said.ends_with(state), "{said}");
    let alone = tec(&between.nextboot(&["--accepted", str(&new)]));
    assert_eq!(
        alone.status.code(),
        Some(3),
        "{}",
        crate::world::said(&alone)
    );
    let unnamed = format!("Old one={}", str(&old));
    refused(&between.nextboot(&["--accepted", &unnamed]), 1, "NAME=");
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
        let accepted = json(&next.nextboot(&["--accepted", &named]));
        assert_eq!(accepted["verdict"]["lists"], serde_json::json!(["fleet"]));
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
        let is_firmware = [0, 1, 2, 3, 5, 6].contains(&register["pcr"].as_u64().unwrap());
        assert_eq!(register.get("recorded").is_some(), is_firmware);
    }
}
