//! Words that systemd measures once the kernel runs: phases of the boot, and separators.
//!
//! They follow the boot chain in its registers, and no image states them: whether an initramfs measures them
//! depends on its version of systemd, and how many there are on how far the boot has come.
//!
//! Source: "TPM2 PCR Measurements Made by systemd" and systemd-pcrphase.service(8) of systemd 252 to 262. The
//! digest of a word is SHA-256 of its characters.

use crate::digest::Sha256Digest;
use crate::evidence::{LogEvidence, LoggedEvent, VerifiedEvidence};
use crate::pcr::{PcrIndex, PcrValues};

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
/// What follows it in PCR 9, from systemd 259 on: after it, no `NvPCR` can be trusted.
const NV_SEPARATOR: &str = "nvpcr-separator";
/// Beginning of what is measured before that for each `NvPCR`: then name, index and state differ by machine.
const NV_INIT: &str = "nvpcr-init:";
/// Maximum number of these events; systemd 262 has four.
const MAX_NV_INITS: usize = 16;
/// Maximum number of bytes of their texts; real ones have 110.
const MAX_TEXT: usize = 256;
/// The last phase of a start.
const READY: &str = "ready";
/// All words.
const WORDS: [&str; 6] = [INITRAMFS, "leave-initrd", "sysinit", READY, SEPARATOR, NV_SEPARATOR];
/// What is measured into PCR 15, which no image states: the beginnings of the texts.
const IDENTITY: [&str; 2] = ["machine-id:", "file-system:"];
/// As before; the digest is a key of the volume over the text, which is therefore only claimed.
const VOLUME_KEY: &str = "cryptsetup:";
/// The registers that get the separator (systemd-pcrosseparator.service).
const SEPARATED: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14];
/// Type of an event that is in no log of the firmware.
pub const SYSTEMD: &str = "systemd";

/// The value of a register after these events.
pub(super) fn fold(start: Sha256Digest, events: &[&LoggedEvent]) -> Sha256Digest {
    events.iter().fold(start, |value, event| value.extended(&event.digest))
}

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
        LoggedEvent::new(number, pcr, Sha256Digest::of(word), SYSTEMD, Some((*word).to_owned()))
    };
    (first..).zip(words).map(event).collect()
}

/// Adds to the log of the firmware the `records` of systemd's own log that lead to quoted values, in their order.
/// That is needed where texts differ by machine: in PCR 9, and in PCR 15, which is only shown.
///
/// # Security
/// Anyone who has the system can write that log. A record counts only in its place (after what the firmware
/// measured), as part of the events that fold to the quoted value, and if its digest is that of its text; a volume
/// key's alone is not.
pub fn add_systemd(log: &mut LogEvidence, quoted: &PcrValues, records: &[LoggedEvent]) {
    let LogEvidence::Parsed { events, replayed, .. } = log else {
        return;
    };
    for pcr in [PcrIndex::BOOT_FILES, PcrIndex::CLUSTER] {
        if replayed.contains(pcr) {
            continue;
        }
        let logged: Vec<_> = events.iter().filter(|event| event.pcr == pcr).collect();
        let before = fold(Sha256Digest::ZERO, &logged);
        let Some(records) = leading(pcr, before, quoted.value(pcr), records) else {
            continue;
        };
        let next = events.iter().map(|event| event.number).max().unwrap_or(0).saturating_add(1);
        events.extend((next..).zip(records).map(|(number, record)| {
            let text = word(record).or(record.detail.as_deref());
            LoggedEvent::new(number, pcr, record.digest, SYSTEMD, text.map(str::to_owned))
        }));
        *replayed = replayed.with(pcr);
    }
}

/// The first records of a register, if they lead from the value `before` to `quoted` and may all stand there.
fn leading<'r>(
    pcr: PcrIndex,
    before: Sha256Digest,
    quoted: &Sha256Digest,
    records: &'r [LoggedEvent],
) -> Option<Vec<&'r LoggedEvent>> {
    // `NvPCRs` are set up before the system is ready.
    let is_late = |record: &&LoggedEvent| {
        pcr == PcrIndex::BOOT_FILES && record.digest == Sha256Digest::of(READY)
    };
    let mut value = before;
    let mut leading = Vec::new();
    for record in records.iter().take_while(|record| !is_late(record)) {
        if record.pcr == pcr && value != *quoted {
            value = value.extended(&record.digest);
            leading.push(record);
        }
    }
    let is_identity = |record: &&LoggedEvent| {
        let is_claimed = record.detail.as_deref().is_some_and(|text| text.starts_with(VOLUME_KEY));
        is_claimed
            || word(record).is_some_and(|text| IDENTITY.iter().any(|id| text.starts_with(id)))
    };
    let may_stand = if pcr == PcrIndex::CLUSTER {
        leading.iter().all(is_identity)
    } else {
        trailing(pcr, &leading) == leading.len()
    };
    (value == *quoted && may_stand).then_some(leading)
}

