//! `tec serve` as a process: what it refuses, and what changes at run time.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use tec_e2e::anchor::Anchor;
use tec_e2e::process::{Transcript, wait_for};
use tec_e2e::settings::Settings;
use tec_e2e::wire;
use tempfile::TempDir;
use tokio::runtime::Runtime;

struct Bench {
    directory: TempDir,
    settings: Settings,
    logs: Arc<Transcript>,
    runtime: Runtime,
}

fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings::for_tests(&directory.path().join("unused.html")).unwrap();
    let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Bench { directory, settings, logs, runtime }
}

impl Bench {
    fn state(&self) -> std::path::PathBuf {
        self.directory.path().join("state")
    }

    fn start(&self, flags: &[&str]) -> Anchor {
        Anchor::start(&self.settings, &self.state(), &self.logs, flags).unwrap()
    }

    /// Runs `tec serve`, which is expected to exit by itself.
    fn serve(&self, flags: &[&str]) -> Output {
        Command::new(self.settings.tec())
            .args(["--log", "error", "--state-dir"])
            .arg(self.state())
            .args(["serve", "--register-addr", "127.0.0.1:0"])
            .args(["--ak-addr", "127.0.0.1:0", "--kbs-addr", "127.0.0.1:0"])
            .args(flags)
            .output()
            .unwrap()
    }

    fn get(&self, ca: &str, url: &str) -> anyhow::Result<wire::Reply> {
        self.runtime.block_on(wire::get(ca, url))
    }
}

fn refused_with(output: &Output, code: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(code), "{stderr}");
    assert!(stderr.contains("fix:"), "{stderr}");
}

#[test]
fn a_state_directory_that_others_can_read_is_refused() {
    let bench = bench();
    drop(bench.start(&[]));
    fs::set_permissions(bench.state(), fs::Permissions::from_mode(0o755)).unwrap();
    refused_with(&bench.serve(&[]), "TEC-S403");
    fs::set_permissions(bench.state(), fs::Permissions::from_mode(0o700)).unwrap();
    let key = bench.state().join("seal.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refused_with(&bench.serve(&[]), "TEC-S403");
}

#[test]
fn a_damaged_store_is_refused_and_left_as_it_is() {
    let bench = bench();
    drop(bench.start(&[]));
    let database = bench.state().join("tec.db");
    for extra in ["tec.db-wal", "tec.db-shm"] {
        let _ = fs::remove_file(bench.state().join(extra));
    }
    fs::write(&database, b"this is no database, and long enough to be looked at").unwrap();
    refused_with(&bench.serve(&[]), "TEC-S500");
    assert!(fs::read(&database).unwrap().starts_with(b"this is no database"));
}

#[test]
fn a_store_with_another_seal_key_is_refused() {
    let bench = bench();
    drop(bench.start(&[]));
    let key = bench.state().join("seal.key");
    let mut bytes = fs::read(&key).unwrap();
    bytes[0] ^= 1;
    fs::write(&key, bytes).unwrap();
    refused_with(&bench.serve(&[]), "TEC-K500");
}

#[test]
fn paired_flags_need_each_other_and_usage_errors_exit_with_2() {
    let bench = bench();
    for flags in [
        &["--tls-cert", "x"][..],
        &["--tls-key", "x"],
        &["--dangerous-plain-http", "--tls-cert", "x", "--tls-key", "y", "--tls-ca", "z"],
        &["--pcrs", "4,24"],
        &["--register-rate", "0"],
    ] {
        assert_eq!(bench.serve(flags).status.code(), Some(2), "{flags:?}");
    }
    assert!(!bench.state().exists());
}

#[test]
fn certificate_files_that_cannot_be_used_are_refused() {
    let bench = bench();
    let garbage = bench.directory.path().join("garbage.pem");
    fs::write(&garbage, "no certificate").unwrap();
    let file = garbage.to_str().unwrap();
    let output = bench.serve(&["--tls-cert", file, "--tls-key", file, "--tls-ca", file]);
    refused_with(&output, "TEC-T500");
}

#[test]
fn plain_http_is_served_only_on_explicit_demand() {
    let bench = bench();
    let anchor = bench.start(&[]);
    let [register, ..] = anchor.urls().unwrap();
    assert!(register.is_tls());
    let plain = register.as_str().replace("https://", "http://");
    assert!(bench.get("", &format!("{plain}/ignition")).is_err());
    drop(anchor);
    let anchor = bench.start(&["--dangerous-plain-http"]);
    let [register, ..] = anchor.urls().unwrap();
    assert!(!register.is_tls());
    assert_eq!(bench.get("", &format!("{register}/ignition")).unwrap().status, 200);
}

#[test]
fn a_stranger_cannot_flood_the_registration() {
    let bench = bench();
    let anchor = bench.start(&["--register-rate", "1"]);
    let [register, ..] = anchor.urls().unwrap();
    let ca = anchor.ca().unwrap();
    let statuses: Vec<u16> =
        (0..60).map(|_| bench.get(&ca, &format!("{register}/ignition")).unwrap().status).collect();
    assert_eq!(statuses[0], 200);
    assert_eq!(*statuses.last().unwrap(), 429);
}

#[test]
fn unclaimed_machines_are_capped_and_a_token_can_be_asked_for() {
    let bench = bench();
    let token = bench.directory.path().join("token");
    fs::write(&token, "0123456789abcdef\n").unwrap();
    let flags = ["--max-unclaimed", "1", "--registration-token-file", token.to_str().unwrap()];
    let anchor = bench.start(&flags);
    let [register, ..] = anchor.urls().unwrap();
    let url = format!("{register}/ignition");
    let ca = anchor.ca().unwrap();
    assert_eq!(bench.get(&ca, &url).unwrap().code(), "TEC-R401");
    let with_token = || {
        bench.runtime.block_on(async {
            let client = wire::client(&ca).unwrap();
            let request = client.get(&url).header("authorization", "Bearer 0123456789abcdef");
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        })
    };
    assert_eq!(with_token().0, 200);
    let (status, body) = with_token();
    assert_eq!(status, 429);
    assert!(body.contains("TEC-R430"), "{body}");
}

/// A self-signed certificate for the loopback address, which is its own CA.
fn write_certificate(directory: &Path) -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
    fs::write(directory.join("tls.crt"), &certificate).unwrap();
    certificate
}

