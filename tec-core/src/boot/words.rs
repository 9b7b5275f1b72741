//! Words that systemd measures once the kernel runs: phases of the boot, and separators.
//!
//! They follow the boot chain in its registers, and no image states them: whether an initramfs measures them
//! depends on its version of systemd, and how many there are on how far the boot has come.
//!
//! Source: "TPM2 PCR Measurements Made by systemd" and systemd-pcrphase.service(8) of systemd 252 to 262. The
//! digest of a word is SHA-256 of its characters.

use crate::digest::Sha256Digest;
use crate::evidence::LoggedEvent;
use crate::pcr::PcrIndex;

/// Phases in PCR 11, from systemd 252 on. An initramfs without systemd measures no phase of its own.
const PHASES: [&[&str]; 6] = [
    &["enter-initrd"],
    &["enter-initrd", "leave-initrd"],
    &["enter-initrd", "leave-initrd", "sysinit"],
    &["enter-initrd", "leave-initrd", "sysinit", "ready"],
    &["sysinit"],
    &["sysinit", "ready"],
];
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

/// Whether this is the separator between the boot chain and the operating system.
pub(crate) fn is_separator(digest: &Sha256Digest) -> bool {
    *digest == Sha256Digest::of(SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pcr: PcrIndex, words: &[&str]) -> Vec<String> {
        let before = Sha256Digest::of("the boot chain");
        let quoted =
            words.iter().fold(before, |value, word| value.extended(&Sha256Digest::of(word)));
        let events = words_after(pcr, &before, &quoted, 7);
        let words: Vec<_> = events.iter().filter_map(|event| event.detail.clone()).collect();
        assert_eq!(super::said(&events), words.join(", "));
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
        for wrong in [&["leave-initrd"][..], &["ready"], &["enter-initrd", "ready"], &["x"]] {
            assert!(found(phases, wrong).is_empty(), "{wrong:?}");
        }
        assert!(found(phases, &["os-separator"]).is_empty(), "PCR 11 has none");
        assert!(found(PcrIndex::BOOT_COMMANDS, &["os-separator"]).is_empty());
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
        assert_eq!(count(&["a", "leave-initrd"]), 0);
        assert_eq!(count(&[]), 0);
    }
}
