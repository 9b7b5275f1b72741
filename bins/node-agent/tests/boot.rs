//! First boot, later boots, and refusals: the real program, a TPM emulator, real services.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy takes helpers of tests for library code"
)]

mod bad_input;
mod disk;
mod history;
mod next_boot;
mod until;
mod world;

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tec_core::ak::{EkBoundMatcher, TofuMatcher};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::explain::{Gate, StepState};
use tec_core::pcr::PcrIndex;
use tec_core::port::{AkRegistry as _, AttemptLog};
use tec_tpm::event_log::EventLogBuilder;
use tec_tpm::testing::Swtpm;

use self::until::until;
use self::world::{Node, PASSPHRASE, Wire, World, boot, good, pipe, refused};

#[test]
fn the_first_boot_seals_and_later_boots_of_the_same_image_open() {
    let Node { world, mut tpm, machine, config } = Node::start(Wire::Tls);
    let output = world.encrypt(&tpm, &config);
    assert!(output.stderr.is_empty(), "{output:?}");
    let sealed = good(output);
    assert_eq!(sealed.split(|byte| *byte == b'.').count(), 5);

    tpm.restart().unwrap();
    boot(&tpm, "kernel");
    let output = world.decrypt(&tpm, &sealed);
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(good(output), PASSPHRASE.as_bytes());

    tpm.restart().unwrap();
    boot(&tpm, "another kernel");
    let output = world.decrypt(&tpm, &sealed);
    let lines = refused(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 3);
    assert_eq!(lines[0], format!("TEC-A412 {}", Code::PcrMismatch.title()));
    let attempt = lines[1].strip_prefix("attempt ").unwrap();
    assert_eq!(
        lines[2],
        format!(
            "see: tec explain {attempt}, tec image approve <name> <path> if the boot is yours, tec explain TEC-A412"
        )
    );
    let id = attempt.parse().unwrap();
    let found = AttemptLog::find(&*world.registry, &id);
    let found = world.runtime.block_on(found).unwrap().unwrap();
    assert_eq!(found.machine, Some(machine));
    assert_eq!(found.ladder.code, Some(Code::PcrMismatch));
}

#[test]
fn a_console_shows_a_refusal_at_once_although_the_node_asks_again() {
    let Node { world, mut tpm, mut config, .. } = Node::start(Wire::Tls);
    // As a node comes from the registration server: after a refusal it waits half a minute.
    config.as_object_mut().unwrap().remove("num_retries");
    let sealed = good(world.encrypt(&tpm, &config));
    tpm.restart().unwrap();
    boot(&tpm, "another kernel");
    let console = world.directory.path().join("console");
    std::fs::write(&console, "Please unlock disk root: ").unwrap();
    let mut command = Command::new(world.link("clevis-decrypt-trustee"));
    let command = world.prepare(&mut command, &tpm).env("TEC_CONSOLE", &console);
    let mut asks = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    asks.stdin.take().unwrap().write_all(&sealed).unwrap();
    let shown = || std::fs::read_to_string(&console).unwrap();
    until("a report", || shown().contains("tec explain TEC-A412"));
    assert_eq!(asks.try_wait().unwrap(), None, "it waits");
    assert!(shown().starts_with("Please unlock disk root: \nTEC-A412 "), "{}", shown());
    asks.kill().unwrap();
    asks.wait().unwrap();
}

#[test]
fn a_first_boot_that_begins_anew_goes_on_as_the_machine_that_the_key_belongs_to() {
    let Node { world, mut tpm, machine, config } = Node::start(Wire::Tls);
    good(world.encrypt(&tpm, &config));
    // Power fails before the disk is bound: only the TPM's state remains.
    tpm.restart().unwrap();
    boot(&tpm, "kernel");
    let (other, config) = world.machine();
    let sealed = good(world.encrypt(&tpm, &config));

    tpm.restart().unwrap();
    boot(&tpm, "kernel");
    assert_eq!(
        good(world.decrypt(&tpm, &sealed)),
        PASSPHRASE.as_bytes(),
        "it opens with the key of the first machine"
    );
    let bound = |machine| {
        let found = world.registry.bound_to(machine);
        world.runtime.block_on(found).unwrap()
    };
    assert!(bound(&machine).is_some());
    assert!(bound(&other).is_none(), "the second one stays unclaimed");

    // A custom path does not belong to another machine.
    let (_, mut config) = world.machine();
    config["path"] = "default/chosen/key".into();
    let lines = refused(&world.encrypt(&tpm, &config));
    assert!(lines[0].starts_with("TEC-R412 "), "{lines:?}");
}

