//! PCR 11 of unified kernel images.

use std::fs;
use std::path::Path;

use tec_core::pcr::PcrIndex;
use tec_tpm::compute::testing::{PeBuilder, application};
use tec_tpm::compute::{Banks, BootPredictor, MemoryImage, PlatformState, Register};
use tec_tpm::event_log::Bank;

use crate::{input, tool};

/// Not in the PATH: it belongs to no user.
const TOOL: &str = "/usr/lib/systemd/systemd-measure";
/// Sections that every version of the tool measures, and those that newer ones measure, too.
const SECTIONS: [&str; 7] = ["linux", "osrel", "cmdline", "initrd", "splash", "dtb", "pcrpkey"];
const NEWER_SECTIONS: [&str; 2] = ["uname", "sbat"];

type Sections = Vec<(String, Vec<u8>)>;

/// Major version of the tool, that of the stub whose measurements it computes.
fn tool_version() -> u32 {
    let printed = tool::output(TOOL, ["--version"]);
    let version = printed.split_whitespace().nth(1).unwrap();
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Whether stubs of this version measure the newer sections.
fn measures_newer(version: u32) -> bool {
    version > 252
}

/// PCR 11 in all banks before the first boot phase, as the tool computes it.
fn measure(sections: &Sections) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let mut arguments =
        vec!["calculate".to_owned(), "--json=short".to_owned(), "--phase=".to_owned()];
    arguments.extend(Bank::ALL.map(|bank| format!("--bank={bank}")));
    for (name, content) in sections {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        arguments.push(format!("--{name}={}", path.display()));
    }
    serde_json::from_str(&tool::output(TOOL, arguments)).unwrap()
}

/// Compares the prediction for this image with what the tool computes of its sections.
fn compare(uki: Vec<u8>, sections: &Sections) {
    let image = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", uki);
    let predictor = BootPredictor::new().with_banks(Banks::ALL);
    let prediction = predictor.predict(&image, &PlatformState::new()).unwrap();
    let Register::Predicted(ours) = prediction.register(PcrIndex::KERNEL_BOOT) else {
        panic!("{:?}", prediction.register(PcrIndex::KERNEL_BOOT));
    };
    let theirs = measure(sections);
    for bank in Bank::ALL {
        let theirs = theirs[bank.as_str()][0]["hash"].as_str();
        assert_eq!(ours.get(bank).map(hex::encode).as_deref(), theirs, "{bank}");
    }
}

#[test]
fn images_that_are_made_here_have_the_value_that_systemd_measure_computes() {
    let version = tool_version();
    let newer = measures_newer(version);
    let stub = if newer { "257.1" } else { "252.1" };
    let content = |name: &str| match name {
        "linux" => application("Linux"),
        "sbat" => b"sbat,1,SBAT Version,sbat,1,https://example.org/sbat\n".to_vec(),
        name => format!("content of {name}").into_bytes(),
    };
    let measured = SECTIONS.iter().chain(NEWER_SECTIONS.iter().filter(|_| newer));
    let measured: Vec<&str> = measured.copied().collect();
    // All sections; then without each one that an image may lack; then in another order.
    let mut orders = vec![measured.clone()];
    for lacking in measured.iter().filter(|name| **name != "linux") {
        orders.push(measured.iter().copied().filter(|name| name != lacking).collect());
    }
    orders.push(measured.iter().rev().copied().collect());
    for order in orders {
        let sections: Sections =
            order.iter().map(|name| ((*name).to_owned(), content(name))).collect();
        let magic = format!("#### LoaderInfo: systemd-stub {stub} ####");
        let mut uki = PeBuilder::new().section(".sdmagic", magic);
        for (name, content) in &sections {
            uki = uki.section(&format!(".{name}"), content.clone());
        }
        compare(uki.build(), &sections);
    }
    println!("systemd-measure {version}, stub {stub}");
}

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn recorded_images_have_the_value_that_systemd_measure_computes() {
    let version = tool_version();
    let mut compared = 0;
    for file in input::boot_files() {
        let bytes = fs::read(&file).unwrap();
        let sections = sections(&bytes);
        let content = |name: &str| sections.iter().find(|(section, _)| section == name);
        let (Some((_, magic)), Some(_)) = (content("sdmagic"), content("linux")) else {
            continue;
        };
        let stub = String::from_utf8_lossy(magic).contains("systemd-stub 252");
        if measures_newer(version) == stub {
            println!("{} has a stub of another generation", shown(&file));
            continue;
        }
        let names = SECTIONS.iter().chain(NEWER_SECTIONS.iter().filter(|_| !stub));
        let names: Vec<_> = names.collect();
        let measured = sections.iter().filter(|(name, _)| names.contains(&&&**name));
        compare(bytes.clone(), &measured.cloned().collect());
        println!("{} compared", shown(&file));
        compared += 1;
    }
    assert!(compared > 0, "no image has a stub of the tool's generation");
}

fn shown(file: &Path) -> String {
    let parts: Vec<_> = file.components().rev().take(5).collect();
    parts.iter().rev().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Names without the dot, and contents as they lie in memory: a reader apart from the one that is
/// tested (PE format, "COFF File Header" and "Section Table").
fn sections(file: &[u8]) -> Sections {
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let short = |at: usize| usize::from(u16::from_le_bytes(file[at..at + 2].try_into().unwrap()));
    let header = number(0x3c);
    let table = header + 24 + short(header + 20);
    let section = |index: usize| {
        let at = table + 40 * index;
        let name = String::from_utf8_lossy(&file[at..at + 8]);
        let (size, stored, start) = (number(at + 8), number(at + 16), number(at + 20));
        let mut content = file[start..start + size.min(stored)].to_vec();
        content.resize(size, 0);
        (name.trim_end_matches('\0').trim_start_matches('.').to_owned(), content)
    };
    (0..short(header + 6)).map(section).collect()
}
