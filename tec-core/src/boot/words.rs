//! Words that systemd measures once the kernel runs: phases of the boot, and separators.
//!
//! They follow the boot chain in its registers, and no image states them: whether an initramfs measures them
//! depends on its version of systemd, and how many there are on how far the boot has come.
//!
//! Source: "TPM2 PCR Measurements Made by systemd" and systemd-pcrphase.service(8) of systemd 252 to 262. The
//! digest of a word is SHA-256 of its characters.

use crate::digest::Sha256Digest;
use crate::evidence::{LoggedEvent, VerifiedEvidence};
use crate::pcr::PcrIndex;

/// Phases in PCR 11, from systemd 252 on. An initramfs without systemd measures no phase of its own, but our parts
/// of an initramfs measure the same words.
const PHASES: [&[&str]; 9] = [
    &["enter-initrd"],
    &["enter-initrd", "leave-initrd"],
    &["enter-initrd", "leave-initrd", "sysinit"],
    &["enter-initrd", "leave-initrd", "sysinit", "ready"],
    &["leave-initrd"],
    &["leave-initrd", "sysinit"],
    &["leave-initrd", "sysinit", "ready"],
    &["sysinit"],
    &["sysinit", "ready"],
];
/// The phase of an initramfs.
const INITRAMFS: &str = "enter-initrd";
/// The phases of the system after its initramfs.
const AFTER_INITRAMFS: [&str; 3] = ["leave-initrd", "sysinit", "ready"];
/// Neither a log nor an image explains the value of PCR 11.
pub(crate) const UNEXPLAINED: &str = "unexplained";
/// The end of what firmware and boot loader measured, from systemd 261 on.
const SEPARATOR: &str = "os-separator";
/// What follows it in PCR 9, from systemd 259 on, if no `NvPCR` was set up before.
const NV_SEPARATOR: &str = "nvpcr-separator";
/// The registers that get the separator (systemd-pcrosseparator.service).
const SEPARATED: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14];
/// Name of the type of an event that stands in no log of the firmware.
const KIND: &str = "systemd";

/// What may follow the boot chain in a register.
fn endings(pcr: PcrIndex) -> &'static [&'static [&'static str]] {
    if pcr == PcrIndex::KERNEL_BOOT {
        &PHASES
    } else if pcr == PcrIndex::BOOT_FILES {
        &[&[SEPARATOR], &[SEPARATOR, NV_SEPARATOR]]
    } else if SEPARATED.contains(&pcr.into()) {
        &[&[SEPARATOR]]
    } else {
        &[]
    }
}

/// The words that turn the value `before` of a register into `after`; `None` if there are none.
fn between(
    pcr: PcrIndex,
    before: &Sha256Digest,
    after: &Sha256Digest,
) -> Option<&'static [&'static str]> {
    let leads = |words: &&&[&str]| {
        let end = words.iter().fold(*before, |value, word| value.extended(&Sha256Digest::of(word)));
        end == *after
    };
    endings(pcr).iter().find(leads).copied()
}

/// Whether systemd's words turn the value `before` of a register into `after`.
pub(crate) fn follows(pcr: PcrIndex, before: &Sha256Digest, after: &Sha256Digest) -> bool {
    between(pcr, before, after).is_some()
}

/// The events that a log of the firmware lacks: the words that turn the value `before`, which the log replays
/// to, into the quoted one. Empty if words do not explain the difference.
pub fn words_after(
    pcr: PcrIndex,
    before: &Sha256Digest,
    quoted: &Sha256Digest,
    first: u32,
) -> Vec<LoggedEvent> {
    let words = between(pcr, before, quoted).unwrap_or_default();
    let event = |(number, word): (u32, &&str)| {
        LoggedEvent::new(number, pcr, Sha256Digest::of(word), KIND, Some((*word).to_owned()))
    };
    (first..).zip(words).map(event).collect()
}

