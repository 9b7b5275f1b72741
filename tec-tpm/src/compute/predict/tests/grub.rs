//! Boots of Debian with the configuration that it generates: each event of PCR 8 and 9 as it was recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::super::directory::DirectoryImage;
use super::super::super::grub_module;
use super::super::super::prediction::Register;
use super::super::super::unpredictable::Unpredictable;
use super::*;
use crate::event_log::{Bank, EventLog};

/// Recorded boots of the repository: name, version of GRUB, number of events in PCR 8 and 9.
const BOOTS: [(&str, &str, usize); 4] = [
    ("bookworm-grub-it", "2.06", 64),
    ("trixie-grub-it", "2.12", 67),
    ("trixie-grub-saved", "2.12", 71),
    ("trixie-grub-saved-second", "2.12", 71),
];
const LISTS: [&str; 4] = ["command", "fs", "crypto", "terminal"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boots").join(name)
}

fn read(name: &str, file: &str) -> Vec<u8> {
    fs::read(folder(name).join("grub").join(file)).unwrap()
}

/// Digests of the files that are not in the repository, by path.
fn recorded_files(name: &str) -> Vec<(String, String)> {
    let table = String::from_utf8(read(name, "boot.sha256")).unwrap();
    let lines = table.lines().map(|line| line.split_once("  ").unwrap());
    lines.map(|(digest, path)| (path.to_owned(), digest.to_owned())).collect()
}

/// The events of PCR 8 and 9 in the recorded log, in order: register, digest.
fn recorded_events(name: &str) -> Vec<(u8, String)> {
    recorded_events_of(name, &[8, 9])
}

fn recorded_events_of(name: &str, pcrs: &[u8]) -> Vec<(u8, String)> {
    let log = fs::read(folder(name).join("eventlog.bin")).unwrap();
    let log = EventLog::parse(&log).unwrap();
    let events = log.events().iter().filter_map(|event| {
        let pcr = u8::from(event.extends()?);
        let digest = event.digests.get(Bank::Sha256)?;
        let hex = Sha256Digest::new(digest.try_into().unwrap()).to_string();
        pcrs.contains(&pcr).then_some((pcr, hex))
    });
    events.collect()
}

/// The root of such a machine. Kernel, initial file system and modules are made up.
fn tree(name: &str, version: &str) -> MemoryImage {
    let keys = keys();
    let modules = String::from_utf8(read(name, "builtin-modules.txt")).unwrap();
    let modules: Vec<_> = modules.split_whitespace().map(grub_module::tests::named).collect();
    let grub = grub(version, "grub.debian")
        .section("mods", grub_module::tests::list(&modules, "/EFI/debian"));
    let grub = signed(&grub, &[&keys.vendor.1]);
    let shim = signed(&shim(&vendor_keys(&keys.vendor.0, &[]), "16.1"), &[&keys.firmware.1]);
    let mut image = MemoryImage::new()
        .with("boot/efi/EFI/BOOT/BOOTX64.EFI", shim.clone())
        .with("boot/efi/EFI/BOOT/grubx64.efi", grub.clone())
        .with("boot/efi/EFI/debian/shimx64.efi", shim)
        .with("boot/efi/EFI/debian/grubx64.efi", grub)
        .with("boot/efi/EFI/debian/grub.cfg", read(name, "esp-grub.cfg"))
        .with("boot/grub/grub.cfg", read(name, "grub.cfg"))
        .with("boot/grub/grubenv", read(name, "grubenv"))
        .with("boot/grub/fonts/unicode.pf2", *b"font");
    for list in LISTS {
        let file = format!("{list}.lst");
        image.insert(format!("boot/grub/x86_64-efi/{file}"), read(name, &file));
    }
    for (path, _) in recorded_files(name) {
        let content = if path.contains("vmlinuz") {
            signed(&kernel("6.12"), &[&keys.vendor.1])
        } else {
            path.clone().into_bytes()
        };
        image.insert(path, content);
    }
    image
}

