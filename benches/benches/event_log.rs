//! Parsing and replaying an event log against hashing the same bytes once.

use std::fs;
use std::path::Path;

use sha2::Digest as _;
use sha2::Sha256;
use tec_benches::Suite;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrValues;
use tec_tpm::event_log::EventKind;
use tec_tpm::event_log::EventLog;
use tec_tpm::event_log::EventLogBuilder;
use tec_tpm::event_log::EventLogError;

/// Logs of real boots lie beside the repository, where they are available.
const FIXTURES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../shared/fixtures/qemu/trixie-sb-on/eventlog.bin"
);
/// GUID of db and dbx, `d719b2cb-3d3a-4596-a3bc-dad00e67656f` (UEFI 2.10, 32.6.1), as it lies in
/// memory.
const SECURITY_DATABASE: [u8; 16] = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];
/// Size of the list of revoked digests on a machine that is up to date.
const DBX: usize = 20 << 10;
/// Commands that GRUB measures, one event each.
const GRUB_COMMANDS: usize = 70;

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    let made = log()?;
    compare(&mut suite, "event_log", "a made log", &made)?;
    if Path::new(FIXTURES).exists() {
        let real = fs::read(FIXTURES)?;
        compare(
            &mut suite,
            "event_log_real",
            "the log of a real boot",
            &real,
        )?;
    }
    suite.finish();
    Ok(())
}

fn compare(suite: &mut Suite, name: &str, what: &str, log: &[u8]) -> anyhow::Result<()> {
    let events = check(log)?;
    let note = format!(
        "parse and replay {what}, {events} events in {} bytes / SHA-256 of the bytes",
        log.len()
    );
    suite.compare(name, &note, || replay(log), || Sha256::digest(log))
}

fn replay(log: &[u8]) -> Result<PcrValues, EventLogError> {
    EventLog::parse(log)?.replay_sha256()
}

/// Folds the events once more, in the plainest way. Returns their number.
fn check(log: &[u8]) -> anyhow::Result<usize> {
    let parsed = EventLog::parse(log)?;
    let replayed = parsed.replay_sha256()?;
    for pcr in PcrIndex::all().filter(|pcr| !(17..=22).contains(&u8::from(*pcr))) {
        let mut start = [0; 32];
        if let (0, Some(last)) = (u8::from(pcr), start.last_mut()) {
            *last = parsed.startup_locality();
        }
        let digests = parsed
            .events()
            .iter()
            .filter(|event| event.extends() == Some(pcr))
            .filter_map(|event| event.digests.sha256);
        let folded = digests.fold(Sha256Digest::new(start), |value, digest| {
            value.extended(&Sha256Digest::new(*digest))
        });
        anyhow::ensure!(folded == *replayed.value(pcr), "PCR {pcr} is replayed");
    }
    Ok(parsed.events().len())
}

/// Shaped as the log of a PC with Secure Boot, shim and GRUB.
fn log() -> anyhow::Result<Vec<u8>> {
    let pcr = PcrIndex::new;
    let dbx: Vec<u8> = (0..DBX).map(|i| (i % 253).to_le_bytes()[0]).collect();
    let mut log = EventLogBuilder::new();
    log.startup_locality(3);
    log.measure(pcr(0)?, EventKind::S_CRTM_VERSION, b"1\0.\09\0\0\0");
    for volume in 0..4_u8 {
        log.measure(
            pcr(0)?,
            EventKind::EFI_PLATFORM_FIRMWARE_BLOB2,
            &[volume; 48],
        );
    }
    for (name, data) in [
        ("SecureBoot", &[1_u8][..]),
        ("PK", &[0x50; 900][..]),
        ("KEK", &[0x4b; 1600][..]),
        ("db", &[0xdb; 3200][..]),
        ("dbx", &dbx),
    ] {
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        log.variable(PcrIndex::SECURE_BOOT, kind, SECURITY_DATABASE, name, data);
    }
    for boot in 0..6 {
        let (kind, name) = (EventKind::EFI_VARIABLE_BOOT, format!("Boot{boot:04}"));
        log.variable(pcr(1)?, kind, [0x61; 16], &name, &[0xb0; 120]);
    }
    for register in 0..8 {
        log.separator(pcr(register)?);
    }
    for path in ["\\EFI\\debian\\shimx64.efi", "\\EFI\\debian\\grubx64.efi"] {
        log.image(Sha256Digest::of(path), path);
    }
    for line in 0..GRUB_COMMANDS {
        let command = format!("grub_cmd: [ line {line} = of the configuration ]");
        log.measure(pcr(8)?, EventKind::IPL, command.as_bytes());
    }
    log.image(Sha256Digest::of("kernel"), "\\vmlinuz");
    Ok(log.build())
}
