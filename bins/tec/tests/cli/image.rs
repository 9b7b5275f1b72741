//! `tec image approve` as a process: what is pinned, and what is left out.

use std::path::PathBuf;

use tec_tpm::compute::testing::debian_chain;

use crate::world::{events, json, refused, registers, str, text, unpacked};

#[test]
fn what_can_be_told_is_approved_and_what_is_left_is_said() {
    let image = unpacked(&debian_chain("2.12"));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let at = ["--state-dir", str(&state)];
    let approve = ["image", "approve", "debian", str(image.path())];
    let said = text(&[&at[..], &approve].concat());
    assert!(said.contains("PCR 7: not predicted"), "{said}");
    assert!(said.contains("give --efivars"), "{said}");
    let shown = json(&[&at[..], &["image", "show", "debian"]].concat());
    assert_eq!(registers(&shown), [4]);
    assert_eq!(events(&shown, 4).last(), Some(&"Pcr4Vmlinuz"));
    let again = [&at[..], &approve, &["--no-mok"]].concat();
    assert_eq!(registers(&json(&again)), [4, 14]);
    let listed = json(&[&at[..], &["image", "list"]].concat());
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[test]
fn a_dry_run_says_the_same_and_stores_nothing() {
    let image = unpacked(&debian_chain("2.12"));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let approved = json(&[
        "--state-dir",
        str(&state),
        "image",
        "approve",
        "debian",
        str(image.path()),
        "--dry-run",
    ]);
    assert_eq!(registers(&approved), [4]);
    assert!(!state.exists());
}

#[test]
fn an_image_that_cannot_be_read_is_refused_with_a_code() {
    let empty = tempfile::tempdir().unwrap();
    let path = str(empty.path());
    let approve = ["image", "approve", "empty", path, "--dry-run"];
    refused(&approve, 1, "error TEC-I400");
    refused(&["image", "approve", "a", "/nowhere", "--dry-run"], 1, "TEC-I400");
    refused(&["image", "approve", "a"], 2, "");
    refused(&["image", "approve", "a", path, "--pcrs", "x"], 2, "");
    refused(&["image", "approve", "a", "--pcrs", "x", "--no-mok"], 2, "");
}

#[test]
fn debian_of_today_is_approved() {
    let cache = std::env::var_os("TEC_IMAGES").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(home?.join(".cache/tec/images/debian")));
    let image = cache.unwrap_or_default().join("current");
    assert!(image.is_dir(), "{} is missing; run `cargo xtask tools`", image.display());
    let approve = ["image", "approve", "debian", str(&image), "--dry-run"];
    let approved = json(&[&approve[..], &["--no-mok"]].concat());
    assert_eq!(registers(&approved), [4, 14]);
    assert_eq!(events(&approved, 4)[2..5], ["Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"]);
}

#[test]
fn the_last_image_is_revoked_only_after_a_yes() {
    let image = unpacked(&debian_chain("2.12"));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let at = ["--state-dir", str(&state), "image"];
    let live = || {
        let listed = json(&[&at[..], &["list"]].concat());
        listed.as_array().unwrap().iter().filter(|image| image["revoked_at"].is_null()).count()
    };
    for name in ["old", "new"] {
        text(&[&at[..], &["approve", name, str(image.path())]].concat());
    }
    text(&[&at[..], &["revoke", "old"]].concat());
    assert_eq!(live(), 1, "one of two needs no question");
    let revoke = [&at[..], &["revoke", "new"]].concat();
    refused(&revoke, 1, "Image new is the last approved image");
    text(&[&revoke[..], &["--dry-run"]].concat());
    assert_eq!(live(), 1, "nobody agreed");
    text(&[&revoke[..], &["--yes"]].concat());
    assert_eq!(live(), 0);
}