/// The words among events, each once, for people.
pub(crate) fn said(events: &[LoggedEvent]) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in events.iter().filter(|e| e.kind == KIND).filter_map(|e| e.detail.as_deref()) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

/// How many of the last events of a register are words that may stand there.
pub(crate) fn trailing(pcr: PcrIndex, events: &[&LoggedEvent]) -> usize {
    let ends = |words: &&&[&str]| {
        let start = events.len().checked_sub(words.len());
        let last = start.and_then(|start| events.get(start..)).unwrap_or_default();
        let same = |(event, word): (&&LoggedEvent, &&str)| event.digest == Sha256Digest::of(word);
        !last.is_empty() && last.iter().zip(words.iter()).all(same)
    };
    endings(pcr).iter().filter(ends).map(|words| words.len()).max().unwrap_or(0)
}

/// What PCR 11 says about the phase of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: no phase was measured.
    Unmeasured,
    /// The initramfs runs.
    Initramfs,
    /// It has ended, as this word shows, or the value is [`UNEXPLAINED`].
    Later(&'static str),
}

/// The phase of a boot. `stated` are the values of PCR 11 that images state.
///
/// # Security
/// Whoever has the system can extend PCR 11 further, and choose or leave out the log. Only a value that is
/// explained without any of the later phases therefore counts: events that replay to a quoted value are the ones
/// that were measured, in their order.
pub(crate) fn phase(
    evidence: &VerifiedEvidence,
    stated: impl FnOnce() -> Vec<Sha256Digest>,
) -> Phase {
    let pcr = PcrIndex::KERNEL_BOOT;
    let quoted = evidence.pcrs.value(pcr);
    if let Some(logged) = evidence.logged(pcr) {
        let is_said = |word: &&str| {
            let digest = Sha256Digest::of(word);
            logged.iter().any(|event| event.digest == digest)
        };
        return match AFTER_INITRAMFS.into_iter().find(is_said) {
            Some(word) => Phase::Later(word),
            None if is_said(&INITRAMFS) => Phase::Initramfs,
            None => Phase::Unmeasured,
        };
    }
    // Most machines: nothing has to be computed of their images.
    if *quoted == Sha256Digest::ZERO {
        return Phase::Unmeasured;
    }
    let befores: Vec<_> = [Sha256Digest::ZERO].into_iter().chain(stated()).collect();
    if befores.contains(quoted) {
        return Phase::Unmeasured;
    }
    let Some(words) = befores.iter().find_map(|before| between(pcr, before, quoted)) else {
        return Phase::Later(UNEXPLAINED);
    };
    let later = words.iter().copied().find(|word| AFTER_INITRAMFS.contains(word));
    later.map_or(Phase::Initramfs, Phase::Later)
}

/// Whether this is a word that is measured after an initramfs only.
pub(super) fn is_after_initramfs(digest: &Sha256Digest) -> bool {
    AFTER_INITRAMFS.iter().any(|word| Sha256Digest::of(word) == *digest)
}

