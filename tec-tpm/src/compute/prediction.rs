//! What a prediction says about each register.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs};
use tec_core::pcr::{PcrIndex, PcrSet};

use super::hash::{BankDigests, Banks};
use super::measurement::{Component, Measurement};
use super::unpredictable::Unpredictable;
use crate::event_log::{Event, VerifiedLog};

/// What a boot measures, in order, and which registers cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    pub(super) measurements: Vec<Measurement>,
    unpredictable: BTreeMap<PcrIndex, Unpredictable>,
    recorded: PcrSet,
    banks: Banks,
}

/// What is known about one register.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Register<'p> {
    /// The predicted values in all computed banks.
    Predicted(BankDigests),
    /// Its value in an earlier boot of the machine, in the SHA-256 bank. Nothing guarantees that
    /// the next boot produces the same value.
    Recorded(BankDigests),
    /// The value does not follow from the image and the machine.
    Unpredictable(&'p Unpredictable),
}

impl Prediction {
    pub(super) fn new(
        measurements: Vec<Measurement>,
        unpredictable: BTreeMap<PcrIndex, Unpredictable>,
        banks: Banks,
    ) -> Self {
        Self { measurements, unpredictable, recorded: PcrSet::default(), banks }
    }

    /// All measurements in the order of the boot; those of unpredictable registers are incomplete.
    pub fn measurements(&self) -> &[Measurement] {
        &self.measurements
    }

    /// The measurements of one register, in order.
    pub fn of_register(&self, pcr: PcrIndex) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |m| m.pcr == pcr)
    }

    /// What is known about one register.
    pub fn register(&self, pcr: PcrIndex) -> Register<'_> {
        if let Some(reason) = self.unpredictable.get(&pcr) {
            return Register::Unpredictable(reason);
        }
        let value =
            self.of_register(pcr).fold(BankDigests::zero(self.banks), |value, measurement| {
                value.extended(&measurement.digests)
            });
        if self.recorded.contains(pcr) {
            Register::Recorded(value)
        } else {
            Register::Predicted(value)
        }
    }

    /// The registers whose values are predicted; recorded ones are not.
    pub fn predicted(&self) -> PcrSet {
        let known = |pcr: &PcrIndex| self.is_known(*pcr) && !self.recorded.contains(*pcr);
        PcrIndex::all().filter(known).collect()
    }

    /// The registers whose values were taken from a log.
    pub fn recorded(&self) -> PcrSet {
        self.recorded
    }

    /// The registers that cannot be predicted, each with the reason.
    pub fn unpredictable(&self) -> impl Iterator<Item = (PcrIndex, &Unpredictable)> {
        self.unpredictable.iter().map(|(pcr, reason)| (*pcr, reason))
    }

    /// Takes registers that the firmware extends (0 to 3, 5 and 6) from the log of an earlier boot
    /// of the machine, in the SHA-256 bank, which is the one that was verified. They become
    /// [`Register::Recorded`], and each of their events says so by its ID, such as `Pcr0Recorded`.
    ///
    /// Only registers that are not predicted are taken. PCR 0 stays unpredictable if the TPM was
    /// started at a locality other than 0, as its value then does not start at zero.
    pub fn with_recorded(mut self, log: &VerifiedLog<'_>, registers: PcrSet) -> Self {
        for pcr in registers.iter() {
            let is_firmware = self.unpredictable.get(&pcr) == Some(&Unpredictable::Firmware);
            let at_zero = u8::from(pcr) != 0 || log.startup_locality() == 0;
            if !is_firmware || !at_zero || !log.registers().contains(pcr) {
                continue;
            }
            self.unpredictable.remove(&pcr);
            self.recorded = self.recorded.with(pcr);
            let events = log.events().filter(|event| event.extends() == Some(pcr));
            let taken = events.filter_map(|event| recorded(pcr, event));
            self.measurements.extend(taken);
        }
        self
    }

    /// The SHA-256 values of the known registers that something is measured into: the predicted
    /// ones, and the recorded ones that were taken on request. This includes a register that [has
    /// to stay empty](Self::has_to_stay_empty).
    pub fn expected(&self) -> ExpectedPcrs {
        let known = self.measurements.iter();
        let measured = Measurement::fold(known.filter(|m| self.is_known(m.pcr)).cloned());
        let empty = PcrIndex::all().filter(|pcr| self.has_to_stay_empty(*pcr));
        let empty = empty.map(|pcr| ExpectedPcr::from_events(pcr, []));
        let mut expected = ExpectedPcrs::new(measured.pcrs.into_iter().chain(empty).collect());
        expected.root_hash = self.has_root_hash();
        expected
    }

    /// Whether an empty register is meaningful: PCR 12 of a unified kernel image, into which
    /// systemd-stub measures what comes from outside the image, such as a command line.
    pub fn has_to_stay_empty(&self, pcr: PcrIndex) -> bool {
        let is_measured = |register| self.measurements.iter().any(|m| u8::from(m.pcr) == register);
        let is_parameters = u8::from(pcr) == PARAMETERS;
        is_parameters && self.is_known(pcr) && is_measured(SECTIONS) && !is_measured(PARAMETERS)
    }

    /// Whether the measured command line names the hash of the root or of `/usr` (systemd,
    /// systemd-veritysetup-generator(8)); `None` if none is predicted. Without it, whoever can write to the disk can
    /// replace programs of the root file system, unless that is encrypted.
    pub fn has_root_hash(&self) -> Option<bool> {
        let is_hash = |word: &str| {
            let hash = word.strip_prefix("roothash=").or_else(|| word.strip_prefix("usrhash="));
            hash.is_some_and(|hash| hash.len() >= HASH)
        };
        let lines = self.command_lines();
        let found: Vec<_> = lines.map(|line| line.split_whitespace().any(is_hash)).collect();
        (!found.is_empty()).then(|| found.into_iter().all(|found| found))
    }

    /// The words of the measured command line with which the system that boots, or its initramfs, gives a shell
    /// or starts another program than its own (kernel-command-line(7), dracut.cmdline(7)), once each.
    pub fn shell_words(&self) -> Vec<String> {
        let is_shell = |word: &&str| {
            SHELL_WORDS.contains(word)
                || SHELL_OPTIONS.iter().any(|name| {
                    word.strip_prefix(name).is_some_and(|v| v.is_empty() || v.starts_with('='))
                })
        };
        let words = self.command_lines().flat_map(str::split_whitespace).filter(is_shell);
        words.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn command_lines(&self) -> impl Iterator<Item = &str> {
        let is_line = |one: &&Measurement| {
            matches!(one.component, Component::Pcr8KernelCmdline | Component::Pcr9LoadOptions)
        };
        self.measurements.iter().filter(is_line).filter_map(|one| one.subject.as_deref())
    }

    fn is_known(&self, pcr: PcrIndex) -> bool {
        !self.unpredictable.contains_key(&pcr)
    }
}

