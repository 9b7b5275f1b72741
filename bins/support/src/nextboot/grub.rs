//! GRUB's names of the partitions that the running boot came from, as its event log has them.

use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::EventLog;

/// The partition that GRUB started from, and the other one that it read from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Devices {
    pub(super) own: Option<String>,
    pub(super) other: Option<String>,
}

impl Devices {
    /// Reads the paths of the files that GRUB measured, such as `(hd0,gpt2)/grub/grub.cfg`.
    pub(super) fn of(log: &[u8]) -> Self {
        let Ok(log) = EventLog::parse(log) else {
            return Self::default();
        };
        let files = log.events().iter().filter(|e| e.extends() == Some(PcrIndex::BOOT_FILES));
        let mut devices = files.filter_map(|event| device(event.data));
        let own = devices.next().map(str::to_owned);
        let other = devices.find(|other| own.as_deref() != Some(*other)).map(str::to_owned);
        Self { own, other }
    }
}

fn device(file: &[u8]) -> Option<&str> {
    let file = std::str::from_utf8(file).ok()?;
    Some(file.strip_prefix('(')?.split_once(")/")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tec-tpm/tests/boots");

    #[test]
    fn partitions_are_those_of_the_files_that_grub_read() {
        let of = |boot: &str| {
            Devices::of(&std::fs::read(format!("{BOOTS}/{boot}/eventlog.bin")).unwrap())
        };
        let named = |own: Option<&str>, other: Option<&str>| Devices {
            own: own.map(str::to_owned),
            other: other.map(str::to_owned),
        };
        let both = named(Some("hd0,gpt1"), Some("hd0,gpt2"));
        assert_eq!(of("bookworm-grub-it"), both);
        assert_eq!(of("trixie-grub-it"), both);
        assert_eq!(of("bookworm-sb-on"), named(Some("hd0,gpt1"), None));
        assert_eq!(of("trixie-uki"), named(None, None));
        assert_eq!(Devices::of(b"no log"), Devices::default());
    }
}
