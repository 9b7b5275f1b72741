//! `rebind` with the real Clevis, the real `cryptsetup` and a file as the disk.
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tec_core::ak::TofuMatcher;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::ProvisionPorts;
use tec_core::id::MachineId;
use tec_core::luks::CompatLuksKey;
use tec_core::port::{
    AttemptLog as _, AuditAction, BeginOutcome, CancelOutcome, DiskKeys as _, EntropyRng,
};
use tec_core::rotation::Forget;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::testing::Swtpm;
use tec_trustee::jwe::{Curve, EcPrivateKey, Jwe};

use crate::world::{NOBODY, Node, Wire, World, boot, good, pipe, refused};

/// A header of 16 MiB, and a little more.
const SIZE: u64 = 20 * 1024 * 1024;

/// A disk whose key slot 0 has the passphrase "first", bound by Clevis in slot 1.
fn bound_disk(world: &World, tpm: &Swtpm, config: &serde_json::Value) -> PathBuf {
    let disk = world.directory.path().join("disk");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let mut format = Command::new("cryptsetup");
    format.args(["luksFormat", "--type", "luks2", "--batch-mode", "--key-file", "-"]);
    // The accepted minimum: the test is not about strength.
    format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
    good(pipe(format.arg(&disk), b"first"));
    let mut bind = clevis(world, &["luks", "bind", "-y", "-k", "-", "-d"]);
    bind.arg(&disk).args(["trustee", &config.to_string()]);
    good(pipe(world.prepare(&mut bind, tpm), b"first"));
    disk
}

fn clevis(world: &World, arguments: &[&str]) -> Command {
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", world.directory.path().display());
    let mut command = Command::new("clevis");
    command.args(arguments).env("PATH", path);
    command
}

/// Whether Clevis opens the disk with its token, using the servers in the token.
fn clevis_opens(world: &World, tpm: &Swtpm, disk: &Path) -> bool {
    let mut pass = clevis(world, &["luks", "pass", "-s", "1", "-d"]);
    let output = pipe(world.prepare(pass.arg(disk), tpm), b"");
    output.status.success() && opens(disk, "1", &output.stdout)
}

fn metadata(disk: &Path) -> serde_json::Value {
    let mut dump = Command::new("cryptsetup");
    let dump = dump.args(["luksDump", "--dump-json-metadata"]).arg(disk);
    serde_json::from_slice(&good(pipe(dump, b""))).unwrap()
}

/// The protected header of a token.
fn header(metadata: &serde_json::Value, token: &str) -> String {
    let protected = metadata["tokens"][token]["jwe"]["protected"].as_str().unwrap();
    String::from_utf8(URL_SAFE_NO_PAD.decode(protected).unwrap()).unwrap()
}

fn rebind(world: &World, tpm: &Swtpm, disk: &Path, url: &str) -> std::process::Output {
    let ca = world.directory.path().join("new-ca.pem");
    std::fs::write(&ca, &world.endpoint.cert).unwrap();
    let url = format!("{url}={}", ca.display());
    let disk = disk.to_str().unwrap();
    let base = ["--rounds", "1", "rebind", disk, "--output", "json"];
    world.agent(tpm, &[&base[..], &["--url", &url]].concat())
}

#[test]
fn a_disk_moves_to_another_name_of_its_server_and_clevis_opens_it_there() {
    let Node { world, tpm, mut config, .. } = Node::start(Wire::Tls);
    let alive = config["servers"][0].clone();
    // An old server, now gone, comes first.
    config["servers"] = serde_json::json!([{ "url": NOBODY, "cert": "" }, alive]);
    let disk = bound_disk(&world, &tpm, &config);
    let before = metadata(&disk);

    let rebound = good(rebind(&world, &tpm, &disk, &world.endpoint.url.to_string()));
    let rebound: serde_json::Value = serde_json::from_slice(&rebound).unwrap();
    assert_eq!(rebound["removed"], serde_json::json!([0]));
    let after = metadata(&disk);
    assert_eq!(after["keyslots"], before["keyslots"]);
    assert_eq!(after["segments"], before["segments"]);
    assert_eq!(after["tokens"].as_object().unwrap().len(), 1);
    assert!(clevis_opens(&world, &tpm, &disk));
    let header = header(&after, "1");
    assert!(!header.contains(NOBODY), "{header}");
    assert!(header.contains(world.endpoint.url.as_str()), "{header}");

    let again = good(rebind(&world, &tpm, &disk, &world.endpoint.url.to_string()));
    let again: serde_json::Value = serde_json::from_slice(&again).unwrap();
    assert_eq!(again["removed"], serde_json::json!([]));
    assert_eq!(metadata(&disk), after);
}