/// The predicted events of PCR 8 and 9, with the recorded digests of files in place of made up ones.
fn predicted_events(name: &str, image: &MemoryImage) -> Vec<(u8, String)> {
    let prediction = predict(image, &platform(SecureBoot::On)).unwrap();
    for pcr in [PcrIndex::BOOT_COMMANDS, PcrIndex::BOOT_FILES] {
        assert!(matches!(prediction.register(pcr), Register::Predicted(_)));
    }
    let recorded: BTreeMap<String, String> = recorded_files(name)
        .into_iter()
        .map(|(path, digest)| (Sha256Digest::of(image.content(&path).unwrap()).to_string(), digest))
        .collect();
    let events = prediction.measurements().iter().filter(|m| [8, 9].contains(&u8::from(m.pcr)));
    let events = events.map(|event| {
        let digest = event.digest.to_string();
        (u8::from(event.pcr), recorded.get(&digest).cloned().unwrap_or(digest))
    });
    events.collect()
}

#[test]
fn generated_configurations_are_predicted_event_by_event() {
    for (name, version, count) in BOOTS {
        let recorded = recorded_events(name);
        assert_eq!(recorded.len(), count);
        let predicted = predicted_events(name, &tree(name, version));
        for (number, (ours, real)) in predicted.iter().zip(&recorded).enumerate() {
            assert_eq!(ours, real, "event {number} of {name}");
        }
        assert_eq!(predicted.len(), count, "{name}");
    }
}

#[test]
fn an_edited_command_line_and_initial_file_system_are_noticed_where_they_are() {
    let (name, edited) = ("trixie-grub-it", "trixie-grub-it-tampered");
    let predicted = predicted_events(name, &tree(name, "2.12"));
    let recorded = recorded_events(edited);
    let differs = predicted.iter().zip(&recorded).filter(|(ours, real)| ours != real);
    // The configuration; its entry and its submenu, `linux` twice, the initial file system, the command line
    // as the stub finds it, and again the initial file system.
    let registers: Vec<u8> = differs.map(|(ours, _)| ours.0).collect();
    assert_eq!(registers, [9, 8, 8, 8, 8, 9, 9, 9]);
    assert_eq!(predicted.len(), recorded.len());
    // From the edited files, everything follows.
    assert_eq!(predicted_events(edited, &tree(edited, "2.12")), recorded);
}

#[test]
fn the_boot_partition_and_the_root_may_be_elsewhere_on_their_file_systems() {
    let name = "trixie-grub-it";
    let text = |file| String::from_utf8(read(name, file)).unwrap();
    // The machine whose `/boot` is this folder of a file system.
    let with_boot_at = |folder: &str| {
        let first = text("esp-grub.cfg").replace("'/boot/", &format!("'{folder}/"));
        let second = text("grub.cfg").replace("\t/boot/", &format!("\t{folder}/"));
        tree(name, "2.12")
            .with("boot/efi/EFI/debian/grub.cfg", first.into_bytes())
            .with("boot/grub/grub.cfg", second.into_bytes())
    };
    let values = |image: &MemoryImage| {
        let prediction = predict(image, &platform(SecureBoot::On)).unwrap();
        [8, 9].map(|pcr| match prediction.register(PcrIndex::new(pcr).unwrap()) {
            Register::Predicted(value) => value.sha256(),
            _ => panic!("not predicted"),
        })
    };
    let (whole, separate) = (with_boot_at("/boot"), with_boot_at(""));
    assert_ne!(values(&whole), values(&separate));
    assert_ne!(values(&whole), values(&with_boot_at("/@rootfs/boot")));
    // The boot partition alone, with the EFI system partition below it.
    let mut below = MemoryImage::new();
    for path in tec_core::reference::BootImage::files(&separate, "boot").unwrap() {
        let content = separate.content(&path).unwrap().to_vec();
        below.insert(path.strip_prefix("boot/").unwrap(), content);
    }
    assert_eq!(values(&below), values(&separate));
}

