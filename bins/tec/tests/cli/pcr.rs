//! `tec pcr` as a process.

use std::fs;

use serde_json::Value;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::testing::{PeBuilder, application, debian_chain};

use crate::world::{
    GRUB, KERNEL, allowed, efivars, events, json, refused, registers, str, tec, text, unpacked,
    with_files, write,
};

#[test]
fn without_variables_the_rest_is_told_with_its_reason_and_the_flag_that_adds_it() {
    let image = unpacked(&debian_chain("2.12"));
    let computed = json(&["pcr", "compute", str(image.path())]);
    assert_eq!(registers(&computed), [4]);
    let unpredictable = computed["unpredictable"].as_array().unwrap();
    let remedy = |register: u64| {
        let left = unpredictable.iter();
        let mut left = left.filter(|l| l["pcrs"].as_array().unwrap().contains(&register.into()));
        left.next().unwrap()["remedy"].as_str().unwrap_or_default()
    };
    assert!(remedy(7).contains("--efivars"));
    assert!(remedy(14).contains("--no-mok"));
    let text = text(&["pcr", "compute", str(image.path())]);
    assert!(text.contains("PCR 7: not predicted, it holds the keys of the machine"));
}

#[test]
fn each_flag_adds_the_register_that_it_says() {
    let image = unpacked(&debian_chain("2.12"));
    let path = str(image.path());
    let mok = json(&["pcr", "compute", path, "--no-mok"]);
    assert_eq!(registers(&mok), [4, 14]);
    let only = ["pcr", "compute", path, "--no-mok", "--pcr", "14"];
    assert_eq!(registers(&json(&only)), [14]);

    let (image, variables) = allowed(&debian_chain("2.12"));
    let path = str(image.path());
    let all = ["pcr", "compute", path, "--efivars", str(variables.path())];
    let all = json(&all);
    assert_eq!(registers(&all), [4, 7, 14]);
    assert_eq!(events(&all, 7)[6..8], ["Pcr7ShimCert", "Pcr7SbatLevel"]);
}

#[test]
fn what_the_machine_does_not_allow_is_no_boot() {
    let image = unpacked(&debian_chain("2.12"));
    let variables = efivars(&[&application("something else")]);
    let arguments = ["pcr", "compute", str(image.path()), "--efivars", str(variables.path())];
    refused(&arguments, 1, "error TEC-I400");
}

#[test]
fn secure_boot_off_and_the_profile_of_grub_change_what_is_measured() {
    let image = unpacked(&debian_chain("2.12"));
    let path = str(image.path());
    let off = json(&["pcr", "compute", path, "--secure-boot", "off"]);
    assert_eq!(events(&off, 4).last(), Some(&"Pcr4Grub"));
    let older = json(&["pcr", "compute", path, "--grub-profile", "2.06"]);
    assert_eq!(events(&older, 4)[4..], ["Pcr4Vmlinuz", "Pcr4Vmlinuz"]);
    let unknown = unpacked(&debian_chain("2.99"));
    refused(&["pcr", "compute", str(unknown.path())], 1, "2.99");
}

#[test]
fn an_image_with_several_kernels_needs_a_choice() {
    let other = "boot/vmlinuz-6.13.0-amd64";
    let image = debian_chain("2.12").with(other, application("newer"));
    let image = unpacked(&image);
    let path = str(image.path());
    refused(&["pcr", "compute", path], 1, other);
    let chosen = json(&["pcr", "compute", path, "--kernel", other]);
    assert_eq!(chosen["pcrs"][0]["events"][4]["source"], other);
}

