//! Real boots: every event log replays to the registers of its TPM, and every shim → GRUB → kernel
//! chain is predicted, event by event.
//!
//! The fixtures lie beside the repository; where they are absent, the tests say so and pass.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this file is test code, its helper functions too"
)]

use std::fs;
use std::path::PathBuf;

use tec_core::attest::LogEvidence;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;
use tec_core::pcr::PcrValues;
use tec_core::reference::PcrComputer;
use tec_tpm::compute::ChainComputer;
use tec_tpm::compute::ChainError;
use tec_tpm::compute::DirectoryImage;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::SecureBoot;
use tec_tpm::compute::SignatureError;
use tec_tpm::event_log::Bank;
use tec_tpm::event_log::EventLog;
use tec_tpm::event_log::evidence;

#[test]
fn every_chain_is_predicted_as_it_was_measured() {
    println!("{:<34} {:<4} {:<6} PCR 4", "boot", "SB", "events");
    for folder in boots() {
        let Some(secure_boot) = folder.secure_boot() else {
            continue;
        };
        let image = DirectoryImage::open(folder.path("esp")).unwrap();
        let computer = ChainComputer::new(secure_boot);
        if !folder.path("esp/vmlinuz").exists() {
            // Unified kernel images: refused, not guessed.
            let error = computer.measure(&image).unwrap_err();
            println!("{:<34} {error}", folder.name);
            assert!(matches!(
                error,
                ChainError::Find(_) | ChainError::Grub { .. }
            ));
            continue;
        }
        let computed = computer.compute(&image).unwrap();
        let pcr4 = computed.pcr(PcrIndex::BOOT_MANAGER).unwrap();
        let count = pcr4.events.len();
        println!(
            "{:<34} {secure_boot:?} {count:>6} {}",
            folder.name, pcr4.value
        );
        let quoted = folder.pcrs();
        assert_eq!(
            pcr4.value,
            *quoted.value(PcrIndex::BOOT_MANAGER),
            "{}",
            folder.name
        );
        if let Some(bytes) = folder.event_log() {
            let chosen = PcrSet::default().with(PcrIndex::BOOT_MANAGER);
            let log = EventLog::parse(&bytes).unwrap();
            let log = log.verify(&quoted, chosen).unwrap();
            let logged: Vec<_> = log.events().filter_map(|e| e.digests.sha256).collect();
            let predicted: Vec<_> = pcr4.events.iter().map(|e| e.hash.as_bytes()).collect();
            assert_eq!(logged, predicted, "{}", folder.name);
        }
    }
}

#[test]
fn one_changed_byte_in_a_real_kernel_is_noticed() {
    for folder in boots() {
        let Ok(mut kernel) = fs::read(folder.path("esp/vmlinuz")) else {
            continue;
        };
        let shim = fs::read(folder.path("esp/EFI/BOOT/BOOTX64.EFI"));
        let grub = fs::read(folder.path("esp/EFI/BOOT/grubx64.efi"));
        let (Ok(shim), Ok(grub)) = (shim, grub) else {
            continue;
        };
        let middle = kernel.len() / 2;
        kernel[middle] ^= 1;
        let image = MemoryImage::new()
            .with("EFI/BOOT/BOOTX64.EFI", shim)
            .with("EFI/BOOT/grubx64.efi", grub)
            .with("vmlinuz", kernel);
        let computer = ChainComputer::new(SecureBoot::On);
        assert!(matches!(
            computer.measure(&image),
            Err(ChainError::Signature {
                file,
                source: SignatureError::Mismatch { .. }
            }) if file == "vmlinuz"
        ));
        let ignoring = computer.dangerous_ignore_signatures();
        let computed = ignoring.compute(&image).unwrap();
        let pcr4 = computed.pcr(PcrIndex::BOOT_MANAGER).unwrap();
        assert_ne!(pcr4.value, *folder.pcrs().value(PcrIndex::BOOT_MANAGER));
        return; // one is enough: this reads and hashes tens of megabytes without optimization
    }
}

#[test]
fn secure_boot_the_other_way_round_is_another_value() {
    for folder in boots() {
        if !folder.path("esp/vmlinuz").exists() {
            continue;
        }
        let other = match folder.secure_boot() {
            Some(SecureBoot::On) => SecureBoot::Off,
            Some(SecureBoot::Off) => SecureBoot::On,
            None => continue,
        };
        let image = DirectoryImage::open(folder.path("esp")).unwrap();
        let computed = ChainComputer::new(other).compute(&image).unwrap();
        // GRUB 2.14 measures the same either way; the suites here with 2.06 and 2.12 do not.
        if folder.name.starts_with("bookworm") || folder.name.starts_with("trixie") {
            let pcr4 = computed.pcr(PcrIndex::BOOT_MANAGER).unwrap();
            assert_ne!(pcr4.value, *folder.pcrs().value(PcrIndex::BOOT_MANAGER));
        }
    }
}