/// Whether this is the separator between the boot chain and the operating system.
pub(crate) fn is_separator(digest: &Sha256Digest) -> bool {
    *digest == Sha256Digest::of(SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::LogEvidence;
    use crate::pcr::{PCR_COUNT, PcrSet, PcrValues};
    use crate::tee::Tee;
    use crate::testing::sample;

    fn found(pcr: PcrIndex, words: &[&str]) -> Vec<String> {
        let before = Sha256Digest::of("the boot chain");
        let quoted =
            words.iter().fold(before, |value, word| value.extended(&Sha256Digest::of(word)));
        let events = words_after(pcr, &before, &quoted, 7);
        let words: Vec<_> = events.iter().filter_map(|event| event.detail.clone()).collect();
        let mut once = words.clone();
        once.dedup();
        assert_eq!(super::said(&events), once.join(", "));
        words
    }

    #[test]
    fn phases_are_found_in_their_order_and_nowhere_else() {
        let (phases, files) = (PcrIndex::KERNEL_BOOT, PcrIndex::BOOT_FILES);
        for words in PHASES {
            assert_eq!(found(phases, words), words);
            assert!(found(files, words).is_empty());
        }
        for words in [&["os-separator"][..], &["os-separator", "nvpcr-separator"]] {
            assert_eq!(found(files, words), words);
        }
        assert!(found(files, &["nvpcr-separator"]).is_empty());
        for wrong in [&["ready"][..], &["enter-initrd", "ready"], &["x"]] {
            assert!(found(phases, wrong).is_empty(), "{wrong:?}");
        }
        assert!(found(phases, &["os-separator"]).is_empty(), "PCR 11 has none");
        assert!(found(PcrIndex::BOOT_COMMANDS, &["os-separator"]).is_empty());
    }

    /// Evidence with these events in PCR 11, in its log or not.
    fn measured(events: &[&str], is_logged: bool) -> VerifiedEvidence {
        let pcr = PcrIndex::KERNEL_BOOT;
        let value = events.iter().fold(Sha256Digest::ZERO, |v, e| v.extended(&Sha256Digest::of(e)));
        let values = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]).with(pcr, value);
        let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values);
        if is_logged {
            let event = |text| LoggedEvent::new(0, pcr, Sha256Digest::of(text), "E", None);
            let events = events.iter().map(event).collect();
            evidence.log =
                LogEvidence::Parsed { events, replayed: PcrSet::from_iter([pcr]), cut: None };
        }
        evidence
    }

    #[test]
    fn the_end_of_an_initramfs_is_seen_with_a_log_and_without_and_nobody_can_hide_it() {
        let base = Sha256Digest::ZERO.extended(&Sha256Digest::of("linux"));
        let phase = |events: &[&str], is_logged| phase(&measured(events, is_logged), || vec![base]);
        for is_logged in [true, false] {
            for none in [&[][..], &["linux"]] {
                assert_eq!(phase(none, is_logged), Phase::Unmeasured, "{none:?}");
            }
            for early in [&["enter-initrd"][..], &["linux", "enter-initrd"]] {
                assert_eq!(phase(early, is_logged), Phase::Initramfs, "{early:?}");
            }
            for late in [
                &["leave-initrd"][..],
                &["linux", "leave-initrd"],
                &["linux", "enter-initrd", "leave-initrd", "sysinit"],
                &["linux", "sysinit", "ready"],
                &["leave-initrd", "linux", "enter-initrd"],
                &["linux", "leave-initrd", "enter-initrd"],
            ] {
                assert!(matches!(phase(late, is_logged), Phase::Later(_)), "{late:?}");
            }
        }
        assert_eq!(phase(&["other stub", "enter-initrd"], true), Phase::Initramfs);
        let unknown = phase(&["other stub", "enter-initrd"], false);
        assert_eq!(unknown, Phase::Later(UNEXPLAINED));
    }

    #[test]
    fn words_are_trailing_only_at_the_end() {
        let event = |text: &str| {
            LoggedEvent::new(0, PcrIndex::KERNEL_BOOT, Sha256Digest::of(text), "E", None)
        };
        let count = |texts: &[&str]| {
            let events: Vec<_> = texts.iter().map(|text| event(text)).collect();
            trailing(PcrIndex::KERNEL_BOOT, &events.iter().collect::<Vec<_>>())
        };
        assert_eq!(count(&["a", "enter-initrd"]), 1);
        assert_eq!(count(&["a", "enter-initrd", "leave-initrd"]), 2);
        assert_eq!(count(&["a", "enter-initrd", "b"]), 0);
        assert_eq!(count(&["a", "leave-initrd"]), 1);
        assert_eq!(count(&["a", "ready"]), 0);
        assert_eq!(count(&[]), 0);
    }
}
