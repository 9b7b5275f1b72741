//! How authorities are replaced by their next generation while everything runs.
//!
//! *What it is*: generations are numbered from 1. The [`Record`] in the vault says which one signs, and how far
//! its replacement has come, so that every pod, and every process after a crash, continues at the same step.
//!
//! *What it is not*: keys or certificates. The vault creates and keeps them; see [`super::desired`].
//!
//! ```text
//!   stage       signs   trusted   until
//!   stable      n       n         someone requests the next generation
//!   made        n       n, n+1    both are published
//!   published   n       n, n+1    everyone trusts both: after the overlap
//!   switching   n+1     n+1, n    everything that signs uses the new one
//!   switched    n+1     n+1, n    all that the old one signed has expired: after the overlap
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tec_core::time::Timestamp;

use super::{MOUNTS, Request, Response, Verdict};

/// How long pods, mounts and clocks may lag behind a step: three of the controller's longest rounds.
const LAG: Duration = Duration::from_mins(15);

/// How far a replacement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// There is one generation.
    Stable,
    /// The next one is created.
    Made,
    /// Both are published; the old one signs.
    Published,
    /// The new one is about to sign.
    Switching,
    /// The new one signs; both are published.
    Switched,
}

/// Whether an admin, or the end of its life, requests the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No.
    None,
    /// Yes.
    Next,
}

/// What the vault records about a succession.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The generation that signs.
    pub signs: u32,
    /// How far its replacement has come.
    pub stage: Stage,
    /// When that stage began, in seconds since 1970.
    since: i64,
}

/// A record, and the version that the vault gave it; 0 if there is none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The record.
    pub record: Record,
    version: u64,
}

#[derive(Deserialize)]
struct Versioned {
    data: Record,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    version: u64,
}

/// The record cannot be relied on: someone removed or changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the vault's record of a replacement was removed or changed")]
#[non_exhaustive]
pub struct Damaged;

/// Generations of the keys that sign for NATS. Each is a version of keys in the vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signers {
    /// The key of the operator, which signs accounts.
    pub operator: Record,
    /// The keys of the accounts, which sign users.
    pub accounts: Record,
}

/// Names of the records of [`Signers`].
pub const NATS_OPERATOR: &str = "nats-operator-keys";
/// See [`NATS_OPERATOR`].
pub const NATS_ACCOUNTS: &str = "nats-account-keys";

/// Time in which everything with this lifetime is renewed at least once, by everyone.
pub fn overlap(life: Duration) -> Duration {
    life.saturating_add(LAG.min(life))
}

impl Signers {
    /// Those of a new vault.
    pub const FIRST: Self = Self { operator: Record::FIRST, accounts: Record::FIRST };
}

impl Record {
    /// The first generation.
    pub const FIRST: Self = Self { signs: 1, stage: Stage::Stable, since: 0 };

    /// The generations that are trusted; the one that signs comes first.
    pub fn trusted(self) -> Vec<u32> {
        let signs = self.signs;
        match self.stage {
            Stage::Stable => vec![signs],
            Stage::Made | Stage::Published => vec![signs, signs.saturating_add(1)],
            Stage::Switching | Stage::Switched => vec![signs, signs.saturating_sub(1)],
        }
    }

    /// The next record, if this stage ends at `now`. The caller has carried out this record: its generations
    /// exist and are published, and the one that signs is used by everything that signs.
    pub fn next(self, wish: Wish, now: Timestamp, overlap: Duration) -> Option<Self> {
        let now = now.unix_seconds();
        // A clock that went backwards only extends the stage.
        let age = u64::try_from(now.saturating_sub(self.since)).unwrap_or(0);
        let is_over = age >= overlap.as_secs();
        let (signs, stage) = match self.stage {
            Stage::Stable if wish == Wish::Next => (self.signs, Stage::Made),
            Stage::Made => (self.signs, Stage::Published),
            Stage::Published if is_over => (self.signs.saturating_add(1), Stage::Switching),
            Stage::Switching => (self.signs, Stage::Switched),
            Stage::Switched if is_over => (self.signs, Stage::Stable),
            _ => return None,
        };
        Some(Self { signs, stage, since: now })
    }
}