/// The text that the digest of an event proves.
fn word(event: &LoggedEvent) -> Option<&str> {
    let is_proven = |text: &&str| Sha256Digest::of(text) == event.digest;
    event.detail.as_deref().into_iter().chain(WORDS).find(is_proven)
}

/// The words among events, each once, for people. Of a text, its beginning.
pub(crate) fn said(events: &[LoggedEvent]) -> String {
    let mut words: Vec<&str> = Vec::new();
    for text in events.iter().filter(|e| e.kind == SYSTEMD).filter_map(|e| e.detail.as_deref()) {
        let word = text.split(':').next().unwrap_or_default();
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

/// How many of the last events of a register are words that may stand there.
pub(crate) fn trailing(pcr: PcrIndex, events: &[&LoggedEvent]) -> usize {
    let last = events.iter().rev().take(MAX_NV_INITS + 2);
    let mut words: Vec<_> = last.map_while(|event| word(event)).collect();
    words.reverse();
    let mut rest = words.as_slice();
    while let [_, later @ ..] = rest {
        if is_ending(pcr, rest) {
            break;
        }
        rest = later;
    }
    rest.len()
}

/// Whether these texts may follow the boot chain in a register.
fn is_ending(pcr: PcrIndex, texts: &[&str]) -> bool {
    let is_init = |text: &&str| {
        let is_plain = text.len() <= MAX_TEXT && text.bytes().all(|byte| byte.is_ascii_graphic());
        text.starts_with(NV_INIT) && is_plain
    };
    match texts {
        [first, inits @ .., last] if pcr == PcrIndex::BOOT_FILES && *first == SEPARATOR => {
            inits.iter().all(is_init) && (*last == NV_SEPARATOR || is_init(last))
        }
        _ => endings(pcr).contains(&texts),
    }
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

    /// What evidence names after "initrd" in a register, if the log of systemd explains the quoted value.
    fn named(pcr: PcrIndex, records: &[(&str, &str)]) -> Option<Vec<String>> {
        let event = |text: &str, digest: Sha256Digest| {
            LoggedEvent::new(7, pcr, digest, "E", Some(text.into()))
        };
        let records: Vec<_> =
            records.iter().map(|(text, key)| event(text, Sha256Digest::of(key))).collect();
        let start = event("initrd", Sha256Digest::of("initrd"));
        let value = Sha256Digest::ZERO.extended(&start.digest);
        let quoted = records.iter().fold(value, |value, record| value.extended(&record.digest));
        let quoted = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]).with(pcr, quoted);
        let mut log =
            LogEvidence::Parsed { events: vec![start], replayed: PcrSet::default(), cut: None };
        add_systemd(&mut log, &quoted, &records);
        let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), quoted);
        evidence.log = log;
        let logged = evidence.logged(pcr)?;
        let numbers: Vec<_> = logged.iter().map(|event| event.number).collect();
        assert!(numbers.iter().copied().eq((7..).take(numbers.len())), "each has its own");
        Some(logged.iter().skip(1).filter_map(|event| event.detail.clone()).collect())
    }

    #[test]
    fn a_record_is_named_by_what_its_digest_proves() {
        let init = "nvpcr-init:a:0x1:00";
        let files = |records: &[(&str, &str)]| named(PcrIndex::BOOT_FILES, records);
        let both = Some(vec![SEPARATOR.to_owned(), init.to_owned()]);
        assert_eq!(files(&[(SEPARATOR, SEPARATOR), (init, init)]), both);
        assert_eq!(files(&[("\u{1b}", SEPARATOR), (init, init)]), both);
        assert_eq!(files(&[(SEPARATOR, SEPARATOR), (init, "a file")]), None);
        assert_eq!(named(PcrIndex::BOOT_MANAGER, &[(SEPARATOR, SEPARATOR), (init, init)]), None);
    }

    /// It is shown, and stays as it is: no image states it, and whoever pins it has it pinned whole.
    #[test]
    fn the_identity_of_a_system_is_named_and_not_left_out() {
        let (id, root) = ("machine-id:01", "file-system:/:ext4:0:::");
        let key = ("cryptsetup:data:0", "by the key of the volume");
        let identity = |records: &[(&str, &str)]| named(PcrIndex::CLUSTER, records);
        assert_eq!(identity(&[(id, id), (root, root), key]).unwrap(), [id, root, key.0]);
        assert_eq!(identity(&[(id, "implant")]), None);
        assert_eq!(identity(&[(id, id), ("implant", "implant")]), None);
        let event = LoggedEvent::new(0, PcrIndex::CLUSTER, Sha256Digest::of(id), SYSTEMD, None);
        assert_eq!(trailing(PcrIndex::CLUSTER, &[&event]), 0);
        assert_eq!(said(&[LoggedEvent { detail: Some(id.to_owned()), ..event }]), "machine-id");
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