#[test]
fn a_mounted_root_gives_what_its_files_in_memory_give() {
    let memory = tree("trixie-grub-it", "2.12");
    let root = on_disk(&memory);
    // A script may ask for a folder, and for what lies below a file.
    let script = "[ -d /boot ]\n[ -e /boot/grub/grub.cfg/x ]\nconfigfile $prefix/grub.cfg\n";
    let first = String::from_utf8(read("trixie-grub-it", "esp-grub.cfg")).unwrap();
    let first = first.replace("configfile $prefix/grub.cfg\n", script);
    fs::write(root.path().join("boot/efi/EFI/debian/grub.cfg"), &first).unwrap();
    let memory = memory.with("boot/efi/EFI/debian/grub.cfg", first.into_bytes());
    let directory = DirectoryImage::open(root.path()).unwrap();
    let machine = platform(SecureBoot::On);
    let expected = predict(&memory, &machine).unwrap();
    assert_eq!(BootPredictor::new().predict(&directory, &machine).unwrap(), expected);
    assert!(expected.predicted().contains(PcrIndex::BOOT_FILES));
}

#[test]
fn the_names_of_partitions_are_in_the_commands_of_grub_2_06_only() {
    let (name, version, _) = BOOTS[0];
    let image = tree(name, version);
    let of = |machine: PlatformState| predict(&image, &machine).unwrap();
    let value = |prediction: &Prediction, pcr: PcrIndex| match prediction.register(pcr) {
        Register::Predicted(value) => value.sha256(),
        _ => panic!("not predicted"),
    };
    let first = of(PlatformState::new());
    let named = of(PlatformState::new().with_grub_device("hd0,gpt1"));
    let second = of(PlatformState::new().with_grub_device("hd1,gpt1"));
    let commands = PcrIndex::BOOT_COMMANDS;
    assert_eq!(value(&first, commands), value(&named, commands));
    assert_ne!(value(&first, commands), value(&second, commands));
    let files = PcrIndex::BOOT_FILES;
    assert_eq!(value(&first, files), value(&second, files));
}

#[test]
fn what_is_missing_from_an_image_is_named() {
    let name = "trixie-grub-it";
    let reason = |image: &MemoryImage, machine: &PlatformState| {
        let prediction = predict(image, machine).unwrap();
        match prediction.register(PcrIndex::BOOT_FILES) {
            Register::Unpredictable(reason) => reason.clone(),
            _ => panic!("predicted"),
        }
    };
    let machine = platform(SecureBoot::On);
    let mut partition = MemoryImage::new();
    let whole = tree(name, "2.12");
    for path in tec_core::reference::BootImage::files(&whole, "boot/efi").unwrap() {
        let content = whole.content(&path).unwrap().to_vec();
        partition.insert(path.strip_prefix("boot/efi/").unwrap(), content);
    }
    // PCR 4 needs a kernel.
    partition.insert("vmlinuz", signed(&kernel("6.12"), &[&keys().vendor.1]));
    assert!(matches!(reason(&partition, &machine), Unpredictable::Script { line: 2, .. }));
    let script = b"search --fs-uuid --set=root x\nlinux /vmlinuz\nboot\n".to_vec();
    let without_hint = whole.clone().with("boot/efi/EFI/debian/grub.cfg", script);
    // The second partition is assumed to be that of the first search only.
    assert!(matches!(reason(&without_hint, &machine), Unpredictable::Script { line: 2, .. }));
    let script = b"search --fs-uuid --set=root x\nsearch --fs-uuid --set=root y\n".to_vec();
    let twice = whole.with("boot/efi/EFI/debian/grub.cfg", script);
    let unknown = Unpredictable::GrubRoot("y".to_owned());
    assert_eq!(reason(&twice, &machine), unknown);
}

/// The same files in a folder.
fn on_disk(image: &MemoryImage) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in tec_core::reference::BootImage::files(image, "").unwrap() {
        let file = root.path().join(&path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, image.content(&path).unwrap()).unwrap();
    }
    root
}

/// A file on the EFI system partition in place of its configuration, or beside it.
fn with_on_partition(image: &MemoryImage, path: &str, script: &str) -> MemoryImage {
    image.clone().with(format!("boot/efi/{path}"), script.as_bytes().to_vec())
}

/// The file system that the configuration on the EFI system partition searches for.
fn uuid() -> String {
    let script = String::from_utf8(read("trixie-grub-it", "esp-grub.cfg")).unwrap();
    script.split(' ').nth(1).unwrap().to_owned()
}

