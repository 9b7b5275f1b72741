//! Event logs.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::compute::Guid;
use tec_tpm::event_log::{Bank, EventKind, EventLogBuilder};

use super::{Random, bytes};

/// Banks of a log, as in today's firmware.
const BANKS: [Bank; 3] = [Bank::Sha1, Bank::Sha256, Bank::Sha384];
/// Size of an event with three digests, without its data: register, type, number of digests and size of 4
/// bytes each, and digests of 20, 32 and 48 bytes, each after an algorithm of 2 bytes (PC Client Platform
/// Firmware Profile 1.06, 10.2.2).
const EVENT: usize = 4 * 4 + 20 + 32 + 48 + 3 * 2;
/// Size of the list of revoked digests on an up-to-date machine.
const DBX: usize = 20 << 10;
/// Registers that the boot is measured into.
const REGISTERS: [u8; 10] = [0, 1, 2, 4, 5, 7, 8, 9, 11, 14];

/// The log of a boot with three banks: variables, separators and programs as firmware logs them, then
/// commands until the log has about `size` bytes. From some 40 KiB on, it contains all of these.
pub fn event_log(seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut log = EventLogBuilder::with_banks(&BANKS);
    let mut length = 100;
    log.startup_locality(3);
    for (name, data) in [("SecureBoot", 1), ("PK", 900), ("KEK", 1600), ("db", 3200), ("dbx", DBX)]
    {
        let event = EVENT + 32 + 2 * name.len() + data;
        if length + event > size {
            continue;
        }
        length += event;
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        let vendor = *Guid::SECURITY_DATABASE.as_bytes();
        let data = bytes(seed, data);
        log.variable(PcrIndex::SECURE_BOOT, kind, vendor, name, &data);
    }
    for path in ["\\EFI\\BOOT\\BOOTX64.EFI", "\\EFI\\BOOT\\grubx64.efi"] {
        length += EVENT + 40 + 2 * path.len();
        log.image(Sha256Digest::of(path), path);
    }
    while length < size {
        let register = REGISTERS.get(random.below(REGISTERS.len()));
        let Some(register) = register.and_then(|number| PcrIndex::new(*number).ok()) else {
            continue;
        };
        let text = format!("command {:>width$}", random.next(), width = random.below(60));
        length += EVENT + text.len();
        log.measure(register, EventKind::IPL, text.as_bytes());
    }
    log.build()
}

#[cfg(test)]
mod tests {
    use tec_tpm::event_log::EventLog;

    use super::*;

    #[test]
    fn logs_of_any_size_are_read_and_replayed_in_all_banks() {
        for size in [1 << 10, 8 << 10, 64 << 10, 1 << 20] {
            let log = event_log(3, size);
            assert!(log.len().abs_diff(size) < 300, "{} of {size}", log.len());
            let parsed = EventLog::parse(&log).unwrap();
            for bank in BANKS {
                parsed.replay(bank).unwrap();
            }
            assert_eq!(parsed.startup_locality(), 3);
            assert_eq!(log, event_log(3, size));
        }
    }
}
