//! Bad input: each condition has a code and a next step, nothing is changed, and the node is not locked.
//! docs/reference/bootstrapper.md lists the conditions.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::testing::ManualClock;
use tec_core::time::Timestamp;

use crate::cluster::Cluster;
use crate::stage::{Machine, Program};

const COMMANDS: [&str; 3] = ["prepare", "recover", "run"];
/// An expiry date, three years from the time of writing.
const YEARS_LATER: i64 = 1_890_000_000;

/// The program names the condition and the next step, and the machine is unchanged.
fn assert_found(machine: &Machine, log: &str, code: Code) {
    assert!(log.contains(code.as_str()) && log.contains(code.fix()), "{code}: {log}");
    assert_eq!(machine.register(), Sha256Digest::ZERO, "the node is locked");
    assert_eq!(machine.calls(), "", "something was started");
}

/// A command fails with the code; the disk is unchanged.
fn assert_refused(machine: &Machine, command: &str, code: Code) {
    let before = fs::read(machine.path("disk")).ok();
    let (status, log) = machine.run(command);
    assert_eq!(status.code(), Some(1), "{command}: {log}");
    assert_found(machine, &log, code);
    assert!(fs::read(machine.path("disk")).ok() == before, "{command} wrote to the disk");
}

/// Waits for the code in the log of a program that keeps trying.
async fn wait_for(program: &Program, code: Code) {
    let begin = Instant::now();
    while !program.log().contains(code.as_str()) {
        assert!(begin.elapsed() < Duration::from_mins(2), "no {code}: {}", program.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs until the code is in the log, and then kills the program.
async fn assert_reported(machine: &Machine, code: Code) {
    let program = machine.start("run");
    wait_for(&program, code).await;
    let log = program.log();
    program.kill();
    assert_found(machine, &log, code);
}

/// The disk behind a read-only block device.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn of(machine: &Machine) -> Self {
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show", "--read-only"]).arg(machine.path("disk"));
        let output = attach.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn must(program: &str, arguments: &[&str], last: &Path) {
    let status = Command::new(program).args(arguments).arg(last).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

fn as_delivered(machine: &Machine) {
    machine.change_settings(|text| text.replace("dangerous_formatted_elsewhere = true\n", ""));
}

#[test]
fn a_missing_disk_is_named() {
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::remove_file(machine.path("disk")).unwrap();
    for command in COMMANDS {
        assert_refused(&machine, command, Code::BootstrapNoDisk);
    }
}

#[test]
fn a_read_only_disk_is_named() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let disk = machine.path("disk").display().to_string();
    // A file on a read-only file system.
    let script = format!("mount --bind {disk} {disk}; mount -o remount,ro,bind {disk}");
    for command in COMMANDS {
        let (status, log) = machine.start_after(&script, command).wait();
        assert_eq!(status.code(), Some(1), "{command}: {log}");
        assert_found(&machine, &log, Code::BootstrapReadOnly);
    }
    let device = ReadOnly::of(&machine);
    machine.change_settings(|text| {
        text.replace(&format!("'{disk}'"), &format!("'{}'", device.0.display()))
    });
    for command in COMMANDS {
        assert_refused(&machine, command, Code::BootstrapReadOnly);
    }
}

#[test]
fn a_disk_that_is_too_small_is_not_formatted() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let disk = fs::File::create(machine.path("disk")).unwrap();
    disk.set_len((64 << 20) - 4096).unwrap();
    assert_refused(&machine, "prepare", Code::BootstrapSmallDisk);
}

#[test]
fn a_header_that_is_weak_or_damaged_is_refused() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let key = machine.path("state.key").display().to_string();
    let weak =
        ["luksFormat", "--batch-mode", "--type", "luks2", "--cipher", "aes-cbc-essiv:sha256"];
    let quick = ["--pbkdf", "argon2id", "--pbkdf-memory", "64", "--pbkdf-force-iterations", "4"];
    must("cryptsetup", &[&weak[..], &quick, &["--key-file", &key]].concat(), &machine.path("disk"));
    for command in COMMANDS {
        assert_refused(&machine, command, Code::BootstrapHeader);
    }
    // Remains of a second header.
    let disk = fs::File::create(machine.path("disk")).unwrap();
    disk.set_len(64 << 20).unwrap();
    disk.write_all_at(b"SKUL\xba\xbe", 16384).unwrap();
    for command in COMMANDS {
        assert_refused(&machine, command, Code::BootstrapHeader);
    }
}

#[test]
fn a_disk_with_a_file_system_of_others_is_not_taken() {
    let machine = Machine::new("plane-0", "ControlPlane");
    must("mke2fs", &["-q", "-F"], &machine.path("disk"));
    assert_refused(&machine, "prepare", Code::BootstrapForeignDisk);
}

#[test]
fn a_disk_that_others_formatted_is_not_taken_though_their_passphrase_is_here() {
    let machine = Machine::new("plane-0", "ControlPlane");
    as_delivered(&machine);
    for command in COMMANDS {
        assert_refused(&machine, command, Code::BootstrapForeignDisk);
    }
}

#[test]
fn a_disk_whose_key_others_have_waits_for_it_and_is_not_erased() {
    let machine = Machine::new("plane-0", "ControlPlane");
    as_delivered(&machine);
    fs::remove_file(machine.path("state.key")).unwrap();
    let before = fs::read(machine.path("disk")).unwrap();
    let (status, log) = machine.run("prepare");
    assert!(status.success(), "{log}");
    let (status, log) = machine.run("run");
    assert_eq!(status.code(), Some(3), "{log}");
    assert_found(&machine, &log, Code::BootstrapLocked);
    assert!(fs::read(machine.path("disk")).unwrap() == before);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_are_silent_or_lie_are_asked_for_again_and_make_no_node() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let good = fs::read_to_string(machine.path("metadata.json")).unwrap();
    let lies = [
        ("plane-0", "plane/0"),
        ("ControlPlane", "Emperor"),
        ("127.0.0.99", "0.0.0.0"),
        (r#""endpoint": "127.0.0.99""#, r#""endpoint": "https://127.0.0.99/""#),
        ("{", ""),
    ];
    for (truth, lie) in lies {
        assert!(good.contains(truth), "{truth}");
        fs::write(machine.path("metadata.json"), good.replacen(truth, lie, 1)).unwrap();
        assert_reported(&machine, Code::BootstrapMetadata).await;
    }
    // Nothing answers, and the node asks again.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    drop(listener);
    let file = format!("kind = 'file'\npath = '{}'", machine.path("metadata.json").display());
    let service = format!("kind = 'qemu'\nurl = 'http://{silent}'");
    machine.change_settings(|text| text.replace(&file, &service));
    assert_reported(&machine, Code::BootstrapMetadata).await;
    machine.change_settings(|text| text.replace(&service, &file));
    // A hash that admits no one ends the program: waiting would not help.
    fs::write(machine.path("metadata.json"), good.replace("sha256:", "md5:")).unwrap();
    assert_refused(&machine, "run", Code::BootstrapMetadata);
    // Once the input is fixed, the same process continues.
    fs::write(machine.path("metadata.json"), "").unwrap();
    let program = machine.start("run");
    wait_for(&program, Code::BootstrapMetadata).await;
    fs::write(machine.path("metadata.json"), good).unwrap();
    program.serving().kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_years_off_keeps_a_node_from_being_locked() {
    let (plane, machine) = (Machine::new("plane-0", "ControlPlane"), Machine::new("w-0", "Worker"));
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(YEARS_LATER)));
    let cluster = Cluster::start_at(clock, &plane, &[machine.ak], &[]).await;
    machine.write_metadata("w-0", "Worker", &["127.0.0.1"]);
    machine.write_settings_with(&[cluster.ak], cluster.port);
    assert_reported(&machine, Code::BootstrapClock).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_the_name_of_another_is_not_locked() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machines = [Machine::new("w-0", "Worker"), Machine::new("w-0", "Worker")];
    let keys = machines.each_ref().map(|machine| machine.ak);
    let cluster = Cluster::start(&plane, &keys, &[]).await;
    for machine in &machines {
        machine.write_metadata("w-0", "Worker", &["127.0.0.1"]);
        machine.write_settings_with(&[cluster.ak], cluster.port);
    }
    let [first, second] = machines;
    let program = first.start("run");
    let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
    assert!(status.success(), "{log}");
    assert_reported(&second, Code::BootstrapNameTaken).await;
    cluster.stop().await;
}

#[test]
fn a_state_disk_that_is_full_keeps_a_node_from_being_locked() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let state = machine.path("root/run/state");
    fs::create_dir_all(&state).unwrap();
    let script = format!("mount -t tmpfs -o size=1m none {}", state.display());
    let (status, log) = machine.start_after(&script, "run").wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert_found(&machine, &log, Code::BootstrapStateFull);
}