#[test]
fn a_renewed_certificate_is_shown_without_a_restart() {
    let bench = bench();
    let directory = bench.directory.path().join("tls");
    fs::create_dir(&directory).unwrap();
    let first = write_certificate(&directory);
    let (cert, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let anchor = bench.start(&["--tls-cert", cert, "--tls-key", key, "--tls-ca", cert]);
    let [register, ..] = anchor.urls().unwrap();
    let url = format!("{register}/ignition");
    assert_eq!(bench.get(&first, &url).unwrap().status, 200);
    let second = write_certificate(&directory);
    let reloaded = || Ok(bench.get(&second, &url).is_ok_and(|reply| reply.status == 200));
    wait_for("the new certificate", Duration::from_secs(20), reloaded).unwrap();
    assert!(bench.get(&first, &url).is_err());
}

#[test]
fn a_machine_added_by_hand_gets_the_same_config_again() {
    let bench = bench();
    let anchor = bench.start(&[]);
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let first = anchor.tec(&["machine", "add", "--id", id]).unwrap();
    let again = anchor.tec(&["machine", "add", "--id", id]).unwrap();
    assert_eq!(first, again);
    assert_eq!(first["ignition"], anchor.tec(&["ignition", "machine", id]).unwrap());
    let machines = anchor.tec(&["machine", "list"]).unwrap();
    assert_eq!(machines.as_array().map(Vec::len), Some(1));
    assert_eq!(machines[0]["registered_by"], "admin");
    let events = anchor.tec(&["audit", "list"]).unwrap();
    assert_eq!(events[0]["event"]["action"], "machine-registered");

    let would = anchor.tec(&["machine", "remove", id, "--dry-run"]).unwrap();
    assert_eq!(would["dry_run"], true);
    assert_eq!(anchor.tec(&["machine", "list"]).unwrap().as_array().map(Vec::len), Some(1));
    anchor.tec(&["machine", "remove", id, "--yes"]).unwrap();
    assert_eq!(anchor.tec(&["machine", "list"]).unwrap(), Value::Array(Vec::new()));
}

#[test]
fn a_server_demands_no_less_of_nodes_than_the_one_before_unless_it_is_told_to() {
    let bench = bench();
    let token = bench.directory.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    let token = token.to_str().unwrap().to_owned();
    let mut anchor = bench.start(&["--ak-approval", "manual", "--registration-token-file", &token]);
    anchor.kill().unwrap();
    refused_with(&bench.serve(&["--ak-approval", "manual"]), "TEC-S411");
    refused_with(&bench.serve(&["--registration-token-file", &token]), "TEC-S411");
    refused_with(&bench.serve(&[]), "TEC-S411");
    let mut anchor = bench.start(&["--dangerous-lower-demands"]);
    anchor.kill().unwrap();
    drop(bench.start(&[]));
}

#[test]
fn the_server_answers_health_checks_and_ends_on_sigterm() {
    let bench = bench();
    let mut anchor = bench.start(&[]);
    let ca = anchor.ca().unwrap();
    for url in anchor.urls().unwrap() {
        assert_eq!(bench.get(&ca, &format!("{url}/healthz")).unwrap().status, 200, "{url}");
    }
    let status = anchor.terminate(Duration::from_secs(15)).unwrap();
    assert_eq!(status.code(), Some(0));
}
