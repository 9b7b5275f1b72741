//! From bytes to borrowed events.

use serde::Serialize;
use tec_core::pcr::PcrIndex;

use super::bank::Bank;
use super::cursor::Cursor;
use super::error::EventLogError;
use super::event::{Digests, Event};
use super::kind::EventKind;

/// Form of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// `TCG_PCR_EVENT` throughout: SHA-1 only.
    Sha1,
    /// `TCG_PCR_EVENT2` after a `Spec ID Event03` header.
    CryptoAgile,
}

/// A parsed log; borrows the bytes it was read from.
#[derive(Clone, Debug)]
pub struct EventLog<'a> {
    format: Format,
    algorithms: Vec<Algorithm>,
    events: Vec<Event<'a>>,
    startup_locality: u8,
}

#[derive(Clone, Copy, Debug)]
struct Algorithm {
    id: u16,
    size: usize,
}

/// Maximum size of a log in bytes; real ones have about 50 KiB.
pub(super) const MAX_BYTES: usize = 16 << 20;
/// Maximum number of events, including the header; real logs have about 100.
pub(super) const MAX_EVENTS: usize = 1 << 16;
/// Maximum number of algorithms that a header may announce: `HASH_COUNT` of the TPM 2.0 reference
/// code is 3 to
/// 5, and the registry knows fewer than 16 hash algorithms.
const MAX_ALGORITHMS: usize = 16;
/// Largest digest of an unknown algorithm: that of SHA-512.
const MAX_DIGEST: u16 = 64;
/// PC Client Platform Firmware Profile 10.4.5.1: `TCG_EfiSpecIDEvent.signature`.
const SPEC_ID_03: &[u8; 16] = b"Spec ID Event03\0";
/// PC Client Platform Firmware Profile 10.4.5.3: `TCG_EfiStartupLocalityEvent.Signature`.
const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";
/// Bytes of an event, roughly; used only to reserve memory.
const TYPICAL_EVENT: usize = 128;

impl<'a> EventLog<'a> {
    /// Reads a log of at most 16 MiB and 65,536 events.
    pub fn parse(log: &'a [u8]) -> Result<Self, EventLogError> {
        match Self::read(log)? {
            (parsed, None) => Ok(parsed),
            (_, Some(error)) => Err(error),
        }
    }

    /// Reads a log within the same bounds up to the first event that cannot be read, and says why it ends there.
    /// Logs of real machines are cut off, or end in bytes that are no event; what comes before still
    /// proves the registers that replay.
    ///
    /// # Errors
    /// [`EventLogError`] if not even the first event can be read.
    pub fn read(log: &'a [u8]) -> Result<(Self, Option<EventLogError>), EventLogError> {
        if log.len() > MAX_BYTES {
            return Err(EventLogError::TooLarge { size: log.len(), limit: MAX_BYTES });
        }
        let end = padding_start(log);
        if end == 0 {
            return Err(EventLogError::Empty);
        }
        let mut cursor = Cursor::new(log, 0);
        let first = sha1_event(&mut cursor, 0)?;
        let mut parsed = Self {
            format: Format::Sha1,
            algorithms: Vec::new(),
            events: Vec::with_capacity(MAX_EVENTS.min(log.len() / TYPICAL_EVENT + 1)),
            startup_locality: 0,
        };
        if first.kind == EventKind::NO_ACTION && first.data.starts_with(SPEC_ID_03) {
            parsed.format = Format::CryptoAgile;
            parsed.algorithms = header(cursor.offset - first.data.len(), first.data)?;
        }
        let mut locality = LocalityRule::default();
        locality.check(&first)?;
        parsed.events.push(first);
        let cut = parsed.read_events(&mut cursor, end, &mut locality).err();
        parsed.startup_locality = locality.found.unwrap_or(0);
        Ok((parsed, cut))
    }

