//! The units in `deploy`, as systemd reads them; `systemd-analyze` must be installed.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tec_support::exit;
use tempfile::TempDir;

/// Path of the program in an image, and here.
const INSTALLED: &str = "/usr/bin/bootstrapper";
const BUILT: &str = env!("CARGO_BIN_EXE_bootstrapper");
/// Tenths of the exposure reported by `systemd-analyze security`, from 0 to 10; a service without any setting
/// has 9.6. Half of what remains is due to the network, root and devices, which the services need.
const EXPOSURE: &str = "53";
const UNITS: [&str; 2] = ["tec-bootstrapper.service", "tec-recover.service"];

fn unit(name: &str) -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    fs::read_to_string(deploy.join(name)).unwrap()
}

/// The problems that systemd finds in these units, given by name and text.
fn findings(units: &[(&str, String)]) -> String {
    let directory = TempDir::new().unwrap();
    let paths = units.iter().map(|(name, text)| {
        let path = directory.path().join(name);
        fs::write(&path, text.replace(INSTALLED, BUILT)).unwrap();
        path
    });
    let paths: Vec<_> = paths.collect();
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).args(&paths).output();
    assert!(output.is_ok(), "systemd-analyze is missing; run `cargo xtask tools`");
    let output = output.unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || !words.is_empty(), "{output:?}");
    words
}

/// The settings of a unit's service; each occurs once.
fn service(name: &str) -> BTreeMap<String, String> {
    let text = unit(name);
    let (_, section) = text.split_once("[Service]\n").unwrap();
    let lines = section.split("\n[").next().unwrap().lines();
    let settings = lines.filter_map(|line| line.split_once('='));
    let settings = settings.filter(|(name, _)| !name.starts_with('#'));
    let mut all = BTreeMap::new();
    for (name, value) in settings {
        let before = all.insert(name.to_owned(), value.to_owned());
        assert!(before.is_none(), "{name} is there twice");
    }
    all
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let units = UNITS.map(|name| (name, unit(name)));
    // Problems of the host's own units are reported, too.
    let findings_of_ours = findings(&units);
    let ours = findings_of_ours.lines();
    let ours: Vec<_> = ours.filter(|line| UNITS.iter().any(|name| line.contains(name))).collect();
    assert_eq!(ours, [""; 0]);
    // It would report an unknown setting, and a missing program.
    let [(name, good), _] = units;
    for bad in
        [good.replace("LimitCORE=0", "LimitCores=0"), good.replace(INSTALLED, "/usr/bin/none")]
    {
        assert!(findings(&[(name, bad)]).contains(name));
    }
}

#[test]
fn a_unit_is_started_again_unless_its_command_line_is_wrong() {
    let status = Command::new(BUILT).arg("--no-such-flag").output().unwrap().status;
    let usage = status.code().unwrap();
    assert_eq!(usage, i32::from(exit::USAGE));
    for name in UNITS {
        let service = service(name);
        assert_eq!(service["Restart"], "on-failure");
        assert_eq!(service["RestartPreventExitStatus"], usage.to_string());
        // Restarts must not be fast enough to hit the start limit (systemd, DefaultStartLimitIntervalSec and
        // DefaultStartLimitBurst: 5 in 10 s).
        assert!(service["RestartSec"].parse::<u32>().unwrap() * 5 > 10);
        // Its commands are those of the program.
        let command = service["ExecStart"].strip_prefix(INSTALLED).unwrap().trim();
        let help = Command::new(BUILT).args([command, "--help"]).output();
        assert!(help.unwrap().status.success(), "{command}");
    }
}

#[test]
fn the_exposure_of_the_units_stays_below_a_bound() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let exposed = |bound: &str, name: &str| {
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--no-pager", "--offline=true", "--threshold", bound]);
        analyze.arg(deploy.join(name)).output().unwrap()
    };
    for name in UNITS {
        let output = exposed(EXPOSURE, name);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(!exposed("0", name).status.success(), "no bound is ever exceeded");
    }
}

#[test]
fn keys_get_to_no_disk_from_the_memory_of_a_unit() {
    for name in UNITS {
        let service = service(name);
        for (setting, value) in [("LimitCORE", "0"), ("MemorySwapMax", "0"), ("UMask", "0077")] {
            assert_eq!(service[setting], value, "{name}");
        }
        // These would block the TPM, or the disk that systemctl mounts.
        for setting in ["PrivateDevices", "ProtectClock", "PrivateMounts", "ProtectSystem"] {
            assert!(!service.contains_key(setting), "{name}: {setting}");
        }
    }
}
