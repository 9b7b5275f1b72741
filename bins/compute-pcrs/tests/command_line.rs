//! The program as a process: flags, JSON, exit codes.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::process::Output;

use serde_json::Value;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::testing::debian_chain;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_compute-pcrs");
    Command::new(program).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn unpack(image: &MemoryImage, paths: &[&str]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for path in paths {
        let file = directory.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, image.content(path).unwrap()).unwrap();
    }
    directory
}

fn debian(grub: &str) -> TempDir {
    let paths = [
        "usr/lib/shim/shimx64.efi.signed",
        "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
        "boot/vmlinuz-6.12.0-amd64",
    ];
    unpack(&debian_chain(grub), &paths)
}

fn ids(pcr: &Value) -> Vec<&str> {
    let events = pcr["events"].as_array().unwrap();
    events
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn pcr4_of_an_image_is_printed_as_one_register() {
    let image = debian("2.12");
    let pcr = json(&run(&["pcr4", "--rootfs", text(image.path())]));
    assert_eq!(pcr["id"], 4);
    assert_eq!(
        ids(&pcr),
        [
            "Pcr4EfiCall",
            "Pcr4Separator",
            "Pcr4Shim",
            "Pcr4Grub",
            "Pcr4Vmlinuz"
        ]
    );
    let event = pcr["events"][2].as_object().unwrap();
    let members: Vec<_> = event.keys().map(String::as_str).collect();
    assert_eq!(members, ["hash", "id", "name", "pcr"]);
}

#[test]
fn without_secure_boot_this_grub_has_no_kernel_measured() {
    let image = debian("2.12");
    let pcr = json(&run(&[
        "pcr4",
        "-r",
        text(image.path()),
        "--secureboot-disabled",
    ]));
    assert_eq!(
        ids(&pcr),
        ["Pcr4EfiCall", "Pcr4Separator", "Pcr4Shim", "Pcr4Grub"]
    );
}

#[test]
fn pcr14_is_that_of_the_captured_lists() {
    let lists = TempDir::new().unwrap();
    for (name, content) in [
        ("MokListRT", "a"),
        ("MokListXRT", "b"),
        ("MokListTrustedRT", "\x01"),
    ] {
        fs::write(lists.path().join(name), content).unwrap();
    }
    let pcr = json(&run(&["pcr14", "--mok-variables", text(lists.path())]));
    assert_eq!(
        ids(&pcr),
        ["Pcr14MokList", "Pcr14MokListX", "Pcr14MokListTrusted"]
    );
    // SHA-256 of the one byte 01.
    let trusted = "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a";
    assert_eq!(pcr["events"][2]["hash"], trusted);
}

#[test]
fn a_directory_without_lists_is_refused_by_name() {
    let empty = TempDir::new().unwrap();
    let refused = run(&["pcr14", "--mok-variables", text(empty.path())]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("has no MokListRT"), "{said}");
}

#[test]
fn an_image_that_does_not_tell_fails_with_code_1_and_prints_nothing() {
    let image = debian("9.99");
    let refused = run(&["pcr4", "--rootfs", text(image.path())]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("9.99"), "{said}");
}

#[test]
fn a_wrong_command_line_fails_with_code_2() {
    assert_eq!(run(&["pcr14"]).status.code(), Some(2));
    assert_eq!(run(&["pcr7", "--rootfs", "/"]).status.code(), Some(2));
    assert_eq!(run(&["pcr99"]).status.code(), Some(2));
}

/// Real boots lie beside the repository, where they are available.
const BOOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/fixtures/qemu");

#[test]
fn all_registers_of_real_boots_are_those_of_their_tpm() {
    for boot in ["trixie-sb-on", "bookworm-sb-on"] {
        let boot = Path::new(BOOTS).join(boot);
        if !boot.exists() {
            continue;
        }
        let folder = |name: &str| boot.join(name).to_str().unwrap().to_owned();
        let (root, variables, mok) = (folder("esp"), folder("efivars"), folder("mok-variables"));
        let all = json(&run(&[
            "all",
            "--rootfs",
            &root,
            "--efivars",
            &variables,
            "--mok-variables",
            &mok,
        ]));
        let measured: Value =
            serde_json::from_slice(&fs::read(boot.join("pcrs.json")).unwrap()).unwrap();
        let pcrs = all["pcrs"].as_array().unwrap();
        let numbers: Vec<_> = pcrs.iter().map(|pcr| pcr["id"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [4, 7, 14]);
        for pcr in pcrs {
            let number = pcr["id"].to_string();
            assert_eq!(
                pcr["value"],
                measured["sha256"][number.as_str()],
                "PCR {number}"
            );
        }
    }
}
