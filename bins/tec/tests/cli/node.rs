//! `tec node nextboot` as a process.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tec_core::image::ApprovedImage;
use tec_core::port::{Clock as _, ImageRegistry};
use tec_core::store::Store;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::compute::testing::{application, debian_chain};
use tempfile::TempDir;

use crate::world::{
    KERNEL, SHIM, allowed, digest_list, efivars, json, refused, said, str, tec, text, with_files,
    write,
};

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
    let (old, new) = (now.label(&files, "old.json"), next.label(&files, "new.json"));
    let accepted = json(&next.nextboot(&["--accepted", str(&old), "--accepted", str(&new)]));
    assert_eq!(accepted["verdict"]["answer"], "accepted");
    let state = &accepted["verdict"]["states"][0];
    assert_eq!(state["parts"][0]["images"], serde_json::json!(["new"]));

    let refused = tec(&next.nextboot(&["--accepted", str(&old)]));
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    let printed = String::from_utf8(refused.stdout).unwrap();
    assert!(printed.contains("refused: nobody accepts PCR 4"), "{printed}");

    let pinned = ["--accepted", str(&new), "--pin-pcr", "4", "--pin-pcr", "9"];
    let unknown = tec(&next.nextboot(&pinned));
    assert_eq!(unknown.status.code(), Some(3), "PCR 9 cannot be predicted");
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
    assert_eq!(alone.status.code(), Some(3), "{}", crate::world::said(&alone));
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
fn what_the_machine_would_not_start_is_foretold() {
    let next = staged("new");
    let other = efivars(&[]);
    let image = str(next.image.path());
    let nextboot = ["node", "nextboot", image, "--efivars", str(other.path())];
    assert_eq!(blocked(&nextboot), SHIM);
}

/// The file at which the boot stops.
fn blocked(nextboot: &[&str]) -> String {
    let output = tec(&[nextboot, &["--output", "json"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let next: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(next["verdict"]["answer"], "blocked", "{next}");
    assert_eq!(next["registers"], serde_json::json!([]));
    next["verdict"]["file"].as_str().unwrap().to_owned()
}

#[test]
fn an_update_of_dbx_that_would_lock_out_is_foretold() {
    let next = staged("new");
    let files = TempDir::new().unwrap();
    let file = |path| next.image.path().join(path);
    let update = |name, program: &[u8]| write(files.path(), name, digest_list(program));
    let harmless = update("harmless.esl", &application("somebody else's"));
    let kernel = update("kernel.esl", &fs::read(file(KERNEL)).unwrap());
    let shim = update("shim.esl", &fs::read(file(SHIM)).unwrap());
    let with = |update| next.nextboot(&["--dbx-update", update]);
    let told = json(&with(str(&harmless)));
    let (before, after) = (json(&next.nextboot(&[])), told);
    let of = |next: &Value, pcr: u64| {
        let mut registers = next["registers"].as_array().unwrap().iter();
        registers.find(|r| r["pcr"] == pcr).unwrap()["next"].clone()
    };
    assert_eq!(of(&before, 4), of(&after, 4));
    assert_ne!(of(&before, 7), of(&after, 7), "dbx is measured");
    assert_eq!(blocked(&with(str(&shim))), SHIM);
    assert_eq!(blocked(&with(str(&kernel))), KERNEL);
    let both = ["--dbx-update", str(&harmless), "--dbx-update", str(&shim)];
    assert_eq!(blocked(&next.nextboot(&both)), SHIM);
    let text = tec(&with(str(&shim)));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with(&format!("does not boot: {SHIM}: ")), "{text}");
    assert!(text.contains("dbx revokes the image"), "{text}");

    let broken = write(files.path(), "broken", b"no list");
    refused(&with(str(&broken)), 1, "cannot append the update to dbx");
}

/// A store with an approved image that has these values.
fn approved(directory: &Path, name: &str, label: &Path) {
    let label = fs::read_to_string(label).unwrap();
    let expected = tec_tpm::output::read_label(&label).unwrap();
    let now = SystemClock.now();
    let image = ApprovedImage::new(name.parse().unwrap(), "here", expected, now);
    let store = Store::open(directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(ImageRegistry::put(&store, &image)).unwrap();
}

#[test]
fn the_store_of_the_server_judges() {
    let (old, new) = (staged_by("2.12", "old"), staged_by("2.14", "new"));
    let files = TempDir::new().unwrap();
    let state = files.path().join("state");
    approved(&state, "old", &old.label(&files, "old.json"));
    let judge = |machine: &Staged| {
        let approved = ["--state-dir", str(&state), "--approved", "--output", "json"];
        let output = tec(&machine.nextboot(&approved));
        let next: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answer = next["verdict"]["answer"].as_str().unwrap().to_owned();
        (output.status.code(), answer)
    };
    let accepted = (Some(0), "accepted".to_owned());
    assert_eq!(judge(&old), accepted);
    assert_eq!(judge(&new), (Some(3), "refused".to_owned()));
    approved(&state, "new", &new.label(&files, "new.json"));
    assert_eq!(judge(&new), accepted);
    assert_eq!(judge(&staged_by("2.14", "old")), accepted, "between them");
    let nowhere = ["--state-dir", str(files.path()), "--approved"];
    refused(&old.nextboot(&nowhere), 1, "is not a state directory");
}

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn a_recorded_machine_boots_as_it_did_and_its_firmware_is_carried_over() {
    let boot = with_files("trixie-sb-on");
    let measured = fs::read(boot.join("pcrs.json")).unwrap();
    let measured: Value = serde_json::from_slice(&measured).unwrap();
    let mut values = String::from("sha256:\n");
    for (register, value) in measured["sha256"].as_object().unwrap() {
        let _ = writeln!(values, "  {register}: 0x{}", value.as_str().unwrap());
    }
    let files = TempDir::new().unwrap();
    let values = write(files.path(), "values", values);
    let (esp, variables, log) = (boot.join("esp"), boot.join("efivars"), boot.join("eventlog.bin"));
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
    let known: Vec<_> = registers.iter().map(|r| r["pcr"].as_u64().unwrap()).collect();
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
