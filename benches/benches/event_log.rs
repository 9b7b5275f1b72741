//! Parsing and replaying an event log against hashing the same bytes once.

use sha2::{Digest as _, Sha256};
use tec_benches::{Figure, Suite, Unit, debian, synthetic};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_tpm::event_log::{EventLog, EventLogError};

/// Size of the log of an up-to-date PC with Secure Boot on.
const TYPICAL: usize = 48 << 10;
/// From the shortest log to the longest that is read, each four times the previous one.
const SIZES: [usize; 8] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20];

fn main() -> anyhow::Result<()> {
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    let made = synthetic::event_log(1, TYPICAL);
    let name = "pcr/event_log/made";
    let note = note("a made log", &made)?;
    suite.compare(name, &note, || replay(&made), || Sha256::digest(&made))?;
    for (name, log) in debian::logs()? {
        let name = format!("pcr/event_log/{name}");
        let note = self::note("the log of a real boot", &log)?;
        suite.ratio(&name, &note, || replay(&log), || Sha256::digest(&log))?;
    }
    sizes(&suite)?;
    suite.finish();
    Ok(())
}

fn note(what: &str, log: &[u8]) -> anyhow::Result<String> {
    let events = check(log)?;
    Ok(format!(
        "parse and replay {what}, {events} events in {} bytes / SHA-256 of the bytes",
        log.len()
    ))
}

fn replay(log: &[u8]) -> Result<PcrValues, EventLogError> {
    EventLog::parse(log)?.replay_sha256()
}

/// Replays the events once more, in the simplest way. Returns their number.
fn check(log: &[u8]) -> anyhow::Result<usize> {
    let parsed = EventLog::parse(log)?;
    let replayed = parsed.replay_sha256()?;
    for pcr in PcrIndex::all().filter(|pcr| !(17..=22).contains(&u8::from(*pcr))) {
        let mut start = [0; 32];
        if let (0, Some(last)) = (u8::from(pcr), start.last_mut()) {
            *last = parsed.startup_locality();
        }
        let digests = parsed
            .events()
            .iter()
            .filter(|event| event.extends() == Some(pcr))
            .filter_map(|event| event.digests.sha256);
        let folded = digests.fold(Sha256Digest::new(start), |value, digest| {
            value.extended(&Sha256Digest::new(*digest))
        });
        anyhow::ensure!(folded == *replayed.value(pcr), "PCR {pcr} replays to a wrong value");
    }
    Ok(parsed.events().len())
}

/// Speed over the size of the log.
fn sizes(suite: &Suite) -> anyhow::Result<()> {
    let name = "pcr/log_sizes";
    if !suite.wants(name) {
        return Ok(());
    }
    for size in SIZES {
        let log = synthetic::event_log(1, size);
        check(&log)?;
        #[expect(clippy::cast_precision_loss, reason = "some MiB")]
        let (size, bytes) = (size as f64, log.len() as f64);
        let report = |what, nanoseconds: f64, note| {
            let name = format!("{name}/{what}/{}", Unit::Bytes.label(size));
            let speed = bytes * 1e9 / nanoseconds;
            suite.figure(Figure::new(&name, speed, Unit::BytesPerSecond, note))
        };
        report("hash", suite.time(|| Sha256::digest(&log)), "SHA-256 of the bytes")?;
        let parse = suite.time(|| EventLog::parse(&log).is_ok());
        report("parse", parse, "parse a log of three banks")?;
        let replayed = suite.time(|| replay(&log).is_ok());
        report("replay", replayed, "parse and replay a log of three banks")?;
    }
    Ok(())
}