#[test]
fn no_key_or_passphrase_is_ever_printed_not_even_to_a_trace() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Plain);
    let traced = |name: &str, argument: Option<String>, input: &[u8]| {
        let mut command = Command::new(world.link(name));
        let command = world.prepare(command.args(argument), &tpm);
        pipe(command.env("TEC_LOG", "trace"), input)
    };
    let first = traced("clevis-encrypt-trustee", Some(config.to_string()), PASSPHRASE.as_bytes());
    let later = traced("clevis-decrypt-trustee", None, &first.stdout);
    assert_eq!(later.stdout, PASSPHRASE.as_bytes());
    let key = world.key_of(&machine);
    let resource = format!(r#"{{"key_type":"oct","key":"{key}"}}"#);
    let sealed = String::from_utf8(first.stdout.clone()).unwrap();
    let ciphertext = sealed.split('.').nth(3).unwrap();
    for secret in [
        key.clone(),
        STANDARD.encode(&key),
        STANDARD.encode(resource),
        PASSPHRASE.to_owned(),
        STANDARD.encode(PASSPHRASE),
        ciphertext.to_owned(),
        // Start of the quote: TPM_GENERATED and TPM_ST_ATTEST_QUOTE, base64.
        "/1RDR4AY".to_owned(),
    ] {
        for log in [&first.stderr, &later.stderr] {
            let log = String::from_utf8_lossy(log);
            assert!(log.len() > 1000, "the trace is on");
            assert!(!log.contains(&secret), "{secret} in {log}");
        }
        assert_eq!(sealed.contains(&secret), secret == ciphertext);
    }
}

#[test]
fn the_event_log_goes_along_and_a_wrong_one_changes_nothing() {
    let Node { world, mut tpm, machine, config } = Node::start(Wire::Tls);
    let sealed = good(world.encrypt(&tpm, &config));
    tpm.restart().unwrap();
    boot(&tpm, "kernel");
    let path = world.directory.path().join("event-log");
    let decrypt_with = |log: &EventLogBuilder| {
        std::fs::write(&path, log.build()).unwrap();
        let mut command = Command::new(world.link("clevis-decrypt-trustee"));
        let command = world.prepare(&mut command, &tpm);
        pipe(command.env("TEC_EVENT_LOG", &path), &sealed)
    };
    let mut log = EventLogBuilder::new();
    log.image(Sha256Digest::of("kernel"), "\\kernel");
    good(decrypt_with(&log));
    let latest = world.registry.latest(Some(machine), 1);
    let latest = world.runtime.block_on(latest).unwrap();
    let mut steps = latest[0].ladder.steps.iter();
    let step = steps.find(|step| step.gate == Gate::EventLog).unwrap();
    assert_eq!(step.state, StepState::Passed);

    // The values are still those of an image.
    log.image(Sha256Digest::of("never measured"), "\\other");
    good(decrypt_with(&log));
    boot(&tpm, "something else");
    let lines = refused(&decrypt_with(&log));
    assert!(lines[0].starts_with("TEC-A407 "), "{lines:?}");
}

/// A `cryptsetup` that finds a crafted header on every disk of this machine as soon as a file exists.
const CRAFTED: &str = r#"#!/bin/sh
[ -e "$CRAFTED_SINCE" ] || exit 1
echo '{"keyslots": {}, "digests": {}, "config": {}, "tokens": {"0": {"type": "clevis"}},
    "segments": {"0": {"type": "crypt", "encryption": "cipher_null-ecb"}}}'
