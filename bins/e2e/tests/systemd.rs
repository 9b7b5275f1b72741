//! The units of `node-agent` under systemd as PID 1, and what a running machine's trust anchor answers.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use tec_core::rotation::Keys;
use tec_e2e::pair::Pair;
use tec_e2e::systemd::{DropIns, System, until};

fn boot(pair: &Pair, boot: &Path, drop_ins: &DropIns) -> System {
    System::boot(&pair.machine, pair.directory.path(), boot, drop_ins).unwrap()
}

#[test]
fn the_timers_units_attest_replace_the_key_and_refresh_the_ca_in_their_sandboxes() {
    let mut pair = Pair::start().unwrap();
    let empty = pair.directory.path().join("boot");
    fs::create_dir(&empty).unwrap();
    let system = boot(&pair, &empty, &DropIns::of(&pair.machine));
    let (code, words) = system.result("tec-attest.service").unwrap();
    assert_eq!(code, "0", "{words}");
    assert!(words.contains(&format!("machine {} attested", pair.id)), "{words}");

    let before = *pair.kept().unwrap().current();
    pair.anchor.tec(&["key", "rotate", &pair.id.to_string()]).unwrap();
    let (code, words) = system.result("tec-key-rotate.service").unwrap();
    assert_eq!(code, "0", "{words}");
    let kept = pair.kept().unwrap();
    assert!(matches!(kept, Keys::Settled { current } if current != before), "{kept:?}");

    let (code, words) = system.result("tec-refresh-ca.service").unwrap();
    assert_eq!(code, "0", "{words}");

    pair.machine.extend_unlisted().unwrap();
    let (code, words) = system.result("tec-attest.service").unwrap();
    assert_eq!(code, "3", "{words}");
    // The log does not list it.
    assert!(words.contains("TEC-A407"), "{words}");

    drop(system);
    pair.machine.reboot().unwrap();
    assert_eq!(pair.machine.passphrases().unwrap().len(), 1);
}

#[test]
fn a_shutdown_is_held_until_the_next_boot_is_approved() {
    let pair = Pair::start().unwrap();
    let place = pair.directory.path();
    let (boot_files, variables) = (place.join("boot"), place.join("efivars"));
    fs::create_dir(&variables).unwrap();
    let copy = |name: &str| {
        let from = pair.settings.image(name).join(".");
        let mut copy = Command::new("cp");
        copy.args(["--recursive", "--no-target-directory"]).arg(from).arg(&boot_files);
        assert!(copy.status().unwrap().success());
    };
    copy("current");
    let mut drop_ins = DropIns::of(&pair.machine);
    let options = format!("BOOT=/boot --secure-boot off --efivars {}", variables.display());
    drop_ins.service.push(format!("Environment=\"{options}\" EVERY=1"));
    let system = boot(&pair, &boot_files, &drop_ins);
    for unit in ["dbus.socket", "systemd-logind.service", "tec-next-boot.path"] {
        system.start(unit).unwrap();
    }
    // As after an update: other files, none of them approved.
    fs::remove_dir_all(boot_files.join("boot")).ok();
    copy("update");
    fs::write(boot_files.join("changed"), "").unwrap();
    let is_held = || Ok(system.holders()?.contains("tec-next-boot"));
    until("the shutdown is held", is_held).unwrap();
    let off = ["poweroff", "--check-inhibitors=yes"];
    let refused = system.systemctl(&off).unwrap();
    assert!(!refused.status.success());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("the next boot would not unlock the disks"), "{words}");

    let update = pair.settings.image("update");
    let update = update.to_str().unwrap();
    let approve = ["image", "approve", "update", update, "--secure-boot", "off"];
    pair.anchor.tec(&[&approve[..], &["--accept-unpinned"]].concat()).unwrap();
    until("the shutdown is not held", || {
        ensure!(!is_held()?, "{}", system.journal("tec-next-boot.service")?);
        Ok(true)
    })
    .unwrap();
    let off = system.systemctl(&off).unwrap();
    assert!(off.status.success(), "{off:?}");
    system.ends().unwrap();
}
