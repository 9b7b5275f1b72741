//! `tec image approve` as a process: what is pinned, and what is left out.

use std::path::PathBuf;

use tec_core::digest::Sha256Digest;
use tec_tpm::compute::testing::debian_chain;

use crate::world::{events, json, refused, registers, str, tec, text, unpacked, write};

#[test]
fn what_can_be_told_is_approved_and_what_is_left_is_said() {
    let image = unpacked(&debian_chain("2.12"));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let at = ["--state-dir", str(&state)];
    let approve = ["image", "approve", "debian", str(image.path()), "--accept-unpinned"];
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

/// The kernel of this configuration is not where it says, so that only PCR 4 is predicted.
#[test]
fn an_image_of_whose_boot_parts_are_not_checked_is_approved_only_if_that_is_accepted() {
    let generated = "if [ x$feature = xy ]; then\n  search --set=root\nfi\nlinux /vmlinuz quiet\n";
    let image = unpacked(&debian_chain("2.12").with("EFI/debian/grub.cfg", generated.as_bytes()));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let at = ["--state-dir", str(&state)];
    let approve = [&at[..], &["image", "approve", "debian", str(image.path())]].concat();
    refused(&approve, 1, "error TEC-I428: cannot approve image debian: initramfs and command line");
    refused(&approve, 1, "repeat the command with `--accept-unpinned`");
    refused(&[&approve[..], &["--dry-run"]].concat(), 1, "are NOT checked");
    assert!(!state.exists(), "no store was made for what was refused");
    let found = [&at[..], &["bootstrap", "init", "--public-host", "h"]].concat();
    let image = format!("debian={}", str(image.path()));
    let found = [&found[..], &["--image", &image]].concat();
    refused(&found, 1, "error TEC-I428");
    assert_eq!(json(&[&at[..], &["image", "list"]].concat()), serde_json::json!([]));

    let accepted = [&approve[..], &["--accept-unpinned"]].concat();
    let sentence = "WARNING: initramfs and command line are NOT checked\n";
    assert!(text(&accepted).contains(sentence));
    text(&[&found[..], &["--accept-unpinned"]].concat());

    let unpinned = serde_json::json!(["initramfs", "command-line"]);
    let show = [&at[..], &["image", "show", "debian"]].concat();
    assert!(text(&show).contains(sentence));
    assert_eq!(json(&show)["unpinned"], unpinned);
    let line = "WARNING: image debian: initramfs and command line are NOT checked\n";
    let list = [&at[..], &["image", "list"]].concat();
    assert!(text(&list).ends_with(line));
    assert_eq!(json(&list)[0]["unpinned"], unpinned);
    assert!(
        text(&[&list[..], &["-o", "wide"]].concat())
            .contains("  NOT covered: initramfs, command line, ")
    );
    let status = |more: &[&str]| tec(&[&at[..], &["status"], more].concat());
    assert!(String::from_utf8(status(&[]).stdout).unwrap().contains(line));
    let json: serde_json::Value =
        serde_json::from_slice(&status(&["--output", "json"]).stdout).unwrap();
    assert_eq!(json["unpinned"][0]["unpinned"], unpinned);
    assert_eq!(json["coverage"][0]["coverage"][2]["part"], "boot-loader");
    let short = "coverage      debian: NOT covered: initramfs, command line, system extensions, ";
    assert!(String::from_utf8(status(&[]).stdout).unwrap().contains(short));
    let page = directory.path().join("page.html");
    status(&["--html", str(&page)]);
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains(line.trim_end()));
    assert!(page.contains("<th>initramfs</th><td></td><td class=\"no\">"), "{page}");
    // Held to its first boot, it is checked in all others.
    let held = text(&[&approve[..], &["--first-boot"]].concat());
    let sentence =
        "WARNING: initramfs and command line are NOT checked in the first boot of each machine\n";
    assert!(held.contains(sentence), "{held}");
}

/// `tec serve --pcrs` decides what boots must match, whatever the prediction contains.
#[test]
fn registers_that_the_server_does_not_pin_cover_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let register = |pcr: u64, id: &str| {
        let digest = Sha256Digest::of(id);
        let value = Sha256Digest::ZERO.extended(&digest);
        let event = serde_json::json!({"name": "E", "pcr": pcr, "hash": digest, "id": id});
        serde_json::json!({"id": pcr, "value": value, "events": [event]})
    };
    let uki = [(4, "Pcr4Uki"), (11, "Pcr11Initrd"), (12, "Pcr12LoadOptions")];
    let pcrs: Vec<_> = uki.iter().map(|(pcr, id)| register(*pcr, id)).collect();
    let values = serde_json::json!({"pcrs": pcrs}).to_string();
    let values = write(directory.path(), "uki.json", values);
    let approve = |state: &str| {
        let at = ["--state-dir", state, "image", "approve", "uki", "--pcrs", str(&values)];
        at.map(str::to_owned)
    };
    let strict = directory.path().join("strict");
    let whole = approve(str(&strict));
    assert!(!text(&whole.each_ref().map(String::as_str)).contains("NOT checked"));
    let lax = directory.path().join("lax");
    let init = ["bootstrap", "init", "--public-host", "h", "--pcrs", "4"];
    text(&[&["--state-dir", str(&lax)][..], &init].concat());
    let partly = approve(str(&lax));
    refused(&partly.each_ref().map(String::as_str), 1, "image uki: command line is NOT checked");
}

#[test]
fn a_dry_run_says_the_same_and_stores_nothing() {
    let image = unpacked(&debian_chain("2.12"));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let approve = ["--state-dir", str(&state), "image", "approve", "debian", str(image.path())];
    let approve = [&approve[..], &["--first-boot", "--dry-run"]].concat();
    let approved = json(&approve);
    assert_eq!(registers(&approved), [4]);
    let row = |part: &str, pcrs: &[u8], by: &str| serde_json::json!({"part": part, "pcrs": pcrs, "by": by});
    assert_eq!(approved["coverage"][3], row("kernel", &[4], "image"));
    assert_eq!(approved["coverage"][4], row("initramfs", &[9], "first-boot"));
    assert_eq!(approved["coverage"][8], row("root-file-system", &[], "unknown"));
    let said = text(&approve);
    assert!(said.starts_with("image debian  would be approved\n"), "{said}");
    for line in [
        "firmware            PCR 0, 2  platform baseline of each machine",
        "kernel              PCR 4     value of the image",
        "initramfs           PCR 9     first boot of this image on each machine",
        "root file system              not known: if the command line has no hash of it, ",
    ] {
        assert!(said.contains(&format!("\n  {line}")), "{said}");
    }
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
    let approve = ["image", "approve", "debian", str(&image), "--accept-unpinned", "--dry-run"];
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
        text(&[&at[..], &["approve", name, str(image.path()), "--accept-unpinned"]].concat());
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
