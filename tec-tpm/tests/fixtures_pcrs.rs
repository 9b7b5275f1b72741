//! Real boots: from the files of the EFI system partition and the firmware variables before the
//! boot, every predicted measurement and every predicted register in all banks of the TPM.
//!
//! The fixtures lie beside the repository; where they are absent, the test says so and passes.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this file is test code, its helper functions too"
)]

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::path::PathBuf;

use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;
use tec_tpm::compute::Banks;
use tec_tpm::compute::BootPredictor;
use tec_tpm::compute::DirectoryImage;
use tec_tpm::compute::PlatformState;
use tec_tpm::compute::Prediction;
use tec_tpm::compute::Register;
use tec_tpm::compute::SecureBoot;
use tec_tpm::event_log::Bank;
use tec_tpm::event_log::EventLog;

/// The registers that are predicted.
const REGISTERS: [u8; 7] = [4, 7, 8, 9, 11, 12, 14];

#[test]
fn every_predictable_register_of_every_boot_is_right_in_all_banks() {
    let mut wrong = Vec::new();
    let registers = REGISTERS.map(|register| format!("{register:>6}"));
    println!("{:<26} {}", "boot", registers.join(" "));
    for boot in boots() {
        let image = DirectoryImage::open(boot.join("esp")).unwrap();
        let platform = variables_before(&boot).with_grub_device("hd0,gpt1");
        let predictor = BootPredictor::new().with_banks(Banks::ALL);
        let name = boot.file_name().unwrap().to_string_lossy().into_owned();
        let prediction = predictor.predict(&image, &platform).unwrap();
        let mut row = Vec::new();
        let mut notes = Vec::new();
        for register in REGISTERS {
            let pcr = PcrIndex::new(register).unwrap();
            match verdict(&prediction, pcr, &boot) {
                Ok(events) => row.push(format!("ok {events:>3}")),
                Err(Miss::Unpredictable(reason)) => {
                    row.push(format!("{:>6}", "-"));
                    notes.push(format!("  PCR {register}: {reason}"));
                }
                Err(Miss::Wrong(why)) => {
                    row.push(format!("{:>6}", "WRONG"));
                    notes.push(format!("  PCR {register}: {why}"));
                    wrong.push(format!("{name} PCR {register}: {why}"));
                }
            }
        }
        println!("{name:<26} {}", row.join(" "));
        for note in notes {
            println!("{note}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_variables_of_the_running_system_give_the_same_registers() {
    for boot in boots() {
        let image = DirectoryImage::open(boot.join("esp")).unwrap();
        let folder = DirectoryImage::open(boot.join("efivars")).unwrap();
        let after = PlatformState::from_efivars(&folder, "").unwrap();
        let before = variables_before(&boot);
        assert_eq!(after.secure_boot().unwrap(), before.secure_boot().unwrap());
        let predict = |platform: &PlatformState| {
            let prediction = BootPredictor::new().predict(&image, platform).unwrap();
            prediction.expected()
        };
        let name = boot.file_name().unwrap().to_string_lossy();
        // A machine that booted with Secure Boot off has had its level reset.
        if after.secure_boot().unwrap() == SecureBoot::On {
            assert_eq!(predict(&after), predict(&before), "{name}");
        }
    }
}

#[test]
fn one_bank_gives_the_same_values_as_all_of_them() {
    for boot in boots().into_iter().take(2) {
        let image = DirectoryImage::open(boot.join("esp")).unwrap();
        let platform = variables_before(&boot);
        let one = BootPredictor::new();
        let all = one.clone().with_banks(Banks::ALL);
        assert_eq!(
            one.predict(&image, &platform).unwrap().expected(),
            all.predict(&image, &platform).unwrap().expected()
        );
    }
}

enum Miss {
    Unpredictable(String),
    Wrong(String),
}

/// Number of events that were compared, or what does not fit.
fn verdict(prediction: &Prediction, pcr: PcrIndex, boot: &Path) -> Result<usize, Miss> {
    let value = match prediction.register(pcr) {
        Register::Predicted(value) => value,
        Register::Unpredictable(reason) => return Err(Miss::Unpredictable(reason.to_string())),
        other => return Err(Miss::Wrong(other.to_string())),
    };
    let pcrs = pcrs(boot);
    let events = compare_events(prediction, pcr, boot).map_err(Miss::Wrong)?;
    for bank in [Bank::Sha1, Bank::Sha256, Bank::Sha384] {
        let measured = pcrs[bank.as_str()][pcr.to_string()].as_str();
        if value.get(bank).map(hex::encode).as_deref() != measured {
            return Err(Miss::Wrong(format!("{bank} is another value")));
        }
    }
    assert!(value.get(Bank::Sha512).is_some());
    Ok(events)
}

/// Every event in order, in all banks of the log.
fn compare_events(prediction: &Prediction, pcr: PcrIndex, boot: &Path) -> Result<usize, String> {
    let predicted: Vec<_> = prediction.of_register(pcr).collect();
    let Ok(bytes) = fs::read(boot.join("eventlog.bin")) else {
        return Ok(predicted.len());
    };
    let log = parsed(&bytes);
    let chosen = PcrSet::default().with(pcr);
    let logged: Vec<_> = log
        .events()
        .iter()
        .filter(|event| event.extends().is_some_and(|pcr| chosen.contains(pcr)))
        .collect();
    for (number, (logged, predicted)) in logged.iter().zip(&predicted).enumerate() {
        for bank in log.banks() {
            if logged.digests.get(bank) != predicted.digests.get(bank) {
                return Err(format!(
                    "event {number} is not {} {:?}, the log says {} {:?}",
                    predicted.component,
                    predicted.subject,
                    logged.kind.name(),
                    logged.detail()
                ));
            }
        }
        if logged.kind != predicted.kind {
            return Err(format!("event {number} is a {}", logged.kind.name()));
        }
    }
    if logged.len() == predicted.len() {
        Ok(logged.len())
    } else {
        Err(format!(
            "{} events, the log has {}",
            predicted.len(),
            logged.len()
        ))
    }
}

fn pcrs(boot: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(boot.join("pcrs.json")).unwrap()).unwrap()
}

fn parsed(log: &[u8]) -> EventLog<'_> {
    EventLog::parse(log).unwrap()
}

fn variables_before(boot: &Path) -> PlatformState {
    let packed = fs::read(boot.join("firmware/vars-before.fd.zst")).unwrap();
    let mut image = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(packed.as_slice())
        .unwrap()
        .read_to_end(&mut image)
        .unwrap();
    PlatformState::from_variable_store(&image).unwrap()
}

/// All boots, sorted by name.
fn boots() -> Vec<PathBuf> {
    let folder = std::env::var_os("TEC_PCR_FIXTURES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/qemu"),
        PathBuf::from,
    );
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("skipped: there are no fixtures in {}", folder.display());
        return Vec::new();
    };
    let mut boots: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    boots.retain(|path| path.join("pcrs.json").is_file());
    boots.sort();
    boots
}