/// PCRs 8 and 9; `None` if they cannot be predicted.
fn commands_and_files(image: &MemoryImage, machine: &PlatformState) -> Option<[Sha256Digest; 2]> {
    let prediction = predict(image, machine).unwrap();
    let value = |pcr| match prediction.register(pcr) {
        Register::Predicted(value) => Some(value.sha256()),
        _ => None,
    };
    Some([value(PcrIndex::BOOT_COMMANDS)?, value(PcrIndex::BOOT_FILES)?])
}

#[test]
fn hints_are_names_of_devices_as_grub_install_writes_them() {
    let image = tree("trixie-grub-it", "2.12");
    let machine = platform(SecureBoot::On);
    let next = "set prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n";
    let hinted = |hint: &str| {
        let script = format!("search.fs_uuid {} root {hint}\n{next}", uuid());
        with_on_partition(&image, "EFI/debian/grub.cfg", &script)
    };
    for (hint, device) in [
        ("", "hd0,gpt2"),
        ("hd1,gpt3", "hd1,gpt3"),
        ("hostdisk//dev/sda,gpt3", "hd0,gpt3"),
        ("lvmid/a/b", "lvmid/a/b"),
        ("mduuid/c", "mduuid/c"),
    ] {
        let [commands, _] = commands_and_files(&hinted(hint), &machine).expect(hint);
        // The command contains the hint: what is compared is the prefix.
        let named = machine.clone().with_grub_root(device);
        assert_eq!(commands_and_files(&hinted(hint), &named).unwrap()[0], commands, "{hint}");
        let other = machine.clone().with_grub_root("hd7,gpt7");
        assert_ne!(commands_and_files(&hinted(hint), &other).unwrap()[0], commands, "{hint}");
    }
    for hint in ["hd0,", "cryptouuid/a", "hostdisk//dev/sda"] {
        assert_eq!(commands_and_files(&hinted(hint), &machine), None, "{hint}");
    }
}

#[test]
fn grub_from_2_12_on_starts_the_configuration_beside_it() {
    let image = tree("trixie-grub-it", "2.12");
    let machine = platform(SecureBoot::On);
    let expected = commands_and_files(&image, &machine);
    assert!(expected.is_some());
    let other = with_on_partition(&image, "EFI/BOOT/grub.cfg", "linux /vmlinuz single\nboot\n");
    assert_eq!(commands_and_files(&other, &machine), None);
    let same = String::from_utf8(read("trixie-grub-it", "esp-grub.cfg")).unwrap();
    let same = with_on_partition(&image, "EFI/BOOT/grub.cfg", &same);
    assert_eq!(commands_and_files(&same, &machine), expected);
    let platforms = with_on_partition(&image, "EFI/debian/x86_64-efi/grub.cfg", "boot\n");
    assert_eq!(commands_and_files(&platforms, &machine), expected, "it does not look there");
    let asks = |variable: &str| {
        let next = "set prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n";
        let script = format!("echo ${variable}\nsearch.fs_uuid {} root hd0,gpt2\n{next}", uuid());
        commands_and_files(&with_on_partition(&image, "EFI/debian/grub.cfg", &script), &machine)
    };
    assert!(asks("none").is_some());
    assert_eq!(asks("cmdpath"), None);
}

#[test]
fn a_part_of_the_files_does_not_show_what_else_there_is() {
    let image = tree("trixie-grub-it", "2.12");
    let machine = platform(SecureBoot::On);
    let asks = "if [ -e ($root)/usr/share/a.png ]; then echo a; fi";
    let script = format!(
        "search.fs_uuid {} root\nset prefix=($root)/boot/grub\n{asks}\nconfigfile $prefix/grub.cfg\n",
        uuid()
    );
    let asks = with_on_partition(&image, "EFI/debian/grub.cfg", &script);
    assert_eq!(commands_and_files(&asks, &machine), None);
    let whole = asks.with("usr/lib/os-release", *b"");
    assert!(commands_and_files(&whole, &machine).is_some());
    // The files of a whole machine: more than anybody lists.
    let root = on_disk(&whole);
    fs::create_dir_all(root.path().join("usr").join("a/".repeat(100))).unwrap();
    let directory = DirectoryImage::open(root.path()).unwrap();
    let prediction = BootPredictor::new().predict(&directory, &machine).unwrap();
    assert!(prediction.predicted().contains(PcrIndex::BOOT_COMMANDS));
}

