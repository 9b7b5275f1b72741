//! Evidence in the form in which images state their registers.
//!
//! ```text
//! PCR 4, as logged    firmware program, Calling, separator, Returning, Calling, shim, GRUB, kernel
//! PCR 4, as stated                      Calling, separator,                     shim, GRUB, kernel
//! PCR 11, as quoted   sections, enter-initrd
//! PCR 11, as stated   sections
//! ```
//! What an image contributes to a register must be there whole and in its order. Around it there may be what
//! firmware and systemd measure: constants, which say nothing about what was started; words of systemd at the
//! end; and, before the first program of an image, programs of the firmware, for which the baseline of the
//! machine vouches.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::words::fold;
use super::{BootStates, LiveImages, Pins, words};
use crate::digest::Sha256Digest;
use crate::evidence::{LogEvidence, LoggedEvent, VerifiedEvidence};
use crate::image::{ApprovedImage, ImageEvent};
use crate::pcr::PcrIndex;

/// What the firmware measures into PCR 4 beside programs (PC Client Platform Firmware Profile 1.06, 10.4.4 for
/// the actions, 10.4.1 for separators, 3.3.4.5 for omitted events).
const CONSTANTS: [&[u8]; 5] = [
    b"Calling EFI Application from Boot Option",
    b"Returning from EFI Application from Boot Option",
    b"BOOT ATTEMPTS OMITTED",
    &[0; 4],
    &[0xff; 4],
];
/// How many of them are actions; the others are separators.
const ACTIONS: usize = 3;
/// Maximum number of programs that the firmware starts before the operating system; real ones start one or two.
const MAX_PROGRAMS: usize = 16;
/// An action with the number of a boot option: `Booting to Boot0001 Option`.
const BOOTING: (&str, &str) = ("Booting to Boot", " Option");

static CONSTANT_DIGESTS: LazyLock<[Sha256Digest; 5]> =
    LazyLock::new(|| CONSTANTS.map(Sha256Digest::of));

/// Evidence in this form, and what was left out that a baseline must vouch for.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) evidence: VerifiedEvidence,
    /// Programs that the firmware started before the first program of an image.
    pub(crate) programs: Vec<LoggedEvent>,
}

impl Settled {
    /// Evidence as it is.
    pub(crate) fn plain(evidence: VerifiedEvidence) -> Self {
        Self { evidence, programs: Vec::new() }
    }
}

/// The evidence in each form that images use, usually one.
///
/// # Security
/// Only digests that replay to a quoted value count, or values that differ from a stated one by words of systemd
/// alone. A program of an image whose approval ended is never one of the firmware.
pub(crate) fn settled(
    evidence: &VerifiedEvidence,
    images: &[ApprovedImage],
    live: &LiveImages<'_>,
    pins: Pins,
    states: &dyn BootStates,
) -> Vec<Settled> {
    let mut plain = evidence.clone();
    for pcr in pins.any(live).iter() {
        leave_out_words(&mut plain, pcr, || pins.values(states, live, pcr));
    }
    let forms = forms(images);
    let settled: Vec<_> = forms.iter().filter_map(|form| in_form(&plain, form, images)).collect();
    if settled.is_empty() {
        return vec![Settled::plain(plain)];
    }
    settled
}

/// Removes systemd's words from the end of a register. Without a log, they are recognized behind a `stated` value.
pub(crate) fn leave_out_words(
    evidence: &mut VerifiedEvidence,
    pcr: PcrIndex,
    stated: impl FnOnce() -> Vec<Sha256Digest>,
) {
    let quoted = *evidence.pcrs.value(pcr);
    let Some(logged) = evidence.logged(pcr) else {
        let mut stated = stated().into_iter();
        if let Some(before) = stated.find(|value| words::follows(pcr, value, &quoted)) {
            evidence.pcrs = evidence.pcrs.clone().with(pcr, before);
        }
        return;
    };
    let (chain, said) = logged.split_at(logged.len() - words::trailing(pcr, &logged));
    let before = fold(Sha256Digest::ZERO, chain);
    // A register that does not start at zero, or has no words.
    if said.is_empty() || fold(before, said) != quoted {
        return;
    }
    let numbers: BTreeSet<u32> = said.iter().map(|event| event.number).collect();
    evidence.pcrs = evidence.pcrs.clone().with(pcr, before);
    if let LogEvidence::Parsed { events, .. } = &mut evidence.log {
        events.retain(|event| event.pcr != pcr || !numbers.contains(&event.number));
    }
}