#[test]
fn unified_kernel_images_are_found_or_named() {
    let uki = PeBuilder::new()
        .section(".sdmagic", "#### LoaderInfo: systemd-stub 257.1 ####")
        .section(".cmdline", "quiet")
        .section(".linux", application("Linux"))
        .signed()
        .build();
    let found = unpacked(&MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", uki.clone()));
    let computed = json(&["pcr", "compute", str(found.path())]);
    assert_eq!(events(&computed, 4)[2..], ["Pcr4Uki"]);
    assert_eq!(events(&computed, 11)[..2], ["Pcr11Linux", "Pcr11LinuxContent"]);
    let named = unpacked(&MemoryImage::new().with("EFI/Linux/one.efi", uki));
    let path = str(named.path());
    refused(&["pcr", "compute", path], 1, "TEC-I400");
    let starts = ["--firmware-starts", "EFI/Linux/one.efi"];
    let named = json(&[&["pcr", "compute", path], &starts[..]].concat());
    assert_eq!(named["pcrs"][0]["value"], computed["pcrs"][0]["value"]);
}

#[test]
fn what_covers_the_root_is_said_wherever_values_are_computed_or_approved() {
    let uki = |line: &str| {
        let uki = PeBuilder::new()
            .section(".sdmagic", "#### LoaderInfo: systemd-stub 257.1 ####")
            .section(".cmdline", line)
            .section(".linux", application("Linux"));
        unpacked(&MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", uki.signed().build()))
    };
    let hash = format!("quiet roothash={}", "ab".repeat(32));
    let approve = ["image", "approve", "uki", "--accept-unpinned", "--dry-run"];
    for (line, covered) in [("quiet", false), (hash.as_str(), true)] {
        let image = uki(line);
        for command in [&["pcr", "compute"][..], &approve] {
            let command = [command, &[str(image.path())]].concat();
            assert_eq!(json(&command)["root_hash"], covered, "{command:?}");
            let said = text(&command);
            let gap = ["root file system: not measured", "NOT covered, unless it is encrypted"];
            assert_eq!(gap.iter().any(|gap| said.contains(gap)), !covered, "{said}");
        }
        // Values that were computed elsewhere say it, too, and the store keeps it.
        let files = tempfile::tempdir().unwrap();
        let state = files.path().join("state");
        let computed = json(&["pcr", "compute", str(image.path())]).to_string();
        let computed = write(files.path(), "computed.json", computed);
        let at = ["--state-dir", str(&state), "image"];
        let values = ["approve", "uki", "--accept-unpinned", "--pcrs", str(&computed)];
        text(&[&at[..], &values].concat());
        let shown = json(&[&at[..], &["show", "uki"]].concat());
        let by = if covered { "image" } else { "nothing" };
        assert_eq!(shown["coverage"][8]["by"], by, "{shown}");
    }
    let image = uki("quiet single");
    for command in [&["pcr", "compute"][..], &approve] {
        let command = [command, &[str(image.path())]].concat();
        assert_eq!(json(&command)["shell_words"][0], "single", "{command:?}");
        let said = text(&command);
        assert!(said.contains("warning: the command line has single: "), "{said}");
    }
    let image = uki("quiet");
    let compute = ["pcr", "compute", str(image.path()), "--form", "label"];
    let files = tempfile::tempdir().unwrap();
    let label = write(files.path(), "label.json", text(&compute));
    let said = text(&[&approve[..], &["--pcrs", str(&label)]].concat());
    assert!(said.contains("not known: if the command line has no hash"), "{said}");
}

#[test]
fn other_banks_stand_beside_sha256() {
    let image = unpacked(&debian_chain("2.12"));
    let computed = json(&["pcr", "compute", str(image.path()), "--bank", "sha384"]);
    let banks = &computed["pcrs"][0]["banks"];
    assert_eq!(banks["sha384"].as_str().unwrap().len(), 96);
    assert!(banks.get("sha1").is_none());
}

#[test]
fn the_forms_of_others_are_printed_as_they_are() {
    let image = unpacked(&debian_chain("2.12"));
    let path = str(image.path());
    let form = |name| text(&["pcr", "compute", path, "--form", name]);
    let label: Value = serde_json::from_str(&form("label")).unwrap();
    let members: Vec<_> = label.as_object().unwrap().keys().collect();
    assert_eq!(members, ["pcrs"]);
    assert!(form("tpm2-tools").contains("sha256:"));
    assert!(form("pcrlock").contains("\"records\""));
    assert!(form("trustee-config-map").contains("tpm_pcr4"));
    assert!(form("trustee-message").contains("payload"));
    let measurements: Value = serde_json::from_str(&form("measurements")).unwrap();
    assert_eq!(measurements["4"], label["pcrs"][0]["value"]);
}

#[test]
fn values_are_combined_identified_and_compared() {
    let directory = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for name in ["old", "new"] {
        let image = debian_chain("2.12").with(KERNEL, application(name)).with(
            GRUB,
            tec_tpm::compute::testing::grub(if name == "old" { "2.12" } else { "2.14" }),
        );
        let image = unpacked(&image);
        let label = text(&["pcr", "compute", str(image.path()), "--form", "label"]);
        files.push(write(directory.path(), &format!("{name}.json"), label));
    }
    let [old, new] = [str(&files[0]), str(&files[1])];
    let combined = json(&["pcr", "combine", "--image", old, "--image", new]);
    let values = combined["registers"][0]["values"].as_array().unwrap();
    assert_eq!(values.len(), 4, "loaders and kernel, each old or new");
    let mixed = values.iter().find(|v| v["made_by"][0] == "bootloader of new + kernel of old");
    let mixed = mixed.unwrap()["value"].as_str().unwrap();
    let images = ["--image", old, "--image", new];
    let identified = text(&[&["pcr", "identify", "--value", mixed], &images[..]].concat());
    assert!(identified.contains("bootloader of new + kernel of old"), "{identified}");
    let compared = json(&["pcr", "diff", old, new]);
    assert_eq!(compared[0]["components"].as_array().unwrap().len(), 2);
}

#[test]
fn a_wrong_command_line_fails_with_code_2() {
    for wrong in [
        &["pcr", "compute"][..],
        &["pcr", "compute", "/", "--pcr", "24"],
        &["pcr", "compute", "/", "--efivars", "/a", "--variable-store", "/b"],
        &["pcr", "compute", "/", "--efivars", "/a", "--no-mok"],
        &["pcr", "compute", "/", "--shim-starts", "a"],
        &["pcr", "bundle", "verify", "--bundle", "a"],
    ] {
        assert_eq!(tec(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn recorded_boots_are_predicted_from_their_variables() {
    for name in ["bookworm-sb-on", "trixie-sb-on", "trixie-uki", "trixie-shim-uki-mok"] {
        let boot = with_files(name);
        let measured = fs::read(boot.join("pcrs.json")).unwrap();
        let measured: Value = serde_json::from_slice(&measured).unwrap();
        let (esp, variables) = (boot.join("esp"), boot.join("efivars"));
        let computed = json(&[
            "pcr",
            "compute",
            str(&esp),
            "--efivars",
            str(&variables),
            "--grub-device",
            "hd0,gpt1",
        ]);
        for pcr in computed["pcrs"].as_array().unwrap() {
            let id = pcr["id"].to_string();
            assert_eq!(pcr["value"], measured["sha256"][&id], "{name}, PCR {id}");
        }
        let predicted = registers(&computed);
        assert!(predicted.starts_with(&[4, 7]), "{name}: {predicted:?}");
    }
}