impl Stored {
    /// Reads the record of this name.
    pub fn read(name: &str) -> Request {
        Request::get(path(name))
    }

    /// The record in the answer; the first one if there never was one. `None` if the vault cannot answer.
    pub fn from_answer(answer: &Response) -> Option<Result<Self, Damaged>> {
        match answer.verdict() {
            Verdict::Good => Some(match answer.data() {
                Ok(Versioned { data, metadata }) if data.signs > 0 => {
                    Ok(Self { record: data, version: metadata.version })
                }
                _ => Err(Damaged),
            }),
            // A record that was removed leaves its metadata: the first generation may no longer be trusted.
            Verdict::Absent if answer.has("data") => Some(Err(Damaged)),
            Verdict::Absent => Some(Ok(Self { record: Record::FIRST, version: 0 })),
            _ => None,
        }
    }

    /// Writes the next record, unless another pod has written one in the meantime.
    pub fn replace(self, name: &str, next: Record) -> Request {
        let body = json!({"options": {"cas": self.version}, "data": next});
        Request::post(path(name), &body)
    }
}

fn path(name: &str) -> String {
    format!("{}/data/{name}", MOUNTS.systems)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLAP: Duration = Duration::from_secs(100);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    #[test]
    fn a_generation_signs_only_after_it_was_trusted_for_long_and_is_trusted_until_its_last_signature_ends()
     {
        let step = |record: Record, now| record.next(Wish::None, at(now), OVERLAP);
        assert_eq!(step(Record::FIRST, 1_000_000), None, "nobody asked");
        let made = Record::FIRST.next(Wish::Next, at(1000), OVERLAP).unwrap();
        let published = step(made, 1001).unwrap();
        assert_eq!((published.signs, published.trusted()), (1, vec![1, 2]));
        assert_eq!(step(published, 1100), None);
        assert_eq!(step(published, 900), None, "a clock went backwards");
        let switching = step(published, 1101).unwrap();
        assert_eq!((switching.signs, switching.trusted()), (2, vec![2, 1]));
        let switched = step(switching, 1200).unwrap();
        assert_eq!(step(switched, 1299), None);
        let stable = step(switched, 1300).unwrap();
        assert_eq!((stable.signs, stable.stage, stable.trusted()), (2, Stage::Stable, vec![2]));
        // A request in the meantime waits for its turn.
        assert_eq!(switched.next(Wish::Next, at(1200), OVERLAP), None);
    }

    #[test]
    fn a_record_that_was_removed_is_not_taken_for_the_first_one() {
        let answer = |status, body: &str| Response::new(status, body.as_bytes().to_vec());
        let read = |status, body| Stored::from_answer(&answer(status, body));
        let first = Stored { record: Record::FIRST, version: 0 };
        assert_eq!(read(404, r#"{"errors":[]}"#), Some(Ok(first)));
        let removed = r#"{"data":{"data":null,"metadata":{"version":3,"deletion_time":"x"}}}"#;
        assert_eq!(read(404, removed), Some(Err(Damaged)));
        let strange = r#"{"data":{"data":{"signs":0},"metadata":{"version":3}}}"#;
        assert_eq!(read(200, strange), Some(Err(Damaged)));
        assert_eq!(read(503, ""), None);
        let good = r#"{"data":{"data":{"signs":2,"stage":"switched","since":7},"metadata":{"version":3}}}"#;
        let stored = read(200, good).unwrap().unwrap();
        assert_eq!((stored.record.signs, stored.version), (2, 3));
    }

    #[test]
    fn the_overlap_is_a_lifetime_and_the_lag_of_everyone() {
        assert_eq!(overlap(Duration::from_hours(24)), Duration::from_mins(24 * 60 + 15));
        assert_eq!(overlap(Duration::from_secs(12)), Duration::from_secs(24));
    }
}
