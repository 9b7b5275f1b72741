//! Event logs: parsed, rendered again, and replayed by a second implementation.

mod hostile;
mod seeds;

use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tec_core::attest::LogEvidence;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};
use tec_tpm::event_log;
use tec_tpm::event_log::{
    Bank, DataProof, Event, EventKind, EventLog, Format, LogView, VerifyLogError,
};

use crate::Seed;

pub(crate) fn seeds() -> Vec<Seed> {
    [seeds::seeds(), hostile::seeds()].concat()
}

/// Maximum number of characters of an event's detail, see its documentation.
const MAX_DETAIL: usize = 1025;

/// A log that parses renders to a log that parses to the same events; its replay equals that of a simpler
/// implementation; and it proves exactly the registers that replay to the quoted value.
pub(crate) fn event_log(data: &[u8]) {
    let Ok(log) = EventLog::parse(data) else {
        check_cut(data);
        return;
    };
    check_shape(data, &log);
    let _ = LogView::new(&log).table();
    for variable in log.policy_variables() {
        let event = log.events().iter().find(|event| event.number == variable.event);
        assert_eq!(event.map(Event::extends), Some(Some(PcrIndex::SECURE_BOOT)));
    }
    check_rendering(&log);
    for bank in Bank::ALL {
        check_replay(&log, bank);
    }
    check_worth(data, &log);
}

/// What can be read of a log that does not parse proves exactly the registers that it replays to.
fn check_cut(data: &[u8]) {
    let Ok((log, cut)) = EventLog::read(data) else {
        return;
    };
    assert!(cut.is_some(), "it does not parse");
    log.events().iter().for_each(check_measured);
    let Ok(quoted) = log.replay_sha256() else {
        return;
    };
    let LogEvidence::Parsed { replayed, cut, .. } = event_log::evidence(data, &quoted) else {
        panic!("a log that replays is evidence");
    };
    assert!(cut.is_some() && replayed == PcrIndex::all().collect());
}

fn check_shape(data: &[u8], log: &EventLog<'_>) {
    let mut end = 0;
    for (number, event) in log.events().iter().enumerate() {
        assert_eq!(u32::try_from(number), Ok(event.number));
        assert!(event.offset == end || number == 0, "events follow each other");
        let begin = data.len() - data.get(event.offset..).map_or(0, <[u8]>::len);
        assert_eq!(begin, event.offset, "an event begins in the log");
        end = end_of(data, event);
        assert!(event.extends().is_none() || event.kind != EventKind::NO_ACTION);
        check_measured(event);
        if let Some(detail) = event.detail() {
            assert!((1..=MAX_DETAIL).contains(&detail.chars().count()));
            assert!(!detail.contains(char::is_control), "{detail:?}");
        }
    }
    let rest = data.get(end..).expect("the last event ends in the log");
    let padding = rest.iter().all(|b| *b == 0) || rest.iter().all(|b| *b == 0xff);
    assert!(padding, "nothing but padding follows the last event");
}

/// The data reported as measured has the digest, and is found at the reported place.
fn check_measured(event: &Event<'_>) {
    for bank in Bank::ALL {
        let digest = event.digests.get(bank).filter(|_| event.extends().is_some());
        let measured = event.measured(bank);
        if let Some(bytes) = &measured {
            assert_eq!(Some(&*hash(bank, bytes)), digest, "{bank}");
        }
        let whole = digest.is_some_and(|digest| hash(bank, event.data) == digest);
        assert_eq!(whole, event.proof(bank) == DataProof::Hashed);
        assert_eq!(event.extends().is_none(), event.proof(bank) == DataProof::NotMeasured);
    }
}

fn hash(bank: Bank, data: &[u8]) -> Vec<u8> {
    match bank {
        Bank::Sha1 => Sha1::digest(data).to_vec(),
        Bank::Sha256 => Sha256::digest(data).to_vec(),
        Bank::Sha384 => Sha384::digest(data).to_vec(),
        _ => Sha512::digest(data).to_vec(),
    }
}

/// The data of an event is part of the log, so its address determines where the event ends.
fn end_of(data: &[u8], event: &Event<'_>) -> usize {
    event.data.as_ptr_range().end.addr() - data.as_ptr().addr()
}

fn check_rendering(log: &EventLog<'_>) {
    let bytes = render(log);
    let again = EventLog::parse(&bytes).expect("a rendered log parses");
    assert_eq!(again.format(), log.format());
    assert_eq!(again.startup_locality(), log.startup_locality());
    assert!(again.banks().eq(log.banks()));
    assert_eq!(again.events().len(), log.events().len());
    for (again, event) in again.events().iter().zip(log.events()) {
        assert_eq!((again.pcr, again.kind), (event.pcr, event.kind));
        assert_eq!((again.digests, again.data), (event.digests, event.data));
    }
}