"#;

#[test]
fn no_passphrase_is_opened_if_a_header_is_crafted_before_or_while_the_servers_are_asked() {
    let Node { world, mut tpm, machine, config } = Node::start(Wire::Tls);
    let sealed = good(world.encrypt(&tpm, &config));
    tpm.restart().unwrap();
    boot(&tpm, "kernel");
    let [programs, mark] = ["programs", "root-mark"].map(|name| world.directory.path().join(name));
    let cryptsetup = programs.join("cryptsetup");
    std::fs::create_dir(&programs).unwrap();
    std::fs::write(&cryptsetup, CRAFTED).unwrap();
    std::fs::set_permissions(&cryptsetup, Permissions::from_mode(0o755)).unwrap();
    let decrypt = |since: &Path| {
        let mut command = Command::new(world.link("clevis-decrypt-trustee"));
        let command = world.prepare(&mut command, &tpm).env("PATH", &programs);
        pipe(command.env("TEC_ROOT_MARK", &mark).env("CRAFTED_SINCE", since), &sealed)
    };
    let before = world.attempt(machine).id;
    let lines = refused(&decrypt(&programs));
    assert!(lines[0].starts_with("TEC-N426 "), "{lines:?}");
    assert_eq!(world.attempt(machine).id, before, "no server was asked");

    // The mark of the root is written once the key has been released.
    let lines = refused(&decrypt(&mark));
    assert!(lines[0].starts_with("TEC-N426 "), "{lines:?}");
    assert_ne!(world.attempt(machine).id, before, "the key was released");
    assert_eq!(good(decrypt(Path::new("/nowhere"))), PASSPHRASE.as_bytes());
}

#[test]
fn a_node_with_systemd_in_its_initramfs_gets_its_key() {
    let Node { world, mut tpm, config, .. } = Node::start(Wire::Tls);
    let sealed = good(world.encrypt(&tpm, &config));
    tpm.restart().unwrap();
    boot(&tpm, "kernel");
    boot(&tpm, "os-separator");
    good(world.decrypt(&tpm, &sealed));
    boot(&tpm, "implant");
    let lines = refused(&world.decrypt(&tpm, &sealed));
    assert!(lines[0].starts_with("TEC-A412 "), "{lines:?}");
}

#[test]
fn the_registers_are_printed_as_the_prediction_of_the_next_boot_reads_them() {
    let world = World::start(Wire::Plain, TofuMatcher);
    let tpm = Swtpm::start().unwrap();
    boot(&tpm, "kernel");
    let text = String::from_utf8(good(world.agent(&tpm, &["pcrs"]))).unwrap();
    let values = tec_tpm::output::read_pcrread(&text).unwrap();
    assert_eq!(values.len(), 24);
    let booted = Sha256Digest::ZERO.extended(&Sha256Digest::of("kernel"));
    assert_eq!(values[&PcrIndex::BOOT_MANAGER], booted);
}

#[test]
fn a_server_that_demands_it_gets_the_proof_of_the_endorsement_key() {
    let world = World::start(Wire::Tls, EkBoundMatcher::any_ek());
    world.approve("kernel");
    let tpm = Swtpm::manufacture().unwrap();
    boot(&tpm, "kernel");
    let (machine, config) = world.machine();
    good(world.encrypt(&tpm, &config));
    let bound = world.runtime.block_on(world.registry.bound_to(&machine));
    assert!(bound.unwrap().unwrap().ek.is_some());
}

#[test]
fn a_cleared_tpm_is_told_as_such_and_gets_no_new_key() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Tls);
    let sealed = good(world.encrypt(&tpm, &config));
    let other = Swtpm::start().unwrap();
    let lines = refused(&world.decrypt(&other, &sealed));
    assert!(lines[0].starts_with("TEC-A404 "), "{lines:?}");
    assert!(lines[1].contains("at 0x81010002"), "{lines:?}");
    assert_eq!(lines[2], format!("see: tec explain {machine}, tec explain TEC-A404"));
    let shown = refused(&world.agent(&other, &["ak", "show"]));
    assert!(shown[1].contains("node-agent ak create"), "{shown:?}");
}