#[test]
fn servers_that_do_not_answer_or_do_not_know_the_machine_leave_the_disk_as_it_is() {
    let world = World::start(Wire::Tls, TofuMatcher);
    let stranger = World::start(Wire::Tls, TofuMatcher);
    world.approve("kernel");
    stranger.approve("kernel");
    let tpm = Swtpm::start().unwrap();
    boot(&tpm, "kernel");
    let (_, config) = world.machine();
    let disk = bound_disk(&world, &tpm, &config);
    let before = metadata(&disk);

    let nobody = refused(&rebind(&world, &tpm, &disk, "https://127.0.0.1:1"));
    assert!(nobody[0].starts_with("TEC-A401 "), "{nobody:?}");
    let url = stranger.endpoint.url.to_string();
    let unknown = refused(&rebind(&stranger, &tpm, &disk, &url));
    assert!(unknown[0].starts_with("TEC-A4"), "{unknown:?}");
    assert_eq!(metadata(&disk), before);
    assert!(clevis_opens(&world, &tpm, &disk));
}

#[test]
fn what_is_no_bound_disk_is_named() {
    let world = World::start(Wire::Plain, TofuMatcher);
    let tpm = Swtpm::start().unwrap();
    let absent = world.directory.path().join("absent");
    let lines = refused(&rebind(&world, &tpm, &absent, "http://127.0.0.1:1"));
    assert!(lines[0].starts_with("TEC-N424 "), "{lines:?}");
}

/// The admin's key, and its public half in a file.
fn admin(world: &World) -> (EcPrivateKey, PathBuf) {
    let key = EcPrivateKey::generate(Curve::P256, &mut EntropyRng::new(&SystemEntropy));
    let file = world.directory.path().join("admin.jwk");
    std::fs::write(&file, serde_json::to_vec(&key.public()).unwrap()).unwrap();
    (key, file)
}

fn opens(disk: &Path, slot: &str, passphrase: &[u8]) -> bool {
    let mut open = Command::new("cryptsetup");
    open.args(["open", "--test-passphrase", "--key-slot", slot, "--key-file", "-"]);
    pipe(open.arg(disk), passphrase).status.success()
}

/// The escrowed keys that the admin reads at the server, latest first.
fn recovery_keys(world: &World, machine: &MachineId, admin: &EcPrivateKey) -> Vec<Vec<u8>> {
    let escrowed = flow::escrowed(&*world.registry, machine);
    let escrowed = world.runtime.block_on(escrowed).unwrap();
    let opened = escrowed.iter().map(|(_, sealed)| {
        let sealed: Jwe = serde_json::from_slice(sealed.expose("test")).unwrap();
        let key = admin.decrypt(&sealed).unwrap();
        key.expose("test").to_vec()
    });
    opened.collect()
}