const FEDORA: &str = "fedora39-grub-bls";

/// A GRUB that Red Hat built, with the modules of Fedora's.
fn red_hat_grub(package: &str) -> Vec<u8> {
    let modules = String::from_utf8(read(FEDORA, "builtin-modules.txt")).unwrap();
    let modules: Vec<_> = modules.split_whitespace().map(grub_module::tests::named).collect();
    let version = package.split('-').next().unwrap();
    let sbat = format!(
        "sbat,1,S,sbat,1,u\ngrub,3,F,grub,{version},u\ngrub.rh,2,Red Hat,grub2,{package},u\n"
    );
    let grub = PeBuilder::new().section(".text", b"GRUB".repeat(100)).section(".sbat", sbat);
    let grub = grub.section("mods", grub_module::tests::list(&modules, "/EFI/fedora\0\0"));
    signed(&grub, &[&keys().vendor.1])
}

fn shim_of(version: &str) -> Vec<u8> {
    let keys = keys();
    signed(&shim(&vendor_keys(&keys.vendor.0, &[]), version), &[&keys.firmware.1])
}

/// The EFI system partition of the recorded boot. Programs, initial file system and entry are made up.
fn fedora() -> MemoryImage {
    let options = "root=LABEL=boots rw console=ttyS0 mitigations=off systemd.show_status=0 quiet";
    let entry = format!("title Fedora\nlinux /linux\ninitrd /initrd\noptions {options}\n");
    let script = read(FEDORA, "grub.cfg");
    MemoryImage::new()
        .with("EFI/BOOT/BOOTX64.EFI", shim_of("15.6"))
        .with("EFI/BOOT/grubx64.efi", red_hat_grub("2.06-116.fc39"))
        .with("EFI/BOOT/grub.cfg", script.clone())
        .with("EFI/fedora/grub.cfg", script)
        .with("linux", signed(&kernel("6.12"), &[&keys().vendor.1]))
        .with("initrd", *b"initrd")
        .with("loader/entries/fed.conf", entry.into_bytes())
}

#[test]
fn a_recorded_boot_of_fedora_with_boot_entries_is_predicted_event_by_event() {
    let image = fedora();
    let prediction = predict(&image, &PlatformState::new()).unwrap();
    let made_up = recorded_files(FEDORA).into_iter().map(|(path, digest)| {
        (Sha256Digest::of(image.content(&path).unwrap()).to_string(), digest)
    });
    let recorded: BTreeMap<String, String> = made_up.collect();
    // The programs, and the list with the key of shim's vendor, are those of others here.
    let is_other = |component| {
        matches!(component, Component::Pcr4Shim | Component::Pcr4Grub | Component::Pcr14MokList)
    };
    for pcr in [4, 7, 8, 9, 14] {
        let index = PcrIndex::new(pcr).unwrap();
        assert!(matches!(prediction.register(index), Register::Predicted(_)), "PCR {pcr}");
        let real = recorded_events_of(FEDORA, &[pcr]);
        let ours: Vec<_> = prediction.of_register(index).collect();
        assert_eq!(ours.len(), real.len(), "PCR {pcr}");
        for (number, (ours, (_, real))) in ours.iter().zip(&real).enumerate() {
            let digest = ours.digest.to_string();
            let digest = recorded.get(&digest).unwrap_or(&digest);
            let same = digest == real;
            assert_eq!(same, !is_other(ours.component), "event {number} of PCR {pcr}: {ours:?}");
        }
    }
}