/// PCR of the sections of a unified kernel image, and of what it is given from outside (UAPI group,
/// "Linux TPM PCR Registry").
const SECTIONS: u8 = 11;
/// Digits of the shortest hash that counts, SHA-256.
const HASH: usize = 64;
const PARAMETERS: u8 = 12;
/// See [`Prediction::shell_words`].
const SHELL_WORDS: [&str; 6] = [
    "emergency",
    "recovery",
    "rescue",
    "single",
    "systemd.unit=emergency.target",
    "systemd.unit=rescue.target",
];
/// The same, with or without a value.
const SHELL_OPTIONS: [&str; 6] =
    ["break", "init", "rd.break", "rdinit", "systemd.debug-shell", "systemd.debug_shell"];

fn recorder(pcr: PcrIndex) -> Option<Component> {
    Some(match u8::from(pcr) {
        0 => Component::Pcr0Recorded,
        1 => Component::Pcr1Recorded,
        2 => Component::Pcr2Recorded,
        3 => Component::Pcr3Recorded,
        4 => Component::Pcr4Recorded,
        5 => Component::Pcr5Recorded,
        6 => Component::Pcr6Recorded,
        7 => Component::Pcr7Recorded,
        _ => return None,
    })
}

/// The event of a firmware's own register, or of its own part of one, as it was logged.
pub(super) fn recorded(pcr: PcrIndex, event: &Event<'_>) -> Option<Measurement> {
    let component = recorder(pcr)?;
    let digest = Sha256Digest::new(*event.digests.sha256?);
    let digests = BankDigests::from_sha256(digest);
    let recorded = Measurement::new(component, pcr, event.kind, digests);
    Some(match event.detail() {
        Some(detail) => recorded.about(detail),
        None => recorded,
    })
}

impl fmt::Display for Register<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Predicted(value) => value.sha256().fmt(f),
            Self::Recorded(value) => write!(f, "{} (recorded)", value.sha256()),
            Self::Unpredictable(reason) => reason.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::EventKind;

    fn with_lines(lines: &[&str]) -> Prediction {
        let line = |line: &&str| {
            let digests = BankDigests::of(Banks::SHA256, line.as_bytes());
            let (component, pcr) = (Component::Pcr8KernelCmdline, PcrIndex::BOOT_COMMANDS);
            Measurement::new(component, pcr, EventKind::IPL, digests).about(*line)
        };
        Prediction::new(lines.iter().map(line).collect(), BTreeMap::new(), Banks::SHA256)
    }

    #[test]
    fn a_root_hash_counts_on_every_command_line() {
        let hash = "ab".repeat(32);
        let [root, usr] = ["roothash=", "usrhash="].map(|name| format!("quiet {name}{hash} ro"));
        let short = "root=/dev/sda2 roothash= xroothash=ab";
        assert_eq!(with_lines(&[]).has_root_hash(), None);
        assert_eq!(with_lines(&[&root, &usr]).has_root_hash(), Some(true));
        assert_eq!(with_lines(&[short]).has_root_hash(), Some(false));
        assert_eq!(with_lines(&[&root, short]).has_root_hash(), Some(false));
        assert_eq!(with_lines(&[&root]).expected().root_hash, Some(true));
    }

    #[test]
    fn words_that_give_a_shell_are_found_on_every_command_line() {
        let words = |lines: &[&str]| with_lines(lines).shell_words();
        let plain =
            "root=/dev/x ro quiet recovery_key=x initrd=single rd.breakx systemd.unit=a.target";
        assert!(words(&[plain]).is_empty());
        let second = "single init=/bin/sh rd.break=pre-mount";
        assert_eq!(words(&[plain, second]), ["init=/bin/sh", "rd.break=pre-mount", "single"]);
        for word in ["recovery", "emergency", "rescue", "rd.break", "systemd.debug-shell"] {
            assert_eq!(words(&[&format!("ro {word} quiet")]), [word]);
        }
    }
}
