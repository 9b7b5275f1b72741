//! A log as JSON and as a readable table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use tec_core::attest::LoggedEvent;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::bank::Bank;
use super::content::Content;
use super::event::Event;
use super::measured::DataProof;
use super::parse::{EventLog, Format};
use super::replay::Replayed;

/// An event in readable form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventView {
    /// Number in the log, from 0.
    pub number: u32,
    /// Where the event begins in the log, in bytes; 0 for one of systemd.
    pub offset: usize,
    /// The register that it names; none for some events that extend nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcr: Option<PcrIndex>,
    /// Name of the type.
    pub kind: String,
    /// Digest per bank, hexadecimal.
    pub digests: BTreeMap<&'static str, String>,
    /// Size of the event data in bytes.
    pub size: usize,
    /// How much of the data the strongest of the digests proves.
    pub data: DataProof,
    /// What the data says: a path, a variable's name, or text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The data, parsed as its type prescribes: a [`Content`]; none if that is only text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
}

impl EventView {
    /// An event with the digests of all banks.
    pub fn new(event: &Event<'_>) -> Self {
        Self::with_banks(event, &Bank::ALL)
    }

    /// An event with the digest of one bank.
    pub(super) fn of(event: &Event<'_>, bank: Bank) -> Self {
        Self::with_banks(event, &[bank])
    }

    /// An event that systemd measured after the log of the firmware ended.
    pub fn of_systemd(event: &LoggedEvent) -> Self {
        let text = event.detail.as_deref().unwrap_or_default();
        let is_hashed = Sha256Digest::of(text) == event.digest;
        Self {
            number: event.number,
            offset: 0,
            pcr: Some(event.pcr),
            kind: event.kind.clone(),
            digests: [(Bank::Sha256.as_str(), event.digest.to_string())].into(),
            size: text.len(),
            data: if is_hashed { DataProof::Hashed } else { DataProof::Unverified },
            detail: event.detail.clone(),
            content: None,
        }
    }

    /// A readable table: one line per event.
    pub fn table(events: &[Self]) -> String {
        let mut text = LEGEND.to_owned();
        for event in events {
            let _ = writeln!(text, "{}", line(event));
        }
        text
    }

    fn with_banks(event: &Event<'_>, banks: &[Bank]) -> Self {
        let digest = |bank: &Bank| Some((bank.as_str(), hex::encode(event.digests.get(*bank)?)));
        Self {
            number: event.number,
            offset: event.offset,
            pcr: event.pcr,
            kind: event.kind.name().into_owned(),
            digests: banks.iter().filter_map(digest).collect(),
            size: event.data.len(),
            data: event.proof(strongest(event)),
            detail: event.detail(),
            content: match event.content() {
                Content::Text { .. } | Content::Opaque => None,
                content => serde_json::to_value(content).ok(),
            },
        }
    }
}

/// The first trusted bank of which the event has a digest.
fn strongest(event: &Event<'_>) -> Bank {
    let there = |bank: &Bank| event.digests.get(*bank).is_some();
    let trusted = [Bank::Sha256, Bank::Sha384, Bank::Sha512].into_iter();
    trusted.into_iter().find(there).unwrap_or(Bank::Sha1)
}

/// A whole log in readable form, with the values that it replays to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogView {
    /// Form of the log.
    pub format: Format,
    /// Locality that started the TPM, according to the log; PCR 0 starts with it.
    pub startup_locality: u8,
    /// The events in order.
    pub events: Vec<EventView>,
    /// The value that the log folds to, for each bank and extended register.
    pub replay: BTreeMap<&'static str, BTreeMap<PcrIndex, String>>,
}

impl LogView {
    /// A log in readable form. Banks that cannot be replayed are left out of `replay`.
    pub fn new(log: &EventLog<'_>) -> Self {
        let replay = log.banks().filter_map(|bank| log.replay(bank).ok());
        Self {
            format: log.format(),
            startup_locality: log.startup_locality(),
            events: log.events().iter().map(EventView::new).collect(),
            replay: replay.map(|r| (r.bank().as_str(), values(&r))).collect(),
        }
    }

    /// A readable table: one line per event, then the values.
    pub fn table(&self) -> String {
        let mut text = EventView::table(&self.events);
        for (bank, values) in &self.replay {
            let _ = writeln!(text, "\n{bank}");
            for (pcr, value) in values {
                let _ = writeln!(text, "  PCR {pcr:>2} = {value}", pcr = u8::from(*pcr));
            }
        }
        text
    }
}

const LEGEND: &str =
    "(…) is not what was measured, only a remark beside it; * was measured in part\n";

/// The registers that a replay extended, with their values in hexadecimal.
fn values(replayed: &Replayed) -> BTreeMap<PcrIndex, String> {
    let extended = replayed.extended();
    let value = |pcr| (pcr, hex::encode(replayed.value(pcr)));
    extended.iter().map(value).collect()
}

/// One event on one line: number, register, type, start of the digest, detail. A detail that
/// nothing proves is in parentheses; one whose data is partly proven is marked with a star.
pub(super) fn line(event: &EventView) -> String {
    // SHA-256 where there is one, else the first.
    let digest = event
        .digests
        .get(Bank::Sha256.as_str())
        .or_else(|| event.digests.values().next())
        .map_or("", String::as_str);
    let start: String = digest.chars().take(16).collect();
    let pcr = event.pcr.map_or_else(|| "-".to_owned(), |pcr| pcr.to_string());
    let detail = match (&event.detail, event.data) {
        (Some(detail), DataProof::Hashed) => detail.clone(),
        (Some(detail), DataProof::Part) => format!("{detail} *"),
        (Some(detail), _) => format!("({detail})"),
        (None, _) => format!("[{} bytes]", event.size),
    };
    let number = event.number;
    format!("{number:>4}  {pcr:>2}  {:<34}  {start:<16}  {detail}", event.kind)
}

#[cfg(test)]
mod tests {
    use super::super::{EventKind, EventLogBuilder};
    use super::*;

    fn log() -> Vec<u8> {
        EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256])
            .measure(PcrIndex::BOOT_MANAGER, EventKind::EFI_ACTION, b"Calling")
            .measure_other(PcrIndex::BOOT_MANAGER, EventKind::IPL, b"file", b"/path")
            .build()
    }

    #[test]
    fn data_that_is_not_what_was_hashed_is_marked() {
        let bytes = log();
        let view = LogView::new(&EventLog::parse(&bytes).unwrap());
        let proofs: Vec<_> = view.events.iter().skip(1).map(|event| event.data).collect();
        assert_eq!(proofs, [DataProof::Hashed, DataProof::Unverified]);
        let table = view.table();
        assert!(table.contains("  Calling\n") && table.contains("  (/path)\n"), "{table}");
    }

    #[test]
    fn the_json_form_has_events_and_values_of_all_banks() {
        let bytes = log();
        let log = EventLog::parse(&bytes).unwrap();
        let json = serde_json::to_value(LogView::new(&log)).unwrap();
        assert_eq!(json["events"][1]["kind"], "EV_EFI_ACTION");
        assert_eq!(json["events"][2]["data"], "unverified");
        let replayed = log.replay(Bank::Sha256).unwrap();
        let value = hex::encode(replayed.value(PcrIndex::BOOT_MANAGER));
        assert_eq!(json["replay"]["sha256"]["4"], value);
        assert!(json["replay"]["sha1"]["4"].is_string());
    }
}
