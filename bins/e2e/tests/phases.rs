//! A disk key is for the initramfs: what a running system gets, and what it does with the key that was kept for it.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::fs;
use std::process::Output;

use tec_core::id::ResourcePath;
use tec_e2e::pair::Pair;

struct World {
    pair: Pair,
    disk: String,
    server: String,
}

impl World {
    /// A machine after its first boot, whose initramfs keeps the key from now on.
    fn new() -> Self {
        let pair = Pair::start().unwrap();
        let ca = pair.directory.path().join("ca.pem");
        fs::write(&ca, pair.anchor.ca().unwrap()).unwrap();
        let server = format!("{}={}", pair.anchor.kbs().unwrap().url, ca.display());
        let disk = pair.machine.disk().display().to_string();
        Self { pair, disk, server }
    }

    /// A boot up to the end of its initramfs, which opens the disk, or does not look at it.
    fn boot(&mut self, opens_disk: bool) {
        let machine = &mut self.pair.machine;
        machine.reboot().unwrap();
        let run = machine.kept_key().parent().unwrap().to_owned();
        if run.exists() {
            fs::remove_dir_all(run).unwrap();
        }
        machine.keeps_key = true;
        if opens_disk {
            self.assert_works(&["enter-initramfs"]);
            assert!(self.opens());
        }
        self.pair.machine.keeps_key = false;
        // The mark is looked for below the root that is started.
        let root = self.pair.machine.directory().display().to_string();
        let ended = self.run(&["--root-mark", "/root-mark", "leave-initramfs", &root]);
        assert!(ended.status.success(), "{ended:?}");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.pair.machine.agent(arguments).output().unwrap()
    }

    fn assert_works(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    fn opens(&self) -> bool {
        !self.pair.machine.passphrases().unwrap().is_empty()
    }
}

#[test]
fn a_planted_root_that_asks_like_any_program_gets_nothing() {
    let mut world = World::new();
    world.boot(true);
    // It has a copy of the header, so that the initramfs asks for the key, and opens its own disk by hand.
    let mark = fs::read(world.pair.machine.root_mark()).unwrap();
    fs::write(world.pair.machine.root_mark(), "guessed").unwrap();
    world.boot(true);
    assert!(!world.pair.machine.kept_key().exists());
    world.boot(false);
    // Nor does a rotation that is under way help it.
    let id = world.pair.id.to_string();
    world.pair.anchor.tec(&["key", "rotate", &id]).unwrap();
    let refused = world.run(&["key", "rotate", &world.disk]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("TEC-A424"), "{refused:?}");
    let stolen = world.pair.directory.path().join("stolen");
    let path = ResourcePath::luks_root(&world.pair.id).to_string();
    let theft = world.run(&[
        "attest",
        "--url",
        &world.server,
        "--path",
        &path,
        "--write",
        stolen.to_str().unwrap(),
    ]);
    assert_eq!(theft.status.code(), Some(3), "{theft:?}");
    assert!(String::from_utf8_lossy(&theft.stderr).contains("TEC-A424"), "{theft:?}");
    assert!(!stolen.exists());
    // The pin on the disk is no other way.
    let refused = world.pair.machine.unlock().unwrap().unwrap_err();
    assert_eq!(refused.code, "TEC-A424");
    let why = world.pair.anchor.tec_text(&["explain", &world.pair.id.to_string()]).unwrap();
    assert!(why.contains("the initramfs had ended: PCR 11 has leave-initrd"), "{why}");
    // What needs no key goes on.
    world.assert_works(&["attest", &world.disk]);
    fs::write(world.pair.machine.root_mark(), mark).unwrap();
    world.boot(true);
    assert!(world.opens());
}

#[test]
fn a_running_system_does_with_the_kept_key_what_it_did_before() {
    let mut world = World::new();
    world.boot(true);
    assert!(world.opens(), "as a disk that is opened late");
    world.assert_works(&["rebind", &world.disk, "--url", &world.server]);
    assert!(world.opens());
    world.pair.anchor.tec(&["key", "rotate", &world.pair.id.to_string()]).unwrap();
    world.assert_works(&["key", "rotate", &world.disk]);
    assert!(world.opens(), "the kept key is the new one");
    world.assert_works(&["rebind", &world.disk, "--url", &world.server]);
    fs::remove_file(world.pair.machine.kept_key()).unwrap();
    assert!(!world.opens());
    world.boot(true);
}

#[test]
fn a_kept_key_that_the_server_replaced_binds_no_disk() {
    let mut world = World::new();
    world.boot(true);
    let kept = world.pair.machine.kept_key();
    let old = fs::read(&kept).unwrap();
    world.pair.anchor.tec(&["key", "rotate", &world.pair.id.to_string()]).unwrap();
    world.assert_works(&["key", "rotate", &world.disk]);
    fs::write(&kept, old).unwrap();
    let refused = world.run(&["rebind", &world.disk, "--url", &world.server]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("TEC-A424"), "{refused:?}");
    world.boot(true);
}