#[test]
fn every_log_replays_to_the_registers_of_its_tpm_in_all_banks() {
    println!("{:<34} {:>6}  banks", "boot", "events");
    for folder in boots() {
        let Some(bytes) = folder.event_log() else {
            println!("{:<34} no log, as GRUB went past the EFI stub", folder.name);
            continue;
        };
        let log = EventLog::parse(&bytes).unwrap();
        let banks: Vec<Bank> = log.banks().collect();
        println!("{:<34} {:>6}  {banks:?}", folder.name, log.events().len());
        assert!(banks.contains(&Bank::Sha256));
        for bank in banks {
            let replayed = log.replay(bank).unwrap();
            for pcr in PcrIndex::all() {
                let Some(expected) = folder.pcr(bank.as_str(), pcr) else {
                    continue;
                };
                // PCR 10 is the kernel's own, measured with another log (IMA).
                if u8::from(pcr) != 10 {
                    assert_eq!(hex::encode(replayed.value(pcr)), expected, "{bank} {pcr}");
                }
            }
        }
        assert!(log.events().iter().all(|e| e.kind.known_name().is_some()));
        evidence_names_the_boot_files(&bytes, &folder);
        truncation_and_padding_are_handled(&bytes);
    }
}

fn evidence_names_the_boot_files(bytes: &[u8], folder: &Folder) {
    let LogEvidence::Parsed { events, replayed } = evidence(bytes, &folder.pcrs()) else {
        panic!("{} parses", folder.name);
    };
    for pcr in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15] {
        assert!(replayed.contains(PcrIndex::new(pcr).unwrap()), "PCR {pcr}");
    }
    let details: Vec<_> = events.iter().filter_map(|e| e.detail.as_deref()).collect();
    assert!(details.contains(&"SecureBoot"), "{details:?}");
    let started = events
        .iter()
        .filter(|e| e.kind == "EV_EFI_BOOT_SERVICES_APPLICATION")
        .filter_map(|e| e.detail.as_deref());
    let started: Vec<_> = started.collect();
    assert!(
        started
            .iter()
            .any(|path| path.to_ascii_lowercase().ends_with(".efi")),
        "{started:?}"
    );
}

fn truncation_and_padding_are_handled(bytes: &[u8]) {
    let events = EventLog::parse(bytes).unwrap().events().len();
    for end in (0..bytes.len()).step_by(7) {
        if let Ok(log) = EventLog::parse(&bytes[..end]) {
            assert!(log.events().len() < events);
        }
    }
    let mut padded = bytes.to_vec();
    padded.resize(64 << 10, 0);
    assert_eq!(EventLog::parse(&padded).unwrap().events().len(), events);
}

#[test]
fn logs_of_other_machines_parse_and_replay() {
    for path in logs() {
        let bytes = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let log = EventLog::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let banks: Vec<Bank> = log.banks().collect();
        println!(
            "{name:<50} {:>4} events {:?} {banks:?} locality {}",
            log.events().len(),
            log.format(),
            log.startup_locality()
        );
        for bank in &banks {
            log.replay(*bank).unwrap();
        }
        if banks.contains(&Bank::Sha256) {
            let quoted = log.replay_sha256().unwrap();
            assert!(log.verify(&quoted, PcrIndex::all().collect()).is_ok());
        } else {
            let nothing = PcrValues::new([Sha256Digest::ZERO; 24]);
            assert!(matches!(
                evidence(&bytes, &nothing),
                LogEvidence::Broken { .. }
            ));
        }
    }
}

/// The folder, whether it is there or not.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures")
}

/// One boot.
#[derive(Debug)]
struct Folder {
    name: String,
    path: PathBuf,
    pcrs: serde_json::Value,
}

/// All boots, sorted by name.
fn boots() -> Vec<Folder> {
    let folders = entries("qemu").into_iter().filter_map(|path| {
        let pcrs = fs::read(path.join("pcrs.json")).ok()?;
        Some(Folder {
            name: path.file_name()?.to_str()?.to_owned(),
            pcrs: serde_json::from_slice(&pcrs).unwrap(),
            path,
        })
    });
    folders.collect()
}

/// Event logs of other machines.
fn logs() -> Vec<PathBuf> {
    let mut logs = entries("eventlogs");
    logs.retain(|path| path.extension().is_none());
    logs
}

fn entries(folder: &str) -> Vec<PathBuf> {
    let path = root().join(folder);
    let Ok(entries) = fs::read_dir(&path) else {
        println!("skipped: there are no fixtures in {}", path.display());
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

impl Folder {
    fn path(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    fn event_log(&self) -> Option<Vec<u8>> {
        fs::read(self.path("eventlog.bin")).ok()
    }

    /// Hexadecimal value of a register in one bank.
    fn pcr(&self, bank: &str, pcr: PcrIndex) -> Option<&str> {
        self.pcrs.get(bank)?.get(pcr.to_string())?.as_str()
    }

    /// The SHA-256 bank.
    fn pcrs(&self) -> PcrValues {
        let mut values = [Sha256Digest::ZERO; 24];
        for (slot, pcr) in values.iter_mut().zip(PcrIndex::all()) {
            *slot = self.pcr("sha256", pcr).unwrap().parse().unwrap();
        }
        PcrValues::new(values)
    }

    /// The firmware variable SecureBoot: 4 bytes of attributes, then 0 or 1.
    fn secure_boot(&self) -> Option<SecureBoot> {
        let file = "efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
        match fs::read(self.path(file)).ok()?.last()? {
            0 => Some(SecureBoot::Off),
            _ => Some(SecureBoot::On),
        }
    }
}
