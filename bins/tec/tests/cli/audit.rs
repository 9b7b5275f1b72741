//! `tec audit archive` and what `tec audit verify` says of it, as processes.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use tec_core::port::AuditSink as _;
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::SystemEntropy;
use tempfile::TempDir;

use crate::world::{json, refused, str};

fn write(directory: &Path, numbers: Range<u64>) {
    let store = Store::open(directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for number in numbers {
        runtime.block_on(store.append(&sample::audit_event(number))).unwrap();
    }
}

/// The state directory as it is now, as if all later writes were lost.
fn copied(from: &Path, to: &Path) {
    fs::DirBuilder::new().mode(0o700).create(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn verify<'a>(directory: &'a Path, head: &'a str) -> [&'a str; 6] {
    ["--state-dir", str(directory), "audit", "verify", "--head", head]
}

fn head(directory: &Path) -> String {
    let verified = json(&["--state-dir", str(directory), "audit", "verify"]);
    verified["head"].as_str().unwrap().to_owned()
}

#[test]
fn a_log_that_lost_its_end_lacks_the_head_that_was_kept() {
    let dir = TempDir::new().unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| dir.path().join(name));
    write(&whole, 1..9);
    copied(&whole, &cut);
    let early = head(&whole);
    write(&whole, 9..13);
    let late = head(&whole);
    for kept in [&early, &late] {
        assert_eq!(json(&verify(&whole, kept))["head"], late);
    }
    assert_eq!(head(&cut), early, "what is left is intact");
    refused(&verify(&cut, &late), 1, "TEC-S500: audit lines 9 to 12 are missing");
    write(&cut, 20..30);
    refused(&verify(&cut, &late), 1, "TEC-S500: audit line 12 is 12:");
    refused(&verify(&cut, "12"), 2, "a head is NUMBER:HASH");

    let file = dir.path().join("archive.jsonl");
    json(&["--state-dir", str(&whole), "audit", "archive", str(&file), "--yes"]);
    assert_eq!(json(&verify(&whole, &late))["archived"], 12);
    refused(&verify(&whole, &early), 1, "audit line 8 was archived");
    let archived = ["--archive", str(&file)];
    assert_eq!(json(&[&verify(&whole, &early)[..], &archived].concat())["intact"], true);
    let other = early.replacen("8:", "7:", 1);
    refused(&[&verify(&whole, &other)[..], &archived].concat(), 1, "TEC-S500: audit line 7 is 7:");
}

#[test]
fn a_backup_names_the_head_of_the_audit_log() {
    let dir = TempDir::new().unwrap();
    let [state, cut, key, file] = ["state", "cut", "key", "file"].map(|name| dir.path().join(name));
    write(&state, 1..9);
    copied(&state, &cut);
    let run = |words: &[&str]| json(&[&["--state-dir", str(&state)][..], words].concat());
    let recipient = run(&["backup", "key", str(&key)])["recipient"].as_str().unwrap().to_owned();
    let made = run(&["backup", "create", "--recipient", &recipient, str(&file)]);
    let backup = fs::read(&file).unwrap();
    let line = backup.split(|byte| *byte == b'\n').next().unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(line).unwrap();
    assert_eq!(manifest["audit_head"], made["audit_head"]);
    let head = manifest["audit_head"].as_str().unwrap();
    assert_eq!(json(&verify(&state, head))["intact"], true);
    refused(&verify(&cut, head), 1, "TEC-S500: audit lines 9 to");
}

#[test]
fn old_audit_lines_move_to_files_and_the_chain_goes_through_all_of_them() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    write(&directory, 1..2500);
    let state = str(&directory);
    let [one, two] = ["one.jsonl", "two.jsonl"].map(|name| dir.path().join(name));
    let archive = |more: &[&str]| {
        let begin = ["--state-dir", state, "audit", "archive"];
        json(&[begin.as_slice(), more].concat())
    };
    let verify = ["--state-dir", state, "audit", "verify"];
    assert_eq!(archive(&[str(&one), "--older-than", "1000y", "--yes"])["lines"], 0);
    let planned = archive(&[str(&one), "--dry-run"]);
    assert_eq!((&planned["lines"], one.exists()), (&2499.into(), false), "{planned}");
    let moved = archive(&[str(&one), "--yes"]);
    assert_eq!((&moved["first"], &moved["last"]), (&1.into(), &2499.into()), "{moved}");
    let verdict = json(&verify);
    assert_eq!((&verdict["events"], &verdict["archived"]), (&2500.into(), &2499.into()));
    assert_eq!(fs::read_to_string(&one).unwrap().lines().count(), 2500, "and where it begins");
    let again =
        ["--state-dir", state, "audit", "archive", str(&one), "--older-than", "0s", "--yes"];
    refused(&again, 1, "cannot write");
    assert_eq!(json(&verify)["events"], 2500, "nothing was removed");
    write(&directory, 2501..2510);
    // All but the line about the first archive, which is from today.
    assert_eq!(archive(&[str(&two), "--yes"])["lines"], 0);
    assert_eq!(archive(&[str(&two), "--older-than", "0s", "--yes"])["last"], 2509);

    let [first, second] = [str(&one), str(&two)];
    let both = [verify.as_slice(), &["--archive", first, "--archive", second]].concat();
    let turned = [verify.as_slice(), &["--archive", second, "--archive", first]].concat();
    assert_eq!(json(&both)["intact"], true);
    refused(&turned, 1, "begins after line 2499");
    refused(&[verify.as_slice(), &["--archive", second]].concat(), 1, "begins after line 2499");
    refused(
        &[verify.as_slice(), &["--archive", first]].concat(),
        1,
        "the log begins after line 2509",
    );
    let text = fs::read_to_string(&one).unwrap().replacen("event 7\"", "event 8\"", 1);
    fs::write(&one, text).unwrap();
    refused(&both, 1, "line 7 is not as it was written");
}
