//! `tec machine recovery-key` as a process, with keys from `jose`, which comes with Clevis.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::port::{AuditAction, AuditEvent, EntropyRng, SecretStore as _};
use tec_core::recovery::RecoveryKey;
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::SystemEntropy;
use tec_trustee::jwe;
use tec_trustee::jwe::TeePubKey;
use tempfile::TempDir;

use crate::world::{json, refused, str, text, write};

/// The output of a program.
fn run(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// An admin's private key in a file, and its public half.
fn admin(directory: &Path, curve: &str) -> (PathBuf, TeePubKey) {
    // With an algorithm in the template, `jose` generates only P-521 keys.
    let template = format!(r#"{{"kty":"EC","crv":"{curve}"}}"#);
    let mut jose = Command::new("jose");
    let private = run(jose.args(["jwk", "gen", "-o-", "-i", &template]), b"");
    let mut jwk: Value = serde_json::from_slice(&private).unwrap();
    jwk["alg"] = "ECDH-ES+A256KW".into();
    let private = jwk.to_string();
    let mut jose = Command::new("jose");
    let public = run(jose.args(["jwk", "pub", "-i-", "-o-"]), private.as_bytes());
    let file = write(directory, &format!("{curve}.jwk"), &private);
    (file, serde_json::from_slice(&public).unwrap())
}

/// A store in which the machine escrowed keys, sealed to an admin.
fn store(directory: &Path, machine: MachineId, admin: &TeePubKey, keys: &[&RecoveryKey]) {
    let store = Store::open(directory, &SystemEntropy).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (number, key) in (1..).zip(keys) {
        let mut rng = EntropyRng::new(&SystemEntropy);
        let sealed = jwe::encrypt(admin, key.passphrase(), &mut rng).unwrap();
        let sealed = SecretBytes::new(serde_json::to_vec(&sealed).unwrap());
        let path = ResourcePath::recovery(&machine, number);
        let action = AuditAction::RecoveryEscrowed;
        let line = AuditEvent::new(sample::time(1), action, Some(machine), path.as_str());
        runtime.block_on(store.put_new(&path, &sealed, &line)).unwrap();
    }
}

fn key() -> (RecoveryKey, String) {
    let key = RecoveryKey::random(&mut EntropyRng::new(&SystemEntropy));
    let text = String::from_utf8(key.passphrase().expose("test").to_vec()).unwrap();
    (key, text)
}

#[test]
fn the_admin_reads_the_digits_with_tec_or_with_jose() {
    for curve in ["P-256", "P-521"] {
        let directory = TempDir::new().unwrap();
        let (identity, public) = admin(directory.path(), curve);
        let machine = sample::machine_id(1);
        let ((old, old_text), (new, new_text)) = (key(), key());
        let state = directory.path().join("state");
        store(&state, machine, &public, &[&old, &new]);
        let id = machine.to_string();
        let base = ["--state-dir", str(&state), "machine", "recovery-key", &id];

        let opened = text(&[&base[..], &["--identity", str(&identity)]].concat());
        assert_eq!(opened, format!("2 {new_text}\n1 {old_text}\n"));
        let sealed = json(&base);
        assert_eq!(sealed[0]["number"], 2);
        let mut jose = Command::new("jose");
        jose.args(["jwe", "dec", "-i-", "-k", str(&identity), "-O-"]);
        let digits = run(&mut jose, sealed[0]["sealed"].to_string().as_bytes());
        assert_eq!(digits, new_text.as_bytes());
    }
}

#[test]
fn another_key_and_a_machine_that_left_none_are_named() {
    let directory = TempDir::new().unwrap();
    let (_, public) = admin(directory.path(), "P-256");
    let (stranger, _) = admin(directory.path(), "P-521");
    let machine = sample::machine_id(1);
    let state = directory.path().join("state");
    store(&state, machine, &public, &[&key().0]);
    let show = |id: &str, more: &[&str], says: &str| {
        let base = ["--state-dir", str(&state), "machine", "recovery-key", id];
        refused(&[&base[..], more].concat(), 1, says);
    };
    let id = machine.to_string();
    let identity = ["--identity", str(&stranger)];
    show(&id, &identity, "recovery key 1 cannot be opened with this key");
    let other = sample::machine_id(2).to_string();
    show(&other, &[], "left no recovery key");
}