#[test]
fn the_admin_opens_the_disk_with_the_escrowed_key_until_it_is_renewed() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Tls);
    let disk = bound_disk(&world, &tpm, &config);
    let (admin, file) = admin(&world);
    let (disk_text, file) = (disk.to_str().unwrap(), file.to_str().unwrap());
    let run = |verb: &str| {
        let arguments = ["recovery", verb, disk_text, "--admin-key", file];
        let made = good(world.agent(&tpm, &[&arguments[..], &["--output", "json"]].concat()));
        serde_json::from_slice::<serde_json::Value>(&made).unwrap()
    };
    assert_eq!(run("enroll"), serde_json::json!({ "slot": 31, "number": 1 }));
    let keys = recovery_keys(&world, &machine, &admin);
    assert_eq!((keys.len(), keys[0].len()), (1, 55));
    assert!(opens(&disk, "31", &keys[0]));
    assert!(clevis_opens(&world, &tpm, &disk));
    assert_eq!(run("enroll"), serde_json::json!({ "slot": 31, "number": null }));

    assert_eq!(run("renew"), serde_json::json!({ "slot": 30, "number": 2 }));
    let renewed = recovery_keys(&world, &machine, &admin);
    assert_eq!(renewed[1], keys[0]);
    assert!(opens(&disk, "30", &renewed[0]));
    assert!(!opens(&disk, "31", &keys[0]), "the key that was typed is worth nothing");
    assert!(opens(&disk, "0", b"first") && clevis_opens(&world, &tpm, &disk));
    let slots = metadata(&disk)["keyslots"].as_object().unwrap().clone();
    let slots: Vec<_> = slots.keys().map(String::as_str).collect();
    assert_eq!(slots, ["0", "1", "30"]);
}

#[test]
fn without_a_server_that_keeps_the_key_no_slot_is_made() {
    let Node { world, tpm, config, .. } = Node::start(Wire::Tls);
    let disk = bound_disk(&world, &tpm, &config);
    let (_, file) = admin(&world);
    let before = metadata(&disk);
    boot(&tpm, "another kernel");
    let arguments = ["--rounds", "1", "recovery", "enroll", disk.to_str().unwrap()];
    let key = ["--admin-key", file.to_str().unwrap()];
    let lines = refused(&world.agent(&tpm, &[&arguments[..], &key].concat()));
    assert!(lines[0].starts_with("TEC-A412 "), "{lines:?}");
    assert_eq!(metadata(&disk)["keyslots"], before["keyslots"]);
}

#[test]
fn a_key_of_the_admin_that_is_none_is_named_before_anything_is_touched() {
    let world = World::start(Wire::Plain, TofuMatcher);
    let tpm = Swtpm::start().unwrap();
    let file = world.directory.path().join("admin.jwk");
    std::fs::write(&file, r#"{"kty":"EC","crv":"P-256","alg":"ECDH-ES+A256KW","x":"AA","y":"AA"}"#)
        .unwrap();
    let arguments = ["recovery", "enroll", "/nonexistent", "--admin-key", file.to_str().unwrap()];
    let lines = refused(&world.agent(&tpm, &arguments));
    assert!(lines[0].starts_with("TEC-N400 "), "{lines:?}");
}

/// Runs the timer's command, with the file as the disk.
fn watch(world: &World, tpm: &Swtpm, disk: &Path) -> std::process::Output {
    world.agent(tpm, &["attest", disk.to_str().unwrap()])
}

#[test]
fn a_running_node_attests_without_its_key_and_is_refused_once_a_register_is_extended() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Tls);
    let disk = bound_disk(&world, &tpm, &config);
    let released = |world: &World| {
        let events = world.registry.events();
        events.iter().filter(|event| event.action == AuditAction::KeyReleased).count()
    };
    let before = released(&world);
    for _ in 0..3 {
        let said = good(watch(&world, &tpm, &disk));
        assert_eq!(String::from_utf8(said).unwrap(), format!("machine {machine} attested\n"));
    }
    assert_eq!(released(&world), before, "no key was fetched");
    let last = world.attempt(machine);
    assert_eq!((last.ladder.code, last.repeats.map(|all| all.count)), (None, Some(3)));

    // A kernel that is started from the running one is measured into the same register.
    boot(&tpm, "kexec");
    for _ in 0..2 {
        let output = watch(&world, &tpm, &disk);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let found = world.attempt(machine);
        assert!(lines[0].starts_with("TEC-A412 "), "{text}");
        assert_eq!(lines[1], format!("attempt {}", found.id));
        assert!(lines[2].starts_with(&format!("see: tec explain {machine}, ")), "{text}");
        assert_eq!(found.ladder.code, Some(Code::PcrMismatch));
    }
    let attempts = world.registry.latest(Some(machine), 10);
    let attempts = world.runtime.block_on(attempts).unwrap();
    let seen = |at: usize| attempts[at].repeats.map(|all| all.count);
    assert_eq!((seen(0), seen(1)), (Some(2), Some(3)), "the refusal hides nothing: {attempts:?}");
}

