//! `tec image approve --from-attempt`: a refused boot, event by event, as an image.

use serde::Serialize;
use tec_core::attest::Attempt;
use tec_core::boot::{FIRMWARE, Pins, as_image, proves_text};
use tec_core::code::Code;
use tec_core::explain::{Gate, Step, StepState, component_name};
use tec_core::id::{AttemptId, ImageName};
use tec_core::image::{ApprovedImage, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock as _, ImageRegistry};
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use super::explain::find;
use crate::anchor::Anchor;

/// Registers whose events are texts: commands and command lines.
const TEXTS: [PcrIndex; 2] = [PcrIndex::BOOT_COMMANDS, PcrIndex::KERNEL_CONFIG];
/// Number of digits of a digest that are shown.
const DIGITS: usize = 16;
/// Number of attempts of a machine that nobody signed, at most, and one more.
const UNSIGNED: usize = 9;
/// ID of an event that the log calls the kernel command line.
const COMMAND_LINE: &str = "Pcr8KernelCmdline";

/// What an admin approves.
pub(super) struct Booted {
    pub(super) reference: String,
    pub(super) expected: ExpectedPcrs,
    pub(super) review: Review,
}

/// Each event of a boot, with what explains it.
#[derive(Serialize)]
pub(super) struct Review {
    attempt: AttemptId,
    events: Vec<Reviewed>,
}

#[derive(Serialize)]
struct Reviewed {
    #[serde(flatten)]
    event: ImageEvent,
    /// Images that measure the same digest into this register, live ones first.
    known_as: Vec<Known>,
    /// Whether the digest proves the text; only for registers whose events are texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    text_proven: Option<bool>,
}

#[derive(Serialize)]
struct Known {
    image: ImageName,
    component: String,
    live: bool,
}

/// The boot of an attempt that was refused because of its registers.
pub(super) async fn booted(anchor: &Anchor, pins: Pins, subject: &str) -> anyhow::Result<Booted> {
    let failed = || anchor.failed("look up the attempt");
    let attempt = find(anchor, Some(subject)).await?;
    let id = attempt.id;
    let images = ImageRegistry::list(&*anchor.ports).await.map_err(failed())?;
    if attempt.measured.is_empty() {
        let latest = match attempt.machine {
            Some(machine) => {
                anchor.attempts.latest(Some(machine), UNSIGNED).await.map_err(failed())?
            }
            None => Vec::new(),
        };
        let latest = latest.into_iter().find(|latest| !latest.unsigned);
        let why = why_not(&attempt, latest.as_ref());
        let context = format!("cannot approve attempt {id}: {why}");
        return Err(CodedError::new(Code::AttemptUnusable, context).into());
    }
    if let Pins::Exactly(pinned) = pins
        && let Some(pcr) = pinned.iter().find(|pcr| attempt.measured.pcr(*pcr).is_none())
    {
        let context = format!(
            "cannot approve attempt {id}: the server pins PCR {pcr}, which is not the image's"
        );
        return Err(CodedError::new(Code::AttemptUnusable, context).into());
    }
    let machine = attempt.machine.map(|id| format!(" of machine {id}")).unwrap_or_default();
    let pcrs = attempt.measured.pcrs.iter();
    let events = pcrs.flat_map(|pcr| &pcr.events).map(|event| reviewed(event, &images)).collect();
    Ok(Booted {
        reference: format!("attempt {id}{machine}, as logged"),
        review: Review { attempt: id, events },
        expected: as_image(&attempt.measured),
    })
}

fn why_not(attempt: &Attempt, latest: Option<&Attempt>) -> String {
    let gate = |gate| attempt.ladder.steps.iter().find(move |step: &&Step| step.gate == gate);
    let of_registers = gate(Gate::Pcrs).map(|step| step.state);
    match (of_registers, latest.filter(|latest| latest.id != attempt.id)) {
        (Some(StepState::Passed), _) => "its boot matched an approved image".to_owned(),
        (Some(StepState::Failed), Some(latest)) => format!(
            "what it measured is no longer kept, since its machine attested again (attempt {})",
            latest.id
        ),
        (Some(StepState::Failed), None) => {
            let log = gate(Gate::EventLog).map(|step| step.detail.as_str()).unwrap_or_default();
            format!(
                "its event log does not explain PCRs 4, 8, 9, 11, 12, 13 and 14, or is too long to be kept: {log}"
            )
        }
        _ => "it was refused before its registers were judged".to_owned(),
    }
}

fn reviewed(event: &ImageEvent, images: &[ApprovedImage]) -> Reviewed {
    let now = SystemClock.now();
    let known = |image: &ApprovedImage| {
        let events = &image.expected.pcr(event.pcr)?.events;
        let same = events.iter().find(|known| known.hash == event.hash)?;
        let component = component_name(&same.id).into_owned();
        Some(Known { image: image.name.clone(), component, live: image.is_live(now) })
    };
    let mut known_as: Vec<_> = images.iter().filter_map(known).collect();
    known_as.sort_by_key(|known| !known.live);
    let proven = || event.source.as_deref().is_some_and(|text| proves_text(&event.hash, text));
    let text_proven = TEXTS.contains(&event.pcr).then(proven);
    Reviewed { event: event.clone(), known_as, text_proven }
}

impl Review {
    /// One line per event, under its register, and what an approval means.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut register = None;
        for event in &self.events {
            if register.replace(event.event.pcr) != Some(event.event.pcr) {
                lines.push(format!("PCR {}", event.event.pcr));
            }
            lines.push(event.line());
        }
        let command_lines =
            self.events.iter().filter(|event| event.event.id == COMMAND_LINE).count();
        if command_lines > 1 {
            lines.push(format!(
                "WARNING: {command_lines} events claim to be the kernel command line."
            ));
        }
        let (firmware, own): (Vec<_>, Vec<_>) =
            self.events.iter().partition(|event| event.event.id == FIRMWARE);
        if !firmware.is_empty() {
            lines.push(format!(
                "NOT part of the approval: {} programs that the log places in the firmware. The first boot \
                 with them makes them the baseline of the machine, if it has none yet.",
                firmware.len()
            ));
        }
        let unknown = own.iter().filter(|event| !event.is_live()).count();
        lines.push(format!(
            "{} events, {unknown} of them in no approved image. Texts are claims of the log, also which of them \
             is a command and which the kernel command line. Every machine that measures exactly these events \
             gets its disk key.",
            own.len()
        ));
        lines
    }
}

impl Reviewed {
    fn is_live(&self) -> bool {
        self.known_as.first().is_some_and(|known| known.live)
    }

    fn line(&self) -> String {
        let Self { event, known_as, text_proven } = self;
        let digest: String = event.hash.to_string().chars().take(DIGITS).collect();
        let what = event.source.as_deref().unwrap_or(&event.name);
        let verdict = match known_as.first() {
            _ if event.id == FIRMWARE => "firmware".to_owned(),
            None => "IN NO IMAGE".to_owned(),
            Some(Known { image, component, live: true }) => format!("{component} of {image}"),
            Some(Known { image, component, live: false }) => {
                format!("NO LONGER APPROVED, {component} of {image}")
            }
        };
        // The text comes last: who wrote it cannot forge what stands before it.
        let proof = if *text_proven == Some(false) { "NOT PROVEN BY ITS DIGEST: " } else { "" };
        format!("  {digest}  {verdict}:  {proof}{what}")
    }
}
