//! Logs in the older format, built event by event: read back, compared, displayed.

use sha1::{Digest as _, Sha1};
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{Bank, Event, EventKind, EventLog, EventLogError, Format, LogView};

use crate::Seed;
use crate::bytes::{le32, u16_at};

/// Event types that an input chooses from.
const KINDS: [EventKind; 8] = [
    EventKind::NO_ACTION,
    EventKind::SEPARATOR,
    EventKind::IPL,
    EventKind::EFI_ACTION,
    EventKind::EVENT_TAG,
    EventKind::EFI_BOOT_SERVICES_APPLICATION,
    EventKind::EFI_VARIABLE_AUTHORITY,
    EventKind::EFI_VARIABLE_DRIVER_CONFIG,
];
/// Maximum number of events; more would show nothing new.
const MAX_EVENTS: usize = 64;

/// A log is read as it was written, or refused for the one event that no log may have. A log does not differ
/// from itself, and differs from one without its last event only in that event's register.
///
/// An input is a list of events: register, kind, size in 16 bits, data.
pub(crate) fn event_log_sha1(data: &[u8]) {
    let written = events(data);
    let log: Vec<u8> = written.iter().flat_map(Written::bytes).collect();
    let parsed = match EventLog::parse(&log) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(is_justified(&error, &written, &log), "{error:?} of {written:?}");
            return;
        }
    };
    if parsed.format() == Format::Sha1 {
        check_events(&parsed, &written);
        check_difference(&parsed);
    }
    let view = LogView::new(&parsed);
    assert_eq!(view.events.len(), parsed.events().len());
    assert!(serde_json::to_vec(&view).is_ok());
    assert!(!view.table().contains('\u{1b}'), "nothing steers the terminal");
}

#[derive(Debug)]
struct Written<'d> {
    register: u32,
    kind: EventKind,
    data: &'d [u8],
}

impl Written<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.register.to_le_bytes(), self.kind.number().to_le_bytes()].concat();
        bytes.extend(Sha1::digest(self.data));
        bytes.extend(le32(self.data.len()));
        bytes.extend(self.data);
        bytes
    }
}

fn events(mut data: &[u8]) -> Vec<Written<'_>> {
    let mut events = Vec::new();
    let mut next = || {
        let (&[register, kind], _) = data.split_first_chunk()?;
        let size = u16_at(data, 2)?;
        let rest = data.get(4..)?;
        let (content, more) = rest.split_at(size.min(rest.len()));
        data = more;
        let kind = KINDS.get(usize::from(kind) % KINDS.len());
        Some(Written {
            register: if register == 0xff { u32::MAX } else { register.into() },
            kind: kind.copied().unwrap_or(EventKind::SEPARATOR),
            data: content,
        })
    };
    while let Some(event) = next().filter(|_| events.len() < MAX_EVENTS) {
        events.push(event);
    }
    events
}

fn is_justified(error: &EventLogError, written: &[Written<'_>], log: &[u8]) -> bool {
    let padding = |byte| log.iter().all(|b| *b == byte);
    match error {
        EventLogError::Empty => padding(0) || padding(0xff),
        EventLogError::StartupLocality { .. } => {
            written.iter().any(|e| e.data.starts_with(b"StartupLocality\0"))
        }
        // Anything can be wrong with what looks like the newer format.
        _ => written.first().is_some_and(|e| e.data.starts_with(b"Spec ID Event03\0")),
    }
}

fn check_events(parsed: &EventLog<'_>, written: &[Written<'_>]) {
    let events = parsed.events();
    assert!(events.len() <= written.len());
    for (event, written) in events.iter().zip(written) {
        assert_eq!((event.kind, event.data), (written.kind, written.data));
        assert_eq!(
            event.pcr.map(u8::from).map(u32::from),
            Some(written.register).filter(|r| *r < 24)
        );
        let digest: [u8; 20] = Sha1::digest(written.data).into();
        assert_eq!(event.digests.get(Bank::Sha1), Some(digest.as_slice()));
    }
    // What is not read looks like padding.
    let rest = written.get(events.len()..).unwrap_or_default();
    let rest: Vec<u8> = rest.iter().flat_map(Written::bytes).collect();
    assert!(rest.iter().all(|b| *b == 0) || rest.iter().all(|b| *b == 0xff));
}

fn check_difference(log: &EventLog<'_>) {
    let same = log.diff(log, Bank::Sha1).expect("a log of this bank");
    assert!(same.is_empty());
    let Some(last) = log.events().iter().rposition(|e| e.extends().is_some()) else {
        return;
    };
    let kept: Vec<u8> = log
        .events()
        .iter()
        .enumerate()
        .filter(|(place, event)| *place != last && event.extends().is_some())
        .flat_map(|(_, event)| {
            let register = event.pcr.map_or(0, |pcr| u32::from(u8::from(pcr)));
            Written { register, kind: event.kind, data: event.data }.bytes()
        })
        .chain([0xff])
        .collect();
    let Ok(shorter) = EventLog::parse(&kept) else {
        return;
    };
    let difference = log.diff(&shorter, Bank::Sha1).expect("two logs of this bank");
    let registers: Vec<PcrIndex> = difference.registers.iter().map(|r| r.pcr).collect();
    assert_eq!(registers, log.events().get(last).and_then(Event::extends).as_slice());
}

/// An input with these events.
fn input(events: &[(u8, u8, &[u8])]) -> Vec<u8> {
    let event = |(register, kind, data): &(u8, u8, &[u8])| {
        let mut bytes = vec![*register, *kind];
        bytes.extend(crate::bytes::le16(data.len()));
        bytes.extend(*data);
        bytes
    };
    events.iter().flat_map(event).collect()
}

pub(crate) fn seeds() -> Vec<Seed> {
    let boot = input(&[
        (0, 0, b"StartupLocality\0\x03"),
        (4, 3, b"Calling EFI Application"),
        (0xff, 0, b"SP800-155 Event"),
        (7, 1, &[0; 4]),
        (8, 2, b"grub_cmd: boot\0"),
        (9, 4, b"\0\0\0\0\x06\0\0\0initrd"),
    ]);
    vec![
        Seed::new("boot", boot),
        Seed::new("nothing", Vec::new()),
        Seed::new("same_twice", input(&[(4, 5, b"shim"), (4, 5, b"shim")])),
        Seed::new("register_24", input(&[(4, 5, b"shim"), (24, 1, &[0; 4])])),
        Seed::new("late_locality", input(&[(0, 1, &[0; 4]), (0, 0, b"StartupLocality\0\x03")])),
        Seed::new("steering", input(&[(8, 2, b"\x1b[2J\x07\r\n\xe2\x80\xae")])),
    ]
}