    fn read_events(
        &mut self,
        cursor: &mut Cursor<'a>,
        end: usize,
        locality: &mut LocalityRule,
    ) -> Result<(), EventLogError> {
        while cursor.offset < end {
            if self.events.len() >= MAX_EVENTS {
                let (offset, limit) = (cursor.offset, MAX_EVENTS);
                return Err(EventLogError::TooManyEvents { offset, limit });
            }
            let event = self.next_event(cursor)?;
            locality.check(&event)?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Form of the log.
    pub fn format(&self) -> Format {
        self.format
    }

    /// All events in order, including those that extend nothing.
    pub fn events(&self) -> &[Event<'a>] {
        &self.events
    }

    /// The banks that the log covers and that can be replayed.
    pub fn banks(&self) -> impl Iterator<Item = Bank> {
        let sha1 = (self.format == Format::Sha1).then_some(Bank::Sha1);
        let announced =
            self.algorithms.iter().filter_map(|algorithm| Bank::from_algorithm_id(algorithm.id));
        sha1.into_iter().chain(announced)
    }

    /// Locality that started the TPM: the value that PCR 0 starts with.
    pub fn startup_locality(&self) -> u8 {
        self.startup_locality
    }

    fn next_event(&self, cursor: &mut Cursor<'a>) -> Result<Event<'a>, EventLogError> {
        // The number of events is below the limit; one that large saturates harmlessly.
        let number = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        match self.format {
            Format::Sha1 => sha1_event(cursor, number),
            Format::CryptoAgile => self.agile_event(cursor, number),
        }
    }

    /// `TCG_PCR_EVENT2` (PC Client Platform Firmware Profile 10.2.2).
    fn agile_event(
        &self,
        cursor: &mut Cursor<'a>,
        number: u32,
    ) -> Result<Event<'a>, EventLogError> {
        let offset = cursor.offset;
        let index = cursor.u32("PCR index")?;
        let kind = EventKind::new(cursor.u32("event type")?);
        let pcr = register(index);
        let digests = self.digests(cursor)?;
        let data = event_data(cursor)?;
        Ok(Event { number, offset, pcr, kind, digests, data })
    }

    fn digests(&self, cursor: &mut Cursor<'a>) -> Result<Digests<'a>, EventLogError> {
        let offset = cursor.offset;
        let count = cursor.u32("digest count")?;
        let announced = self.algorithms.len();
        if usize::try_from(count).map_or(true, |count| count > announced) {
            return Err(EventLogError::DigestCount { offset, count, announced });
        }
        let mut digests = Digests::default();
        let mut seen = 0_u32;
        for _ in 0..count {
            let offset = cursor.offset;
            let id = cursor.u16("digest algorithm")?;
            let position = self.algorithms.iter().position(|a| a.id == id);
            let bit = position.map_or(u32::MAX, |position| 1 << position);
            let (Some(position), 0) = (position, seen & bit) else {
                return Err(EventLogError::Digest { offset, algorithm: id });
            };
            seen |= bit;
            match Bank::from_algorithm_id(id) {
                Some(Bank::Sha1) => digests.sha1 = Some(cursor.array("digest")?),
                Some(Bank::Sha256) => digests.sha256 = Some(cursor.array("digest")?),
                Some(Bank::Sha384) => digests.sha384 = Some(cursor.array("digest")?),
                Some(Bank::Sha512) => digests.sha512 = Some(cursor.array("digest")?),
                None => {
                    let size = self.algorithms.get(position).map_or(0, |a| a.size);
                    cursor.take(size, "digest")?;
                }
            }
        }
        Ok(digests)
    }
}

/// `TCG_PCR_EVENT` (PC Client Platform Firmware Profile 10.2.1).
fn sha1_event<'a>(cursor: &mut Cursor<'a>, number: u32) -> Result<Event<'a>, EventLogError> {
    let offset = cursor.offset;
    let index = cursor.u32("PCR index")?;
    let kind = EventKind::new(cursor.u32("event type")?);
    let pcr = register(index);
    let digests = Digests { sha1: Some(cursor.array("digest")?), ..Digests::default() };
    let data = event_data(cursor)?;
    Ok(Event { number, offset, pcr, kind, digests, data })
}

fn event_data<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], EventLogError> {
    let size = cursor.u32("event size")?;
    cursor.take(usize::try_from(size).unwrap_or(usize::MAX), "event data")
}