#[test]
fn a_second_key_for_a_machine_is_refused_with_the_server_s_code() {
    let world = World::start(Wire::Tls, TofuMatcher);
    world.approve("kernel");
    let (_, config) = world.machine();
    let (first, second) = (Swtpm::start().unwrap(), Swtpm::start().unwrap());
    boot(&first, "kernel");
    boot(&second, "kernel");
    good(world.encrypt(&first, &config));
    // The same node may register again: its first boot may have been interrupted.
    good(world.encrypt(&first, &config));
    let lines = refused(&world.encrypt(&second, &config));
    assert!(lines[0].starts_with("TEC-R410 "), "{lines:?}");
}

#[test]
fn a_server_of_another_ca_is_not_trusted() {
    let world = World::start(Wire::Tls, TofuMatcher);
    let other = World::start(Wire::Tls, TofuMatcher);
    world.approve("kernel");
    let tpm = Swtpm::start().unwrap();
    boot(&tpm, "kernel");
    let (_, mut config) = world.machine();
    config["servers"][0]["cert"] = other.endpoint.cert.clone().into();
    let lines = refused(&world.encrypt(&tpm, &config));
    assert!(lines[0].starts_with("TEC-A402 "), "{lines:?}");
    config["attestation_key"]["registration"]["cert"] = other.endpoint.cert.clone().into();
    let lines = refused(&world.encrypt(&tpm, &config));
    assert!(lines[0].starts_with("TEC-A402 "), "{lines:?}");
    assert!(lines[1].contains("/register-ak"), "{lines:?}");
}

#[test]
fn the_key_is_created_shown_and_registered_by_hand() {
    let world = World::start(Wire::Tls, TofuMatcher);
    let tpm = Swtpm::start().unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&good(world.agent(&tpm, arguments))).unwrap()
    };
    let created = json(&["ak", "create", "--output", "json"]);
    assert_eq!(json(&["ak", "show", "--output", "json"]), created);
    assert_eq!(created["handle"], "0x81010002");
    let (machine, _) = world.machine();
    let ca = world.directory.path().join("pinned.pem");
    std::fs::write(&ca, &world.endpoint.cert).unwrap();
    let url = format!("{}/register-ak", world.endpoint.url);
    let registered = json(&[
        "ak",
        "register",
        "--output",
        "json",
        "--url",
        &url,
        "--uuid",
        &machine.to_string(),
        "--ca",
        ca.to_str().unwrap(),
    ]);
    assert_eq!(registered["registered_for"], machine.to_string());
    let bound = world.runtime.block_on(world.registry.bound_to(&machine));
    let bound = bound.unwrap().unwrap();
    assert_eq!(registered["fingerprint"], bound.fingerprint().to_string());
}

/// How the existing operator's server handles unknown members depends on its framework; this is the strict
/// case.
#[test]
fn a_server_that_knows_only_key_and_uuid_registers_the_key() {
    let world = World::start(Wire::Plain, TofuMatcher);
    let tpm = Swtpm::start().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/register-ak", listener.local_addr().unwrap());
    let strict = axum::routing::put(async |body: String| {
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let names: Vec<_> = body.as_object().unwrap().keys().cloned().collect();
        if names == ["public_key", "uuid"] {
            (axum::http::StatusCode::CREATED, r#"{"status":"success"}"#)
        } else {
            let words = "Failed to deserialize the JSON body into the target type";
            (axum::http::StatusCode::UNPROCESSABLE_ENTITY, words)
        }
    });
    let router = axum::Router::new().route("/register-ak", strict);
    world.runtime.spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        axum::serve(listener, router).await.unwrap();
    });
    let (machine, _) = world.machine();
    let id = machine.to_string();
    good(world.agent(&tpm, &["ak", "register", "--url", &url, "--uuid", &id]));
}