/// What images state about the programs that were started.
fn stated(images: &[ApprovedImage]) -> impl Iterator<Item = &[ImageEvent]> {
    let pcr4 = images.iter().filter_map(|image| image.expected.pcr(PcrIndex::BOOT_MANAGER));
    pcr4.map(|stated| stated.events.as_slice())
}

/// The constants that images state at the beginning of PCR 4, each form once.
fn forms(images: &[ApprovedImage]) -> Vec<Vec<&ImageEvent>> {
    let mut forms: Vec<Vec<&ImageEvent>> = Vec::new();
    for events in stated(images) {
        let form: Vec<_> =
            events.iter().take_while(|event| is_constant(&event.hash, None)).collect();
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

/// PCR 4 with these constants, then the programs as logged; `None` if the log has no program of an image.
fn in_form(
    plain: &VerifiedEvidence,
    form: &[&ImageEvent],
    images: &[ApprovedImage],
) -> Option<Settled> {
    let pcr = PcrIndex::BOOT_MANAGER;
    let logged = plain.logged(pcr)?;
    if fold(Sha256Digest::ZERO, &logged) != *plain.pcrs.value(pcr) {
        return None;
    }
    let known: BTreeSet<_> = stated(images).flatten().map(|event| event.hash).collect();
    let is_program = |event: &&LoggedEvent| !is_constant(&event.digest, event.detail.as_deref());
    let starts = |event: &&LoggedEvent| is_program(event) && known.contains(&event.digest);
    // Constants count only before it: a chain that came back to the firmware is not whole.
    let (before, chain) = logged.split_at(logged.iter().position(starts)?);
    let programs: Vec<_> = before.iter().copied().filter(is_program).cloned().collect();
    if programs.len() > MAX_PROGRAMS {
        return None;
    }
    let constant =
        |event: &&ImageEvent| LoggedEvent::new(0, pcr, event.hash, event.name.as_str(), None);
    let in_form: Vec<LoggedEvent> =
        form.iter().map(constant).chain(chain.iter().map(|event| (*event).clone())).collect();
    let mut evidence = plain.clone();
    let value = fold(Sha256Digest::ZERO, &in_form.iter().collect::<Vec<_>>());
    evidence.pcrs = evidence.pcrs.with(pcr, value);
    if let LogEvidence::Parsed { events, .. } = &mut evidence.log {
        events.retain(|event| event.pcr != pcr);
        events.extend(in_form);
    }
    Some(Settled { evidence, programs })
}

/// Whether the digest is that of a separator.
pub(crate) fn is_separator(digest: &Sha256Digest) -> bool {
    CONSTANT_DIGESTS.iter().skip(ACTIONS).any(|separator| separator == digest)
}

/// Whether the digest is that of a known text. What the log claims about the event only helps to find the text.
pub(crate) fn is_constant(digest: &Sha256Digest, detail: Option<&str>) -> bool {
    let is_option = |text: &str| {
        let number = text.strip_prefix(BOOTING.0).and_then(|rest| rest.strip_suffix(BOOTING.1));
        let is_number =
            number.is_some_and(|n| n.len() == 4 && n.bytes().all(|b| b.is_ascii_hexdigit()));
        is_number && Sha256Digest::of(text) == *digest
    };
    CONSTANT_DIGESTS.contains(digest) || detail.is_some_and(is_option)
}

#[cfg(test)]
mod tests;
