//! A boot as its log proves it, in the form of an image: what an admin can approve if no prediction covers a
//! machine.
//!
//! ```text
//! PCR 4, as logged    firmware program, Calling, separator, shim, GRUB, kernel, os-separator
//! PCR 4, as stated                      Calling, separator, shim, GRUB, kernel
//! ```
//! Not the image's are programs of the firmware, for which the baseline of the machine vouches, numbers of boot
//! options, and systemd's words.

use super::settle::{is_constant, is_separator};
use super::words::fold;
use super::{Pins, words};
use crate::digest::Sha256Digest;
use crate::evidence::{LoggedEvent, VerifiedEvidence};
use crate::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use crate::pcr::PcrIndex;

/// Events of a register, and how many of the first ones are the firmware's.
type Chain<'a> = (Vec<&'a LoggedEvent>, usize);

/// ID of a program that the log places in the firmware.
pub const FIRMWARE: &str = "Pcr4Firmware";
/// Maximum number of events; a Fedora boot with 80 menu entries and all modules of GRUB has 400.
const MAX_EVENTS: usize = 768;
/// Maximum number of bytes of their texts.
const MAX_TEXT: usize = 32 * 1024;
/// Beginning of the types of programs (PC Client Platform Firmware Profile 1.06, 10.4.1).
const PROGRAM: &str = "EV_EFI_BOOT_SERVICES_";
/// Beginning of the path of a program in the firmware's own volume, as event logs name it.
const OF_FIRMWARE: &str = "FvFile(";
/// Beginnings of the texts of GRUB's events (grub-core/commands/tpm.c), before what the digest is of.
const OF_GRUB: [&str; 3] = ["kernel_cmdline: ", "grub_cmd: ", "module_cmdline: "];

/// What a boot measured into the registers of images, and the programs of the firmware before it. Empty unless the
/// log explains all of these registers, and if it is too long.
///
/// # Security
/// Digests and their order are proven, since they fold to the quoted values. Which component an event belongs to,
/// and its path, are what the log claims.
pub(crate) fn measured(evidence: &VerifiedEvidence) -> ExpectedPcrs {
    let chains = Pins::of_images().map(|pcr| Some((pcr, chain(evidence, pcr)?)));
    // A register that is left out would not be pinned, and nobody would see that.
    let Some(chains) = chains.collect::<Option<Vec<_>>>() else {
        return ExpectedPcrs::default();
    };
    let events = || chains.iter().flat_map(|(_, (events, _))| events);
    let texts = events().map(|event| event.detail.as_ref().map_or(0, String::len));
    if events().count() > MAX_EVENTS || texts.sum::<usize>() > MAX_TEXT {
        return ExpectedPcrs::default();
    }
    let stated = |(pcr, (events, firmware)): &(PcrIndex, Chain<'_>)| {
        let stated = events.iter().enumerate().map(|(place, event)| {
            let mut stated = as_stated(event);
            if place < *firmware && !is_constant(&event.digest, None) {
                FIRMWARE.clone_into(&mut stated.id);
            }
            stated
        });
        ExpectedPcr::from_events(*pcr, stated)
    };
    ExpectedPcrs::new(chains.iter().map(stated).collect())
}

/// The events of a register that are those of an image; `None` if they do not fold to the quoted value.
fn chain(evidence: &VerifiedEvidence, pcr: PcrIndex) -> Option<Chain<'_>> {
    let mut firmware = 0;
    let mut logged = evidence.logged(pcr)?;
    if fold(Sha256Digest::ZERO, &logged) != *evidence.pcrs.value(pcr) {
        return None;
    }
    logged.truncate(logged.len() - words::trailing(pcr, &logged));
    // Of an image, they would say that any system that runs is an initramfs.
    if logged.iter().any(|event| words::is_after_initramfs(&event.digest)) {
        return None;
    }
    if pcr == PcrIndex::BOOT_MANAGER {
        let is_file = |path: &str| !path.starts_with(OF_FIRMWARE);
        let is_first = |event: &&LoggedEvent| {
            event.kind.starts_with(PROGRAM) && event.detail.as_deref().is_some_and(is_file)
        };
        // The firmware ends its part with a separator (10.4.1): a program before it is the firmware's, such as the
        // setup program of Dell on the same disk.
        let own = logged.iter().position(|event| is_separator(&event.digest)).unwrap_or(0);
        let first = logged.iter().skip(own).position(is_first).map_or(0, |place| own + place);
        let chain = logged.split_off(first);
        let is_number = |event: &LoggedEvent| {
            is_constant(&event.digest, event.detail.as_deref()) && !is_constant(&event.digest, None)
        };
        logged.retain(|event| !is_number(event));
        firmware = logged.len();
        logged.extend(chain);
    }
    Some((logged, firmware))
}

/// What of it an image states: all but the programs of the firmware, for which the baseline of the machine vouches.
pub fn as_image(measured: &ExpectedPcrs) -> ExpectedPcrs {
    let stated = |pcr: &ExpectedPcr| {
        let events = pcr.events.iter().filter(|event| event.id != FIRMWARE);
        ExpectedPcr::from_events(pcr.id, events.cloned())
    };
    ExpectedPcrs::new(measured.pcrs.iter().map(stated).collect())
}

fn as_stated(event: &LoggedEvent) -> ImageEvent {
    let id = component(event.pcr, &event.kind, event.detail.as_deref().unwrap_or_default());
    let stated = ImageEvent::new(event.kind.as_str(), event.pcr, event.digest, id);
    match &event.detail {
        Some(detail) => stated.from_file(detail.as_str()),
        None => stated,
    }
}

/// The component that the log claims. Its programs stay unnamed, so that they are never combined with those of
/// other images.
fn component(pcr: PcrIndex, kind: &str, detail: &str) -> String {
    let name = match u8::from(pcr) {
        8 if detail.starts_with(OF_GRUB[0]) => "KernelCmdline",
        8 => "Command",
        9 if kind == "EV_IPL" => "File",
        11 if detail.starts_with(".linux") => "Linux",
        11 if detail.starts_with(".initrd") => "Initrd",
        _ => "Booted",
    };
    format!("Pcr{pcr}{name}")
}

/// Whether the digest proves the text of a command line or a command, which the log otherwise only claims.
///
/// GRUB measures the characters, systemd's programs UTF-16 with its end (systemd-stub(7), systemd-boot(7)).
pub fn proves_text(digest: &Sha256Digest, text: &str) -> bool {
    let grub = OF_GRUB.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
    let wide: Vec<u8> = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    Sha256Digest::of(grub) == *digest || Sha256Digest::of(wide) == *digest
}
