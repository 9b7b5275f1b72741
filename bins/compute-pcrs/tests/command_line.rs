//! The program as a process: flags, JSON, exit codes.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::testing::{PeBuilder, application, debian_chain};
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_compute-pcrs");
    Command::new(program).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    events.iter().map(|event| event["id"].as_str().unwrap()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn pcr4_of_an_image_is_printed_as_one_register() {
    let image = debian("2.12");
    let pcr = json(&run(&["pcr4", "--rootfs", text(image.path())]));
    assert_eq!(pcr["id"], 4);
    assert_eq!(ids(&pcr), ["Pcr4EfiCall", "Pcr4Separator", "Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"]);
    let event = pcr["events"][2].as_object().unwrap();
    let members: Vec<_> = event.keys().map(String::as_str).collect();
    assert_eq!(members, ["hash", "id", "name", "pcr"]);
}

#[test]
fn without_secure_boot_this_grub_has_no_kernel_measured() {
    let image = debian("2.12");
    let pcr = json(&run(&["pcr4", "-r", text(image.path()), "--secureboot-disabled"]));
    assert_eq!(ids(&pcr), ["Pcr4EfiCall", "Pcr4Separator", "Pcr4Shim", "Pcr4Grub"]);
}

#[test]
fn pcr14_is_that_of_the_captured_lists() {
    let lists = TempDir::new().unwrap();
    for (name, content) in [("MokListRT", "a"), ("MokListXRT", "b"), ("MokListTrustedRT", "\x01")] {
        fs::write(lists.path().join(name), content).unwrap();
    }
    let pcr = json(&run(&["pcr14", "--mok-variables", text(lists.path())]));
    assert_eq!(ids(&pcr), ["Pcr14MokList", "Pcr14MokListX", "Pcr14MokListTrusted"]);
    // SHA-256 of the single byte 01.
    let trusted = "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a";
    assert_eq!(pcr["events"][2]["hash"], trusted);
}

#[test]
fn a_job_predicts_pcr_14_where_the_machine_owner_keys_are_known() {
    let (image, scratch, lists) =
        (debian("2.12"), TempDir::new().unwrap(), TempDir::new().unwrap());
    let to = scratch.path().join("measurements.json");
    let job = |more: &[&str]| {
        let (image, to) = (text(image.path()), text(&to));
        let job = ["job", "--image", "registry.example/os", "--image-dir", image, "--to", to];
        run(&[&job[..], more].concat())
    };
    let registers = |more: &[&str]| {
        let done = job(more);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let all: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
        let all = all["pcrs"].as_array().unwrap().iter();
        all.map(|pcr| pcr["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert!(!registers(&[]).contains(&14));
    assert!(registers(&["--no-mok"]).contains(&14));
    // What an ApprovedImage says of the boot counts.
    let programs = |more: &[&str]| {
        assert!(registers(more).contains(&4));
        let all: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
        ids(&all["pcrs"][0])[3..].join(" ")
    };
    let off = programs(&["--ignore-label", "--secure-boot=off"]);
    assert_eq!(off, "Pcr4Grub");
    assert_eq!(programs(&["--grub-profile=2.06"]), "Pcr4Grub Pcr4Vmlinuz Pcr4Vmlinuz");
    let unknown = job(&["--grub-profile=9.99"]);
    assert_eq!(unknown.status.code(), Some(2));
    // Lists written by a different shim say nothing about this image.
    fs::write(lists.path().join("MokListRT"), b"list").unwrap();
    let refused = job(&["--mok-variables", text(lists.path())]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("MokListRT"));
}

#[test]
fn a_directory_without_lists_is_refused_by_name() {
    let empty = TempDir::new().unwrap();
    let refused = run(&["pcr14", "--mok-variables", text(empty.path())]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("cannot read MokListRT"), "{said}");
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

/// Exactly the bytes that readers of labels expect, for the two events that are the same everywhere.
#[test]
fn the_output_has_the_bytes_of_the_existing_program() {
    let image = debian("2.12");
    let output = run(&["pcr4", "-r", text(image.path())]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let value = json(&run(&["pcr4", "-r", text(image.path())]))["value"].clone();
    let begins = format!(
        r#"{{
  "id": 4,
  "value": {value},
  "events": [
    {{
      "name": "EV_EFI_ACTION",
      "pcr": 4,
      "hash": "3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba",
      "id": "Pcr4EfiCall"
    }},
    {{
      "name": "EV_SEPARATOR",
      "pcr": 4,
      "hash": "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119",
      "id": "Pcr4Separator"
    }},
"#
    );
    assert!(printed.starts_with(&begins), "{printed}");
    assert!(printed.ends_with("    }\n  ]\n}\n"), "{printed}");
}

#[test]
fn a_unified_kernel_image_is_predicted_where_the_flag_says_that_there_is_one() {
    let uki = PeBuilder::new()
        .section(".sdmagic", "#### LoaderInfo: systemd-stub 257.1 ####")
        .section(".cmdline", "quiet")
        .section(".linux", application("Linux"))
        .signed()
        .build();
    let path = "EFI/BOOT/BOOTX64.EFI";
    let image = unpack(&MemoryImage::new().with(path, uki), &[path]);
    let pcr4 = json(&run(&["pcr4", "--uki", "-r", text(image.path())]));
    assert_eq!(ids(&pcr4), ["Pcr4EfiCall", "Pcr4Separator", "Pcr4Uki"]);
    let pcr11 = json(&run(&["pcr11", text(&image.path().join(path))]));
    assert_eq!(pcr11["id"], 11);
    assert_eq!(ids(&pcr11)[..2], ["Pcr11Linux", "Pcr11LinuxContent"]);

    let other = run(&["pcr4", "--uki", "-r", text(debian("2.12").path())]);
    assert_eq!(other.status.code(), Some(1));
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(said.contains("does not boot a unified kernel image"), "{said}");
}

#[test]
fn an_image_may_come_as_a_stream() {
    let image = debian("2.12");
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all("", image.path()).unwrap();
    let files = TempDir::new().unwrap();
    let file = files.path().join("image");
    fs::write(&file, archive.into_inner().unwrap()).unwrap();
    let expected = json(&run(&["pcr4", "-r", text(image.path())]));
    assert_eq!(json(&run(&["pcr4", "-r", text(&file)])), expected);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_compute-pcrs"));
    piped.args(["pcr4", "--rootfs", "-"]);
    piped.stdin(fs::File::open(&file).unwrap());
    assert_eq!(json(&piped.output().unwrap()), expected);
    let chosen = run(&["pcr4", "-r", text(&file), "--reference", "44"]);
    assert_eq!(chosen.status.code(), Some(1));
    let said = String::from_utf8(chosen.stderr).unwrap();
    assert!(said.contains("image references cannot be selected in"), "{said}");
}

#[test]
fn logs_go_to_stderr_at_every_verbosity() {
    let image = debian("2.12");
    let quiet = run(&["pcr4", "-r", text(image.path())]);
    assert!(quiet.stderr.is_empty());
    for verbose in ["-v", "-vv", "-vvv"] {
        let output = run(&[verbose, "pcr4", "-r", text(image.path())]);
        assert_eq!(output.stdout, quiet.stdout, "{verbose}");
    }
}

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn recorded_machines_have_what_all_prints() {
    let fixtures = std::env::var_os("TEC_FIXTURES").unwrap();
    let boots = [
        ("bookworm-sb-on", false),
        ("bookworm-shim-mokgrub", false),
        ("trixie-sb-off", true),
        ("trixie-sb-on", false),
    ];
    for (name, is_off) in boots {
        let boot = Path::new(&fixtures).join("qemu").join(name);
        let measured = fs::read(boot.join("pcrs.json")).unwrap();
        let measured: Value = serde_json::from_slice(&measured).unwrap();
        let [esp, efivars, mok] = ["esp", "efivars", "mok-variables"].map(|part| boot.join(part));
        let mut arguments = vec!["all", "--rootfs", text(&esp), "--efivars", text(&efivars)];
        arguments.extend(["--mok-variables", text(&mok)]);
        arguments.extend(is_off.then_some("--secureboot-disabled"));
        let all = json(&run(&arguments));
        let pcrs = all["pcrs"].as_array().unwrap();
        let registers: Vec<_> = pcrs.iter().map(|pcr| pcr["id"].to_string()).collect();
        assert_eq!(registers, ["4", "7", "14"]);
        for pcr in pcrs {
            let register = pcr["id"].to_string();
            assert_eq!(pcr["value"], measured["sha256"][&register], "{name}: {register}");
        }
    }
}

#[test]
fn the_log_level_comes_from_the_environment_unless_a_flag_says_another() {
    let image = debian("2.12");
    let with = |filter: &str, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_compute-pcrs"));
        command.args(["pcr4", "--rootfs", text(image.path())]).args(flags);
        command.env("TEC_LOG", filter).env("TEC_LOG_FORM", "json").output().unwrap()
    };
    assert!(with("debug", &[]).status.success());
    assert!(!with("a=b=c", &[]).status.success(), "it is read");
    assert!(with("a=b=c", &["-v"]).status.success());
}
