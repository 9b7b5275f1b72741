//! `tec audit archive` and what `tec audit verify` says of it, as processes.

use std::fs;

use tec_core::port::AuditSink as _;
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::SystemEntropy;
use tempfile::TempDir;

use crate::world::{json, refused, str};

#[test]
fn old_audit_lines_move_to_files_and_the_chain_goes_through_all_of_them() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let write = |numbers: std::ops::Range<u64>| {
        let store = Store::open(&directory, &SystemEntropy).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for number in numbers {
            runtime.block_on(store.append(&sample::audit_event(number))).unwrap();
        }
    };
    write(1..2500);
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
    write(2501..2510);
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
