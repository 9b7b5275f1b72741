//! The example in the ways that people use it: as a library, as a native program, and as a WASI program in an
//! interpreter. All three must agree.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code, its helper functions too"
)]

mod host;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{EventKind, EventLog, EventLogBuilder};
use tec_tpm::output::label;
use tec_tpm::testing::SoftTpm;

const NONCE: [u8; 32] = [0x5a; 32];
const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;

/// Quote and log of a machine that started these programs.
fn evidence(programs: &[&str]) -> Value {
    let mut log = EventLogBuilder::new();
    for program in programs {
        log.image(Sha256Digest::of(program), program);
    }
    let log = log.measure(PcrIndex::SECURE_BOOT, EventKind::EFI_ACTION, b"an action").build();
    let tpm = SoftTpm::p256(7);
    for event in EventLog::parse(&log).unwrap().events() {
        if let Some(logged) = event.logged() {
            tpm.extend(logged.pcr, &logged.digest);
        }
    }
    tpm.set_event_log(log);
    tpm.quote(&NONCE).to_value()
}

/// Reference values of an image with these programs.
fn reference(programs: &[&str]) -> Value {
    let event = |program: &&str| {
        ImageEvent::new(
            "EV_EFI_BOOT_SERVICES_APPLICATION",
            PCR4,
            Sha256Digest::of(program),
            *program,
        )
    };
    let pcr4 = ExpectedPcr::from_events(PCR4, programs.iter().map(event));
    serde_json::from_str(&label(&ExpectedPcrs::new(vec![pcr4])).unwrap()).unwrap()
}

fn request(booted: &[&str], expected: &[&str], nonce: [u8; 32]) -> Vec<u8> {
    let request = json!({
        "evidence": evidence(booted),
        "nonce": hex::encode(nonce),
        "reference": reference(expected),
    });
    request.to_string().into_bytes()
}

/// A program's output and exit status.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    status: i32,
    printed: String,
}

/// The native program.
fn natively(request: &[u8]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_verify"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(request).unwrap();
    let output = child.wait_with_output().unwrap();
    Ended {
        status: output.status.code().unwrap(),
        printed: String::from_utf8(output.stdout).unwrap(),
    }
}

/// The program as WebAssembly, built by cargo in its usual target directory.
static MODULE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let target = "wasm32-wasip1";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let made = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
        .args(["--bin", "verify", "--target", target, "--target-dir"])
        .arg(folder)
        .status()
        .unwrap();
    assert!(made.success(), "no {target} program: run `cargo xtask tools`");
    std::fs::read(folder.join(target).join("debug/verify.wasm")).unwrap()
});

fn everywhere(request: &[u8]) -> Ended {
    let ended = natively(request);
    assert_eq!(host::run(&MODULE, request), ended);
    ended
}

#[test]
fn a_machine_that_booted_what_it_should_is_good() {
    let ended = everywhere(&request(&["shim", "grub"], &["shim", "grub"], NONCE));
    assert_eq!(ended.status, 0);
    let verdict: Value = serde_json::from_str(&ended.printed).unwrap();
    let key = SoftTpm::p256(7).public_key().fingerprint();
    assert_eq!(verdict["key"], key.to_string());
    assert_eq!(verdict["registers"], json!([{"pcr": 4, "expected": true}]));
}

#[test]
fn of_a_machine_that_booted_something_else_the_event_is_told() {
    let ended = everywhere(&request(&["shim", "evil"], &["shim", "grub"], NONCE));
    assert_eq!(ended.status, 1);
    let verdict: Value = serde_json::from_str(&ended.printed).unwrap();
    assert_eq!(verdict["registers"][0]["expected"], false);
    assert_eq!(verdict["registers"][0]["differs"]["detail"], "evil");
}

#[test]
fn a_quote_for_another_nonce_says_nothing() {
    let ended = everywhere(&request(&["shim"], &["shim"], [0; 32]));
    let nothing = String::new();
    assert_eq!(ended, Ended { status: 1, printed: nothing });
}

#[test]
fn what_is_no_request_is_refused() {
    for garbage in [&b""[..], b"{}", b"\xff\xfe"] {
        assert_eq!(everywhere(garbage).status, 1);
    }
}
