//! The program as called by Clevis and by people, in cases that need no TPM.
#![expect(clippy::unwrap_used, reason = "clippy takes helpers of tests for library code")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_node-agent");
const PLAINTEXT: &str = "canary-passphrase";
const CONFIG: &str = r#"{"servers":[{"url":"https://127.0.0.1:1"}],
    "path":"default/7c9e6679-7425-40de-944b-e07fc1f90ae7/root","num_retries":1}"#;

fn call(program: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .env("TEC_TCTI", "device:/nonexistent")
        .env_remove("TEC_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that refuses its arguments does not read.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn link(directory: &Path, name: &str) -> std::path::PathBuf {
    let made = call(Path::new(PROGRAM), &["install-links", directory.to_str().unwrap()], "");
    assert!(made.status.success(), "{made:?}");
    assert_eq!(String::from_utf8(made.stdout).unwrap().lines().count(), 2);
    directory.join(name)
}

/// The lines of a failed call: exactly three, nothing on stdout, and no secret among them.
fn refusal(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!text.contains("canary"), "{text}");
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{text}");
    lines
}

#[test]
fn the_pin_describes_itself_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["clevis-encrypt-trustee", "clevis-decrypt-trustee"] {
        let directory = dir.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let output = call(&link(&directory, name), &["--summary"], "");
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    }
}

#[test]
fn calls_without_configuration_or_with_unknown_flags_are_usage_errors() {
    let dir = tempfile::tempdir().unwrap();
    let encrypt = link(dir.path(), "clevis-encrypt-trustee");
    assert_eq!(call(&encrypt, &[], PLAINTEXT).status.code(), Some(2));
    let program = Path::new(PROGRAM);
    assert_eq!(call(program, &[], "").status.code(), Some(2));
    assert_eq!(call(program, &["decrypt", "--x"], "").status.code(), Some(2));
    let bad_handle = ["--ak-handle", "0x01", "ak", "show"];
    assert_eq!(call(program, &bad_handle, "").status.code(), Some(2));
    assert_eq!(call(program, &["--version"], "").status.code(), Some(0));
}

#[test]
fn a_broken_configuration_is_told_in_three_lines() {
    let dir = tempfile::tempdir().unwrap();
    let encrypt = link(dir.path(), "clevis-encrypt-trustee");
    for config in ["{", "[]", r#"{"servers":[],"path":"default/a/root"}"#] {
        let lines = refusal(&call(&encrypt, &[config, "-y"], PLAINTEXT));
        assert!(lines[0].starts_with("TEC-N400 "), "{lines:?}");
        assert_eq!(lines[2], "see: tec explain TEC-N400");
    }
}

#[test]
fn what_is_no_sealed_passphrase_is_told_in_three_lines() {
    let dir = tempfile::tempdir().unwrap();
    let decrypt = link(dir.path(), "clevis-decrypt-trustee");
    for text in ["", "canary", "canary..a.b.c", "eyJhbGciOiJkaXIifQ..a.b.c"] {
        let lines = refusal(&call(&decrypt, &[], text));
        assert!(lines[0].starts_with("TEC-N422 "), "{lines:?}");
    }
}

#[test]
fn a_missing_tpm_is_told_in_three_lines_that_name_the_machine() {
    let lines = refusal(&call(Path::new(PROGRAM), &["encrypt", CONFIG], PLAINTEXT));
    assert!(lines[0].starts_with("TEC-N500 "), "{lines:?}");
    assert_eq!(
        lines[2],
        "see: tec explain 7c9e6679-7425-40de-944b-e07fc1f90ae7, tec explain TEC-N500"
    );
}

#[test]
fn plain_http_needs_no_certificates_of_the_platform() {
    let uuid = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let output = Command::new(PROGRAM)
        .args(["ak", "register", "--url", "http://127.0.0.1:1/register-ak"])
        .args(["--uuid", uuid, "--tcti", "device:/nonexistent"])
        .args(["--log", "error"])
        // As in an initial file system.
        .env("SSL_CERT_FILE", "/nonexistent")
        .env("SSL_CERT_DIR", "/nonexistent")
        .output()
        .unwrap();
    let lines = refusal(&output);
    // It gets as far as the TPM.
    assert!(lines[0].starts_with("TEC-N500 "), "{lines:?}");
}

#[test]
fn more_than_a_passphrase_is_refused() {
    let input = "canary".repeat(20_000);
    let lines = refusal(&call(Path::new(PROGRAM), &["encrypt", CONFIG], &input));
    assert!(lines[1].contains("more than 65536 bytes"), "{lines:?}");
}
