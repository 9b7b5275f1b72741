//! Common mistakes, and the messages about them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::world::{json, refused, said, str, tec, text};

const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

/// A state directory as left by `tec bootstrap init`, in a directory that is removed with the test.
fn founded(flags: &[&str]) -> (TempDir, String) {
    let directory = TempDir::new().unwrap();
    let state = str(&directory.path().join("state")).to_owned();
    let start = ["--state-dir", &state, "bootstrap", "init"];
    text(&[&start, flags].concat());
    (directory, state)
}

/// Three free addresses.
fn addresses() -> [String; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

/// A server that is stopped with the test.
struct Server(Child);

impl Server {
    fn start(state_dir: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tec"));
        command.args(["--state-dir", state_dir, "serve"]).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_server_needs_no_flag_again_and_status_knows_whether_it_runs() {
    let [register, ak, kbs] = addresses();
    let flags = [
        "--public-host",
        "node.example",
        "--register-addr",
        &register,
        "--ak-addr",
        &ak,
        "--kbs-addr",
        &kbs,
    ];
    let (_directory, state) = founded(&flags);
    let state = state.as_str();
    let status = || {
        let output = tec(&["--state-dir", state, "-o", "json", "status"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(status()["running"], false);
    let server = Server::start(state);
    let begin = Instant::now();
    while status()["running"] != true {
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    while std::net::TcpStream::connect(&kbs).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    let (_, port) = kbs.rsplit_once(':').unwrap();
    let url = &status()["endpoints"]["kbs"][0]["url"];
    assert_eq!(*url, format!("https://node.example:{port}"));
    refused(&["--state-dir", state, "serve"], 1, "TEC-S410");
    drop(server);
    let needs = status()["needs_you"].to_string();
    assert!(needs.contains("the server is stopped"), "{needs}");
    let other = ["--state-dir", state, "serve", "--public-host", "other.example"];
    refused(&other, 1, "--public-host other.example differs from public-host = \"node.example\"");
}

#[test]
fn what_a_server_demanded_counts_without_its_file_and_in_a_restored_backup() {
    let (directory, state) = founded(&["--ak-approval", "manual"]);
    let [key, backup, other] = ["key", "backup", "other"].map(|name| directory.path().join(name));
    let run = |words: &[&str]| json(&[&["--state-dir", &state][..], words].concat());
    run(&["machine", "add", "--id", MACHINE]);
    let recipient = run(&["backup", "key", str(&key)])["recipient"].as_str().unwrap().to_owned();
    let create = ["backup", "create", "--recipient", &recipient, str(&backup)];
    let signer = run(&create)["signer"].as_str().unwrap().to_owned();
    let other = ["--state-dir", str(&other)];
    let restore = ["backup", "restore", "--identity", str(&key), "--signer", &signer, str(&backup)];
    text(&[&other[..], &restore].concat());
    for lost in ["tec.toml", "demands.json"] {
        fs::remove_file(Path::new(&state).join(lost)).unwrap();
    }
    for at in [["--state-dir", &state], other] {
        let init = [&at[..], &["bootstrap", "init"]].concat();
        refused(&init, 1, "TEC-S411");
        text(&[&init[..], &["--ak-approval", "manual"]].concat());
    }
}

#[test]
fn a_command_that_looks_makes_no_store() {
    let empty = TempDir::new().unwrap();
    for command in [&["status"][..], &["machine", "list"], &["explain"]] {
        let words = [&["--state-dir", str(empty.path())], command].concat();
        refused(&words, 1, "is not a state directory: it has no tec.db");
    }
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
}

// Only root can become somebody else.
#[test]
#[ignore = "needs root: run as root"]
fn another_user_is_not_told_to_take_the_directory_over() {
    let (directory, state) = founded(&[]);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("tec"); // The build may be in a home that is closed to others.
    fs::copy(env!("CARGO_BIN_EXE_tec"), &program).unwrap();
    for command in ["status", "serve"] {
        let output = Command::new(&program)
            .args(["--state-dir", &state, command])
            .uid(65_534)
            .output()
            .unwrap();
        let said = said(&output);
        assert!(said.contains("TEC-S403"), "{command}: {said}");
        assert!(said.contains("as the user of the server"), "{command}: {said}");
        assert!(!said.contains("chown") && !said.contains("locked"), "{command}: {said}");
    }
}

#[test]
fn what_cannot_be_explained_is_said_to_be_that() {
    let (_directory, state) = founded(&[]);
    let explain = |subject| ["--state-dir", &state, "explain", subject];
    refused(&explain("worker-7"), 1, "is not the ID or name of a machine");
    refused(&explain(MACHINE), 1, "TEC-A403");
    let add = ["--state-dir", &state, "machine", "add", "--id", MACHINE];
    text(&add);
    refused(&explain(MACHINE), 1, "TEC-A410");
    let name = ["--state-dir", &state, "machine", "name", MACHINE, "worker-7"];
    text(&name);
    refused(&explain("worker-7"), 1, "no boot of machine worker-7 (7c9e6679");
}

#[test]
fn a_code_is_explained_without_a_server() {
    let page = text(&["--state-dir", "/nowhere", "explain", "TEC-A412"]);
    assert!(page.starts_with("TEC-A412 "), "{page}");
    assert!(page.contains("  more:  On the server, ") && !page.contains("https://"), "{page}");
    assert!(page.contains("`tec image approve <name> <path>`"), "{page}");
    assert!(!page.contains("tec explain TEC-"), "the page leads back to itself: {page}");
    let page = json(&["--state-dir", "/nowhere", "explain", "TEC-A412"]);
    assert_eq!(page["code"], "TEC-A412");
}

#[test]
fn what_cannot_be_undone_is_shown_before_it_is_done() {
    let (_directory, state) = founded(&[]);
    let config =
        text(&["--state-dir", &state, "machine", "add", "--id", MACHINE, "--name", "worker-7"]);
    serde_json::from_str::<serde_json::Value>(&config).expect("the config, and nothing else");
    for verb in ["remove", "retire", "revoke"] {
        let words = ["--state-dir", &state, "machine", verb, "worker-7"];
        refused(&words, 1, &format!("Machine worker-7 ({MACHINE})"));
        refused(&words, 1, "This cannot be undone.");
        let rehearsed = tec(&[&words[..], &["--dry-run"]].concat());
        assert!(rehearsed.status.success());
        let effect = String::from_utf8_lossy(&rehearsed.stderr);
        assert!(effect.contains("This cannot be undone."), "{verb} --dry-run: {effect}");
    }
    let stands = json(&["--state-dir", &state, "machine", "show", "worker-7"]);
    assert_eq!(stands["machine"]["state"], "unclaimed", "nobody agreed");
    text(&["--state-dir", &state, "machine", "remove", "worker-7", "--yes"]);
}

#[test]
fn a_reference_is_told_from_a_path() {
    let directory = TempDir::new().unwrap();
    let approve = ["--state-dir", str(directory.path()), "image", "approve", "os"];
    let reference = [&approve[..], &["registry.example/os:1"]].concat();
    refused(&reference, 1, "is an image in a registry, and a path is needed");
    let said = said(&tec(&reference));
    assert!(!said.contains("TEC-I400"), "no file is corrupt: {said}");
    refused(&[&approve[..], &["./os:1"]].concat(), 1, "cannot open ./os:1");
}

#[test]
fn a_kubeconfig_that_is_missing_is_named_once() {
    for choice in ["--namespace", "--context"] {
        let output = Command::new(env!("CARGO_BIN_EXE_tec"))
            .args([choice, "tec", "status"])
            .env("KUBECONFIG", "/nowhere/config")
            .output()
            .unwrap();
        let said = said(&output);
        for once in ["/nowhere/config", "No such file", "--kubeconfig FILE"] {
            assert_eq!(said.matches(once).count(), 1, "{said}");
        }
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