/// The parser drops digests of unknown algorithms, so they are left out.
fn render(log: &EventLog<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in log.events() {
        let register = event.pcr.map_or(u32::MAX, |pcr| u8::from(pcr).into());
        bytes.extend(register.to_le_bytes());
        bytes.extend(event.kind.number().to_le_bytes());
        if event.number == 0 || log.format() == Format::Sha1 {
            bytes.extend(event.digests.sha1.expect("this form has a SHA-1 digest"));
        } else {
            let digests =
                || Bank::ALL.into_iter().filter_map(|bank| Some((bank, event.digests.get(bank)?)));
            bytes.extend(u32::try_from(digests().count()).unwrap_or(0).to_le_bytes());
            for (bank, digest) in digests() {
                bytes.extend(bank.algorithm_id().to_le_bytes());
                bytes.extend(digest);
            }
        }
        let size = u32::try_from(event.data.len()).expect("a size that was read fits");
        bytes.extend(size.to_le_bytes());
        bytes.extend(event.data);
    }
    // Padding, so that zeros at the end of the last event are not mistaken for it.
    bytes.push(0xff);
    bytes
}

fn check_replay(log: &EventLog<'_>, bank: Bank) {
    let covered = log.banks().any(|one| one == bank);
    let complete = log
        .events()
        .iter()
        .all(|event| event.extends().is_none() || event.digests.get(bank).is_some());
    let replayed = log.replay(bank);
    assert_eq!(replayed.is_ok(), covered && complete, "{bank}");
    let Ok(replayed) = replayed else { return };
    for pcr in PcrIndex::all() {
        assert_eq!(replayed.value(pcr), fold(log, bank, pcr), "{bank} PCR {pcr}");
        let extended = log.events().iter().any(|e| e.extends() == Some(pcr));
        assert_eq!(replayed.extended().contains(pcr), extended);
    }
    if bank == Bank::Sha256 {
        let values = log.replay_sha256().expect("the same bank replays");
        for (pcr, value) in values.iter() {
            assert_eq!(value.as_bytes(), replayed.value(pcr));
        }
    }
}

/// One register by itself, with the simplest possible replay.
fn fold(log: &EventLog<'_>, bank: Bank, pcr: PcrIndex) -> Vec<u8> {
    let begin = if (17..=22).contains(&u8::from(pcr)) { 0xff } else { 0 };
    let mut value = vec![begin; bank.digest_size()];
    if let (0, Some(last)) = (u8::from(pcr), value.last_mut()) {
        *last = log.startup_locality();
    }
    for event in log.events().iter().filter(|event| event.extends() == Some(pcr)) {
        value.extend(event.digests.get(bank).expect("the log is complete"));
        value = hash(bank, &value);
    }
    value
}

fn check_worth(data: &[u8], log: &EventLog<'_>) {
    let all: PcrSet = PcrIndex::all().collect();
    let Ok(quoted) = log.replay_sha256() else {
        let quoted = PcrValues::new([Sha256Digest::ZERO; 24]);
        assert!(matches!(log.evidence_against(&quoted), LogEvidence::Broken { .. }));
        return;
    };
    let verified = log.clone().verify(&quoted, all).expect("it folds to itself");
    let extending = log.events().iter().filter(|e| e.extends().is_some());
    assert_eq!(verified.events().count(), extending.clone().count());
    let evidence = log.evidence_against(&quoted);
    assert_eq!(evidence, event_log::evidence(data, &quoted));
    let LogEvidence::Parsed { events, replayed, .. } = evidence else {
        panic!("a log that replays is evidence");
    };
    assert_eq!((events.len(), replayed), (extending.count(), all));

    let mut other = [Sha256Digest::ZERO; 24];
    for (value, (pcr, quoted)) in other.iter_mut().zip(quoted.iter()) {
        *value = match pcr {
            PcrIndex::BOOT_MANAGER => Sha256Digest::of(quoted.as_bytes()),
            _ => *quoted,
        };
    }
    let other = PcrValues::new(other);
    let refused = log.clone().verify(&other, all);
    assert!(matches!(
        refused,
        Err(VerifyLogError::Mismatch { pcr, .. }) if pcr == PcrIndex::BOOT_MANAGER
    ));
    let LogEvidence::Parsed { replayed, .. } = log.evidence_against(&other) else {
        panic!("a log that replays is evidence");
    };
    assert!(!replayed.contains(PcrIndex::BOOT_MANAGER));
    assert_eq!(replayed.iter().count(), 23);
}