#[test]
fn a_server_that_is_away_is_no_refusal() {
    let Node { world, tpm, .. } = Node::start(Wire::Plain);
    let output = world.agent(&tpm, &["attest", "--url", NOBODY]);
    let lines = refused(&output);
    assert!(lines[0].starts_with("TEC-A401 "), "{lines:?}");
}

#[test]
fn a_stranger_is_refused_with_the_code_of_the_server() {
    let Node { world, tpm, machine: _, config } = Node::start(Wire::Plain);
    good(world.encrypt(&tpm, &config));
    let stranger = World::start(Wire::Plain, TofuMatcher);
    let url = stranger.endpoint.url.to_string();
    let output = stranger.agent(&tpm, &["attest", "--url", &url]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("TEC-A404 ") || text.starts_with("TEC-A40"), "{text}");
    let claims: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(claims["claims"]["submods"]["cpu0"]["ear.status"], "contraindicated");
}

/// Generates a new key at the server, as `tec key rotate` does.
fn begin_rotation(world: &World, machine: MachineId) {
    let ports = ProvisionPorts::new(&*world.registry, &CompatLuksKey, &SystemClock, &SystemEntropy);
    let begun = flow::begin_rotation(&*world.registry, ports, machine);
    let begun = world.runtime.block_on(begun).unwrap();
    assert!(matches!(begun, BeginOutcome::Begun(_)), "{begun:?}");
}

fn rotate(world: &World, tpm: &Swtpm, disk: &Path) -> std::process::Output {
    world.agent(tpm, &["key", "rotate", disk.to_str().unwrap(), "--output", "json"])
}

/// The passphrase that Clevis finds for a slot, as at a boot.
fn passphrase(world: &World, tpm: &Swtpm, disk: &Path, slot: &str) -> Option<Vec<u8>> {
    let mut pass = clevis(world, &["luks", "pass", "-s", slot, "-d"]);
    let output = pipe(world.prepare(pass.arg(disk), tpm), b"");
    output.status.success().then_some(output.stdout)
}

#[test]
fn a_rotated_disk_opens_with_the_new_key_alone_and_the_old_passphrase_opens_nothing() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Tls);
    let disk = bound_disk(&world, &tpm, &config);
    let said = |output| -> serde_json::Value { serde_json::from_slice(&good(output)).unwrap() };
    let before = metadata(&disk);
    assert_eq!(said(rotate(&world, &tpm, &disk))["rotation"], "nothing-pending");
    assert_eq!(metadata(&disk), before);
    let (old_key, old) = (world.key_of(&machine), passphrase(&world, &tpm, &disk, "1").unwrap());

    begin_rotation(&world, machine);
    assert_eq!(world.key_of(&machine), old_key, "boots get the old key");
    assert!(clevis_opens(&world, &tpm, &disk));

    assert_eq!(said(rotate(&world, &tpm, &disk))["rotation"], "replaced");
    assert_ne!(world.key_of(&machine), old_key);
    let new = passphrase(&world, &tpm, &disk, "31").unwrap();
    assert!(opens(&disk, "31", &new));
    let after = metadata(&disk);
    let slots: Vec<_> = after["keyslots"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(slots, ["0", "31"], "slot 0 is somebody else's");
    assert_eq!(after["tokens"].as_object().unwrap().len(), 1);
    assert_eq!(after["segments"], before["segments"]);
    let mut open = Command::new("cryptsetup");
    open.args(["open", "--test-passphrase", "--key-file", "-"]);
    assert!(!pipe(open.arg(&disk), &old).status.success());
    let keys = world.runtime.block_on(world.registry.rotation(&machine)).unwrap().unwrap();
    assert!(keys.is_settled(), "{keys:?}");
    let actions =
        [AuditAction::RotationBegun, AuditAction::RotationPromoted, AuditAction::RotationEnded];
    let events = world.registry.events();
    let rotation = events.iter().map(|event| event.action).filter(|one| actions.contains(one));
    assert_eq!(rotation.collect::<Vec<_>>(), actions);
}

