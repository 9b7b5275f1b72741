//! Event logs, read and replayed.

use std::fs;
use std::path::Path;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{Bank, Event, EventKind, EventLog, EventLogBuilder};

use crate::{input, tool};

/// What `tpm2_eventlog` prints of a log.
#[derive(Debug, Default)]
struct Printed {
    events: Vec<PrintedEvent>,
    /// Bank, register, value in hexadecimal.
    values: Vec<(String, u8, String)>,
    /// Whether the end of the log was reached.
    whole: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct PrintedEvent {
    register: u32,
    kind: String,
    digests: Vec<(String, String)>,
    size: usize,
}

fn read(log: &Path) -> Printed {
    let output = tool::run("tpm2_eventlog", [log]);
    let text = String::from_utf8_lossy(&output.stdout);
    let mut printed = Printed { whole: output.status.success(), ..Printed::default() };
    let (mut algorithm, mut bank) = (String::new(), None);
    for line in text.lines() {
        // The members of an event begin with two spaces, or with two and a dash; what lies deeper
        // is event data, which may look like anything.
        let depth = line.len() - line.trim_start().len();
        let Some((name, value)) = line.trim_start_matches([' ', '-']).split_once(':') else {
            continue;
        };
        let value = value.trim().trim_matches('"');
        let event = printed.events.last_mut();
        match (depth, name.trim(), event) {
            (0, "pcrs", _) => bank = Some(String::new()),
            (2, name, _) if bank.is_some() => bank = Some(name.to_owned()),
            (4, name, _) if bank.is_some() => {
                let value = value.trim_start_matches("0x").to_owned();
                let bank = bank.clone().unwrap();
                printed.values.push((bank, name.parse().unwrap(), value));
            }
            (2, "PCRIndex", _) => printed
                .events
                .push(PrintedEvent { register: value.parse().unwrap(), ..PrintedEvent::default() }),
            (2, "EventType", Some(event)) => value.clone_into(&mut event.kind),
            (2, "AlgorithmId", _) => value.clone_into(&mut algorithm),
            // The header's digest comes without an algorithm.
            (2, "Digest", Some(event)) => event.digests.push(("sha1".into(), value.into())),
            (4, "Digest", Some(event)) => event.digests.push((algorithm.clone(), value.into())),
            (2, "EventSize", Some(event)) => event.size = value.parse().unwrap(),
            _ => {}
        }
    }
    printed
}

fn as_printed(event: &Event<'_>) -> PrintedEvent {
    let digest = |bank: Bank| Some((bank.to_string(), hex::encode(event.digests.get(bank)?)));
    PrintedEvent {
        register: event.pcr.map_or(u32::MAX, |pcr| u8::from(pcr).into()),
        kind: event.kind.name().into_owned(),
        digests: Bank::ALL.into_iter().filter_map(digest).collect(),
        size: event.data.len(),
    }
}

/// Compares events in order and the registers of all banks. Returns whether the tool read all.
fn compare(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap();
    let log = EventLog::parse(&bytes).unwrap();
    let mut printed = read(path);
    if printed.whole {
        let (theirs, ours) = (printed.events.len(), log.events().len());
        assert_eq!(theirs, ours, "{}", path.display());
        assert!(!printed.values.is_empty(), "{}", path.display());
    } else {
        // The last event may have been printed in part.
        printed.events.pop();
    }
    for (printed, event) in printed.events.iter().zip(log.events()) {
        assert_eq!(*printed, as_printed(event), "{} {}", path.display(), event.number);
    }
    for (bank, register, value) in &printed.values {
        let bank = Bank::ALL.into_iter().find(|known| known.as_str() == bank).unwrap();
        let replayed = log.replay(bank).unwrap();
        let ours = hex::encode(replayed.value(PcrIndex::new(*register).unwrap()));
        assert_eq!(ours, *value, "{} {bank} PCR {register}", path.display());
    }
    println!(
        "{:<90} {:>4} events, {:>3} values{}",
        path.display(),
        printed.events.len(),
        printed.values.len(),
        if printed.whole { "" } else { ", the tool did not read all" }
    );
    printed.whole
}

/// Recorded logs that the tool does not read to their end: one that has nothing but an event of a
/// start-up locality, one with an event of no register.
const NOT_READ: [&str; 2] = ["short_no_action_eventlog", "option_rom_eventlog"];

#[test]
fn recorded_logs_are_read_as_tpm2_eventlog_reads_them() {
    for log in input::logs() {
        let name = log.file_name().unwrap().to_str().unwrap();
        assert!(compare(&log) || NOT_READ.contains(&name), "{}", log.display());
    }
}

#[test]
fn logs_that_are_made_here_are_read_as_tpm2_eventlog_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let made = [
        ("one", EventLogBuilder::new()),
        ("three", EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256, Bank::Sha384])),
        ("all", EventLogBuilder::with_banks(&Bank::ALL)),
        ("older", EventLogBuilder::sha1_form()),
    ];
    // Without an event of a start-up locality, which some versions of the tool do not know.
    for (name, mut log) in made {
        let path = folder.path().join(name);
        fs::write(&path, write_boot(&mut log)).unwrap();
        assert!(compare(&path), "{name}");
    }
}

/// Events of most types, in all registers that firmware and loaders extend.
fn write_boot(log: &mut EventLogBuilder) -> Vec<u8> {
    let pcr = |index| PcrIndex::new(index).unwrap();
    let blob = [0x82_0000_u64, 0xe_0000].map(u64::to_le_bytes).concat();
    log.measure(pcr(0), EventKind::S_CRTM_VERSION, b"1\0.\x000\0\0\0");
    log.measure_other(pcr(0), EventKind::EFI_PLATFORM_FIRMWARE_BLOB, b"a volume", &blob);
    for (name, value) in [("SecureBoot", &b"\x01"[..]), ("PK", b""), ("KEK", b"")] {
        let guid = *tec_tpm::compute::Guid::GLOBAL.as_bytes();
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        log.variable(pcr(7), kind, guid, name, value);
    }
    log.measure(pcr(4), EventKind::EFI_ACTION, b"Calling EFI Application from Boot Option");
    for index in 0..8 {
        log.separator(pcr(index));
    }
    log.image(Sha256Digest::of("shim"), "\\EFI\\debian\\shimx64.efi");
    for name in [&b"MokList\0"[..], b"MokListX\0", b"MokListTrusted\0"] {
        log.measure_other(pcr(14), EventKind::IPL, b"a list", name);
    }
    for command in ["linux /vmlinuz root=/dev/vda2", "initrd /initrd.img", "boot"] {
        let data = format!("grub_cmd: {command}\0");
        log.measure_other(pcr(8), EventKind::IPL, command.as_bytes(), data.as_bytes());
    }
    log.measure_other(pcr(9), EventKind::IPL, b"a kernel", b"/vmlinuz\0");
    log.measure(pcr(5), EventKind::EFI_ACTION, b"Exit Boot Services Invocation");
    log.measure(pcr(5), EventKind::EFI_ACTION, b"Exit Boot Services Returned with Success");
    log.build()
}