/// A machine as Fedora's installer makes it: `/boot` on a partition of its own.
fn installed(package: &str, entries: &[&str]) -> MemoryImage {
    let first = "search --no-floppy --root-dev-only --fs-uuid --set=dev 0a\n\
        set prefix=($dev)/grub2\nexport $prefix\nconfigfile $prefix/grub.cfg\n";
    let script = "if [ -f ${config_directory}/grubenv ]; then\n  load_env -f ${config_directory}/grubenv\nfi\n\
        set default=\"${saved_entry}\"\nfunction load_video {\n  insmod all_video\n}\n\
        set root='hd0,gpt2'\nsearch --no-floppy --fs-uuid --set=root --hint-efi=hd0,gpt2 0a\ninsmod blscfg\nblscfg\n";
    let mut image = MemoryImage::new()
        .with("boot/efi/EFI/BOOT/BOOTX64.EFI", shim_of("15.8"))
        .with("boot/efi/EFI/BOOT/fbx64.efi", *b"fallback")
        .with("boot/efi/EFI/fedora/shimx64.efi", shim_of("15.8"))
        .with("boot/efi/EFI/fedora/grubx64.efi", red_hat_grub(package))
        .with("boot/efi/EFI/fedora/grub.cfg", first.as_bytes())
        .with("boot/grub2/grub.cfg", script.as_bytes())
        .with("boot/grub2/grubenv", *b"# GRUB Environment Block\nsaved_entry=6c-1.0-1\n####")
        .with("usr/lib/os-release", *b"ID=fedora\n");
    for name in entries {
        let entry = format!("linux /vmlinuz-{name}\ninitrd /initrd-{name}\noptions {name}\n");
        image.insert(format!("boot/loader/entries/6c-{name}-1.conf"), entry.into_bytes());
        let kernel = signed(&kernel("6.12"), &[&keys().vendor.1]);
        image.insert(format!("boot/vmlinuz-{name}"), kernel);
        image.insert(format!("boot/initrd-{name}"), name.as_bytes());
    }
    image
}

/// The command lines that GRUB hands over.
fn lines(prediction: &Prediction) -> Vec<&str> {
    let register = prediction.register(PcrIndex::BOOT_COMMANDS);
    assert!(matches!(register, Register::Predicted(_)), "{register:?}");
    let lines = prediction.of_register(PcrIndex::BOOT_COMMANDS);
    let lines = lines.filter(|event| event.component == Component::Pcr8KernelCmdline);
    lines.filter_map(|event| event.subject.as_deref()).collect()
}

#[test]
fn an_installed_fedora_boots_the_saved_entry_and_with_several_the_order_of_their_files_is_not_known()
 {
    let machine = platform(SecureBoot::On);
    for package in ["2.06-116.fc39", "2.06-104.el9", "2.12-32.fc42"] {
        let one = predict(&installed(package, &["1.0"]), &machine).unwrap();
        assert_eq!(lines(&one), ["(hd0,gpt2)/vmlinuz-1.0 1.0"], "{package}");
        assert!(one.predicted().contains(PcrIndex::BOOT_FILES));
        let several = predict(&installed(package, &["1.0", "2.0"]), &machine).unwrap();
        assert_eq!(lines(&several), ["(hd0,gpt2)/vmlinuz-1.0 1.0"], "{package}");
        let order = Unpredictable::EntryOrder(2);
        assert_eq!(several.register(PcrIndex::BOOT_FILES), Register::Unpredictable(&order));
        // Once: the loader does not ask shim again.
        assert_eq!(several.of_register(PcrIndex::BOOT_MANAGER).count(), 5);
        // The saved entry is gone.
        let other = predict(&installed(package, &["0.9", "2.0"]), &machine).unwrap();
        assert_eq!(lines(&other), ["(hd0,gpt2)/vmlinuz-2.0 2.0"], "{package}");
    }
}

#[test]
fn builds_of_rhel_10_leave_commands_and_files_open() {
    let image = installed("2.12-15.el10", &["1.0"]);
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    for pcr in [PcrIndex::BOOT_COMMANDS, PcrIndex::BOOT_FILES] {
        let Register::Unpredictable(reason) = prediction.register(pcr) else {
            panic!("predicted");
        };
        assert!(reason.to_string().contains("RHEL 10"), "{reason}");
    }
    assert!(prediction.predicted().contains(PcrIndex::BOOT_MANAGER));
}

#[test]
fn the_efi_system_partition_may_be_mounted_at_boot() {
    let mut moved = MemoryImage::new();
    let image = fedora();
    for path in tec_core::reference::BootImage::files(&image, "").unwrap() {
        moved.insert(format!("boot/{path}"), image.content(&path).unwrap().to_vec());
    }
    let machine = PlatformState::new();
    assert!(commands_and_files(&image, &machine).is_some());
    assert_eq!(commands_and_files(&moved, &machine), commands_and_files(&image, &machine));
}