/// As `tec key cancel`.
fn cancel_rotation(world: &World, machine: MachineId) {
    let canceled = flow::cancel_rotation(&*world.registry, &SystemClock, machine, Forget::Pending);
    let canceled = world.runtime.block_on(canceled).unwrap();
    assert!(matches!(canceled, CancelOutcome::Canceled(_)), "{canceled:?}");
}

/// Kills its caller after the second token was written: after the intent, that of the new key.
const KILLER: &str = r#"#!/bin/sh
PATH=${PATH#*:}
cryptsetup "$@"
status=$?
if [ "$1 $2" = "token import" ]; then
    echo >> "$(dirname "$0")/imports"
    [ "$(wc -l < "$(dirname "$0")/imports")" = 2 ] && kill -KILL $PPID
fi
exit $status
"#;

/// A rotation that is killed before the server promotes the new key.
fn stage_only(world: &World, tpm: &Swtpm, disk: &Path) {
    let directory = tempfile::tempdir_in(world.directory.path()).unwrap();
    let killer = directory.path().join("cryptsetup");
    std::fs::write(&killer, KILLER).unwrap();
    std::fs::set_permissions(&killer, Permissions::from_mode(0o700)).unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_node-agent"));
    agent.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", directory.path().display()));
    let output = pipe(world.prepare(agent.args(["key", "rotate"]).arg(disk), tpm), b"");
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    assert_eq!(pins(disk), 2);
}

/// Number of tokens of Clevis.
fn pins(disk: &Path) -> usize {
    let metadata = metadata(disk);
    let tokens = metadata["tokens"].as_object().unwrap();
    tokens.values().filter(|token| token["type"] == "clevis").count()
}

#[test]
fn a_canceled_rotation_leaves_a_slot_that_the_next_run_removes() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Tls);
    let disk = bound_disk(&world, &tpm, &config);
    let before = metadata(&disk);
    begin_rotation(&world, machine);
    stage_only(&world, &tpm, &disk);
    cancel_rotation(&world, machine);
    assert!(clevis_opens(&world, &tpm, &disk));
    let url = world.endpoint.url.to_string();
    let lines = refused(&rebind(&world, &tpm, &disk, &url));
    assert!(lines[1].contains("node-agent key rotate"), "{lines:?}");

    let cleaned = good(rotate(&world, &tpm, &disk));
    let cleaned: serde_json::Value = serde_json::from_slice(&cleaned).unwrap();
    assert_eq!(cleaned["rotation"], "cleaned");
    assert!(clevis_opens(&world, &tpm, &disk));
    let after = metadata(&disk);
    assert_eq!((&after["keyslots"], &after["tokens"]), (&before["keyslots"], &before["tokens"]));
    good(rebind(&world, &tpm, &disk, &url));
}

#[test]
fn a_boot_that_is_not_approved_gets_no_pending_key_and_confirms_nothing() {
    let Node { world, tpm, machine, config } = Node::start(Wire::Tls);
    let disk = bound_disk(&world, &tpm, &config);
    begin_rotation(&world, machine);
    let before = metadata(&disk);
    boot(&tpm, "another kernel");
    let lines = refused(&rotate(&world, &tpm, &disk));
    assert!(lines[0].starts_with("TEC-A412 "), "{lines:?}");
    assert_eq!(metadata(&disk), before);
    let keys = world.runtime.block_on(world.registry.rotation(&machine)).unwrap().unwrap();
    assert!(!keys.is_settled());
}
