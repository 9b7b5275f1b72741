//! The image label, in the format that `compute-pcrs` prints.

use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrSet};

use super::{OutputError, from_json, to_json};

const FORM: &str = "the label org.coreos.pcrs";

#[derive(Serialize)]
struct Label<'a> {
    pcrs: Vec<Register<'a>>,
}

#[derive(Serialize)]
struct Register<'a> {
    id: PcrIndex,
    value: Sha256Digest,
    events: Vec<Event<'a>>,
}

/// The four members that every reader of labels knows, in their order.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    pcr: PcrIndex,
    hash: Sha256Digest,
    id: &'a str,
}

impl<'a> From<&'a ExpectedPcr> for Register<'a> {
    fn from(pcr: &'a ExpectedPcr) -> Self {
        let event = |event: &'a ImageEvent| Event {
            name: &event.name,
            pcr: event.pcr,
            hash: event.hash,
            id: known_id(&event.id),
        };
        Self { id: pcr.id, value: pcr.value, events: pcr.events.iter().map(event).collect() }
    }
}

/// The ID that every reader of labels knows: there is a single one for all authorities that shim
/// finds.
fn known_id(id: &str) -> &str {
    match id {
        "Pcr7KernelDbCert" | "Pcr7UkiDbCert" => "Pcr7GrubDbCert",
        "Pcr7KernelVendorDbCert" | "Pcr7UkiVendorDbCert" => "Pcr7GrubVendorDbCert",
        "Pcr7KernelMokListCert" | "Pcr7UkiMokListCert" => "Pcr7GrubMokListCert",
        other => other,
    }
}

/// The values of an image as its label, and as `compute-pcrs all` prints them:
/// `{"pcrs":[{"id","value","events":[{"name","pcr","hash","id"}]}]}`. Files are left out.
///
/// # Errors
/// [`OutputError::Json`], in practice never.
pub fn label(expected: &ExpectedPcrs) -> Result<String, OutputError> {
    let pcrs = expected.pcrs.iter().map(Register::from).collect();
    to_json(&Label { pcrs }, FORM)
}

/// One register, as `compute-pcrs pcr4` prints it.
///
/// # Errors
/// [`OutputError::Json`], in practice never.
pub fn register(expected: &ExpectedPcr) -> Result<String, OutputError> {
    to_json(&Register::from(expected), FORM)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Readable {
    Label(LabelIn),
    Register(RegisterIn),
}

#[derive(Deserialize)]
struct LabelIn {
    pcrs: Vec<RegisterIn>,
}

#[derive(Deserialize)]
pub(super) struct RegisterIn {
    id: PcrIndex,
    value: Sha256Digest,
    /// Labels of old images call them parts.
    #[serde(alias = "parts")]
    events: Vec<ImageEvent>,
}

/// Reads a label, or one register.
///
/// # Errors
/// [`OutputError`] when it is not a label, contains a register twice, or has events that do not
/// replay to their value.
pub fn read_label(text: &str) -> Result<ExpectedPcrs, OutputError> {
    let registers = match from_json(text, FORM)? {
        Readable::Label(label) => label.pcrs,
        Readable::Register(register) => vec![register],
    };
    folded(registers)
}

/// The registers, each once and with a value that follows from its events.
pub(super) fn folded(registers: Vec<RegisterIn>) -> Result<ExpectedPcrs, OutputError> {
    let mut seen = PcrSet::default();
    let mut pcrs = Vec::with_capacity(registers.len());
    for RegisterIn { id, value, events } in registers {
        if seen.contains(id) {
            return Err(OutputError::Repeated(id));
        }
        seen = seen.with(id);
        let count = events.len();
        let folded = ExpectedPcr::from_events(id, events);
        if folded.value != value || folded.events.len() != count {
            return Err(OutputError::Inconsistent(id));
        }
        pcrs.push(folded);
    }
    Ok(ExpectedPcrs::new(pcrs))
}
