//! `tec image approve --from-attempt`: a refused boot as an image.

use std::path::Path;

use tec_core::attest::Attempt;
use tec_core::digest::Sha256Digest;
use tec_core::explain::Gate;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::port::AttemptLog;
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::SystemEntropy;

use crate::world::{json, refused, str, tec, text};

fn register(pcr: PcrIndex, events: &[(&str, &str, &str)]) -> ExpectedPcr {
    let event = |(id, text, of): &(&str, &str, &str)| {
        ImageEvent::new("E", pcr, Sha256Digest::of(of), *id).from_file(*text)
    };
    ExpectedPcr::from_events(pcr, events.iter().map(event))
}

/// A boot with GRUB whose log claims a harmless command besides the one that was measured.
fn measured() -> ExpectedPcrs {
    ExpectedPcrs::new(vec![
        register(PcrIndex::BOOT_MANAGER, &[("Pcr4Booted", "\\EFI\\debian\\grubx64.efi", "grub")]),
        register(
            PcrIndex::BOOT_COMMANDS,
            &[
                ("Pcr8Command", "grub_cmd: set default=0", "terminal_output console"),
                ("Pcr8KernelCmdline", "kernel_cmdline: /vmlinuz quiet", "/vmlinuz quiet"),
            ],
        ),
        register(PcrIndex::BOOT_FILES, &[("Pcr9File", "/initrd.img", "initrd")]),
    ])
}

fn record(state: &Path, attempt: &Attempt) {
    let store = Store::open(state, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(AttemptLog::record(&store, attempt)).unwrap();
}

fn refusal(number: u64, boot: u32) -> Attempt {
    let mut attempt = sample::attempt_in_boot(number, boot);
    attempt.ladder.fail(Gate::Pcrs, "PCR 4 differs");
    attempt.measured = measured();
    attempt
}

#[test]
fn a_refused_boot_is_listed_and_approved_after_a_question() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let at = ["--state-dir", str(&state)];
    record(&state, &refusal(1, 1));
    let id = sample::attempt_id(1).to_string();
    let explained = text(&[&at[..], &["explain", &id]].concat());
    let hint = format!("tec image approve NAME --from-attempt {id}");
    assert!(explained.trim_end().ends_with(&hint), "{explained}");

    let approve = [&at[..], &["image", "approve", "web-1", "--from-attempt", &id]].concat();
    for line in [
        "PCR 4",
        "IN NO IMAGE:  \\EFI\\debian\\grubx64.efi",
        "IN NO IMAGE:  NOT PROVEN BY ITS DIGEST: grub_cmd: set default=0",
        "IN NO IMAGE:  kernel_cmdline: /vmlinuz quiet\n",
        "4 events, 4 of them in no approved image",
        "standard input is not a terminal",
    ] {
        refused(&approve, 1, line);
    }
    let dry = tec(&[&approve[..], &["--dry-run"]].concat());
    assert!(String::from_utf8(dry.stderr).unwrap().contains("IN NO IMAGE:"));
    assert!(String::from_utf8(dry.stdout).unwrap().starts_with("image web-1  would be approved"));
    let list = || json(&[&at[..], &["image", "list"]].concat());
    assert_eq!(list(), serde_json::json!([]));

    let approved = json(&[&approve[..], &["--yes"]].concat());
    assert_eq!(approved["unpinned"], serde_json::json!([]), "{approved}");
    assert_eq!(approved["coverage"][5]["pcrs"], serde_json::json!([8]));
    assert_eq!(approved["review"]["events"][1]["text_proven"], false);
    assert_eq!(approved["review"]["events"][2]["text_proven"], true);
    assert_eq!(list()[0]["pcrs"], serde_json::to_value(measured().pcrs).unwrap());
    assert!(list()[0]["reference"].as_str().unwrap().starts_with(&format!("attempt {id}")));

    // The next refused boot of this machine shares events with it.
    record(&state, &refusal(2, 2));
    let next = sample::attempt_id(2).to_string();
    let approve = [&at[..], &["image", "approve", "web-2", "--from-attempt", &next]].concat();
    refused(&approve, 1, "as logged of web-1:  \\EFI\\debian\\grubx64.efi");
    text(&[&at[..], &["image", "revoke", "web-1", "--yes"]].concat());
    refused(&approve, 1, "NO LONGER APPROVED, as logged of web-1:  \\EFI");
}

#[test]
fn an_attempt_that_cannot_be_approved_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let refused = |number: u64, says: &str| {
        let id = sample::attempt_id(number).to_string();
        let state = ["--state-dir", str(&state)];
        let approve = ["image", "approve", "x", "--from-attempt", &id, "--yes"];
        refused(&[&state[..], &approve].concat(), 1, says);
    };
    let mut long_ago = refusal(1, 1);
    long_ago.measured = ExpectedPcrs::default();
    record(&state, &long_ago);
    refused(1, "error TEC-I429: cannot approve attempt");
    refused(1, "its event log does not explain PCRs 4");
    record(&state, &sample::attempt_in_boot(2, 2));
    refused(1, "no longer kept, since its machine attested again");
    refused(2, "its boot matched an approved image");
    record(&state, &sample::attempt(3, Some(1)));
    refused(3, "refused before its registers were judged");
    refused(9, "no machine and no attempt has the id");
}