/// An event may name a register that a PC Client TPM does not have: SP 800-155 events use all ones, and logs of
/// real machines have events of PCR 24. No quote covers such a register.
fn register(index: u32) -> Option<PcrIndex> {
    u8::try_from(index).ok().and_then(|index| PcrIndex::new(index).ok())
}

/// `TCG_EfiSpecIDEvent` (PC Client Platform Firmware Profile 10.4.5.1); `data` begins at `offset`.
fn header(offset: usize, data: &[u8]) -> Result<Vec<Algorithm>, EventLogError> {
    let mut cursor = Cursor::new(data, offset);
    // Signature 16, platform class 4, version 2, errata 1, size of UINTN 1.
    cursor.take(24, "specification id")?;
    let offset = cursor.offset;
    let count = cursor.u32("number of algorithms")?;
    let number = usize::try_from(count).unwrap_or(usize::MAX);
    if number == 0 || number > MAX_ALGORITHMS {
        return Err(EventLogError::AlgorithmCount { offset, count, limit: MAX_ALGORITHMS });
    }
    let mut algorithms: Vec<Algorithm> = Vec::with_capacity(number);
    for _ in 0..number {
        let algorithm = algorithm(&mut cursor, &algorithms)?;
        algorithms.push(algorithm);
    }
    let vendor = cursor.u8("vendor info size")?;
    cursor.take(vendor.into(), "vendor info")?;
    if cursor.remaining() > 0 {
        return Err(EventLogError::HeaderLength {
            offset: cursor.offset,
            extra: cursor.remaining(),
        });
    }
    Ok(algorithms)
}

fn algorithm(cursor: &mut Cursor<'_>, before: &[Algorithm]) -> Result<Algorithm, EventLogError> {
    let offset = cursor.offset;
    let id = cursor.u16("algorithm")?;
    let size = cursor.u16("digest size")?;
    let repeated = before.iter().any(|a| a.id == id);
    let fits = match Bank::from_algorithm_id(id) {
        Some(bank) => usize::from(size) == bank.digest_size(),
        None => (1..=MAX_DIGEST).contains(&size),
    };
    if repeated || !fits {
        return Err(EventLogError::Algorithm { offset, algorithm: id, size });
    }
    Ok(Algorithm { id, size: size.into() })
}

/// Offset of the run of equal bytes, `0x00` or `0xff`, that the log ends in. Found once, so that
/// a hostile log cannot make every event look for it again.
fn padding_start(log: &[u8]) -> usize {
    match log.last() {
        Some(&last @ (0 | 0xff)) => log.iter().rposition(|b| *b != last).map_or(0, |i| i + 1),
        _ => log.len(),
    }
}

/// PC Client Platform Firmware Profile 10.4.5.3: one StartupLocality event at most, before
/// anything is measured into PCR 0.
#[derive(Debug, Default)]
struct LocalityRule {
    found: Option<u8>,
    measured: bool,
}

impl LocalityRule {
    fn check(&mut self, event: &Event<'_>) -> Result<(), EventLogError> {
        if event.kind != EventKind::NO_ACTION {
            self.measured |= event.pcr.is_some_and(|pcr| pcr.as_usize() == 0);
            return Ok(());
        }
        let Some(rest) = event.data.strip_prefix(STARTUP_LOCALITY) else {
            return Ok(());
        };
        let refuse = |reason| Err(EventLogError::StartupLocality { offset: event.offset, reason });
        match (self.found, self.measured, rest) {
            (Some(_), _, _) => refuse("is repeated"),
            (None, true, _) => refuse("comes after PCR 0 was extended"),
            // Localities 0, 3 and 4 are the ones from which a start-up is possible. coreboot pads the event.
            (None, false, &[locality @ (0 | 3 | 4), ref padding @ ..])
                if padding.iter().all(|byte| *byte == 0) =>
            {
                self.found = Some(locality);
                Ok(())
            }
            (None, false, _) => refuse("names no locality that can start a TPM"),
        }
    }
}
