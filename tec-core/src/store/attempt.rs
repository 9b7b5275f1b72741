//! The latest attestation attempts, as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Params};

use super::Store;
use super::error::StoreError;
use crate::attest::Attempt;
use crate::boot::BootState;
use crate::explain::{Gate, StepState};
use crate::id::{AttemptId, MachineId};
use crate::port::{AttemptLog, PortError};

/// Number of attempts kept per machine; the contract of [`AttemptLog`] asks for 16.
const PER_MACHINE: i64 = 32;
/// Maximum size in bytes of the last attempt of a machine, with what it measured.
const LAST: usize = 256 * 1024;
/// Maximum size in bytes of each of the others.
const OTHERS: usize = 6 * 1024;
/// Number of attempts kept for unknown machines.
const WITHOUT_MACHINE: i64 = 1000;
/// Number of attempts kept for unsigned evidence that names a key of the machine.
const UNSIGNED_PER_MACHINE: i64 = 8;
/// Number of attempts kept for unsigned evidence that names no key.
const UNSIGNED_WITHOUT_MACHINE: i64 = 200;
/// Unsigned attempts are stored under a name of their own instead of the machine, so that they displace only
/// each other.
const UNSIGNED: &str = "unsigned";
/// Number of attempts that are read for an ID of which a repetition took the place.
const SEARCHED: i64 = 20_000;

/// Name of the unsigned attempts of a machine.
pub(super) fn unsigned_of(machine: &str) -> String {
    format!("{UNSIGNED} {machine}")
}

/// The name under which an attempt is stored, and the maximum number for that name.
fn place(attempt: &Attempt) -> (Option<String>, i64) {
    match (attempt.machine.map(|id| id.to_string()), attempt.unsigned) {
        (Some(machine), true) => (Some(unsigned_of(&machine)), UNSIGNED_PER_MACHINE),
        (Some(machine), false) => (Some(machine), PER_MACHINE),
        (None, true) => (Some(UNSIGNED.to_owned()), UNSIGNED_WITHOUT_MACHINE),
        (None, false) => (None, WITHOUT_MACHINE),
    }
}

impl Store {
    /// When each machine last attested, and with which result; machines without an attempt are left out.
    pub fn last_attempts(&self) -> Result<BTreeMap<MachineId, Attempt>, StoreError> {
        let attempts = self.readers.with(last_of_each)?;
        let named = attempts.into_iter().filter_map(|one| Some((one.machine?, one)));
        Ok(named.collect())
    }
}

#[async_trait]
impl AttemptLog for Store {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        let operation = format!("record attempt {}", attempt.id);
        let attempt = attempt.clone();
        self.write(operation, move |db| Ok(record(db, &attempt)?)).await
    }

    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        self.read(format!("look up attempt {id}"), |db| find(db, id))
    }

    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        self.read("list attempts", |db| latest(db, machine, limit))
    }
}

/// Attempts are ordered by their first recording, not by a clock. A repetition takes the place of the attempt
/// that it repeats.
fn record(db: &Connection, attempt: &Attempt) -> Result<(), StoreError> {
    let (machine, kept) = place(attempt);
    // As it will be stored, so that it is compared with what is.
    let attempt = attempt.within(LAST);
    let with_its_id = "SELECT seq, body FROM attempt WHERE id = ?1";
    if let Some((seq, old)) = one(db, with_its_id, (attempt.id.to_string(),))? {
        let sql = "UPDATE attempt SET machine = ?1, body = ?2 WHERE seq = ?3";
        let body = encode(&attempt.in_place_of(&old))?;
        db.prepare_cached(sql)?.execute((&machine, body, seq))?;
        return remove_oldest(db, machine.as_ref(), kept);
    }
    let last = "SELECT seq, body FROM attempt WHERE machine = ?1 ORDER BY seq DESC LIMIT 1";
    match one(db, last, (&machine,))? {
        Some((seq, last)) if attempt.repeats(&last) => {
            // A repetition is the latest of all, whenever the first one was.
            let sql = "UPDATE attempt SET id = ?1, machine = ?2, body = ?3, \
                       seq = (SELECT MAX(seq) + 1 FROM attempt) WHERE seq = ?4";
            let body = encode(&attempt.in_place_of(&last))?;
            db.prepare_cached(sql)?.execute((attempt.id.to_string(), &machine, body, seq))?;
        }
        last => {
            if let Some((seq, last)) = last
                && let Cow::Owned(last) = last.within(OTHERS)
            {
                db.prepare_cached("UPDATE attempt SET body = ?1 WHERE seq = ?2")?
                    .execute((encode(&last)?, seq))?;
            }
            db.prepare_cached("INSERT INTO attempt (id, machine, body) VALUES (?1, ?2, ?3)")?
                .execute((attempt.id.to_string(), &machine, encode(&attempt)?))?;
        }
    }
    remove_oldest(db, machine.as_ref(), kept)
}

fn one(
    db: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<Option<(i64, Attempt)>, StoreError> {
    let found: Option<(i64, String)> = db
        .prepare_cached(sql)?
        .query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    found.map(|(seq, body)| Ok((seq, decode(&body)?))).transpose()
}

fn remove_oldest(db: &Connection, machine: Option<&String>, kept: i64) -> Result<(), StoreError> {
    db.prepare_cached(
        "DELETE FROM attempt WHERE machine IS ?1 AND seq <= \
         (SELECT seq FROM attempt WHERE machine IS ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute((machine, kept))?;
    Ok(())
}

fn encode(attempt: &Attempt) -> Result<String, StoreError> {
    serde_json::to_string(attempt).map_err(|error| StoreError::undecodable("attempt", error))
}

fn find(db: &Connection, id: &AttemptId) -> Result<Option<Attempt>, StoreError> {
    let text = id.to_string();
    let found = all(db, "SELECT body FROM attempt WHERE id = ?1", (&text,))?;
    if let Some(found) = found.into_iter().next() {
        return Ok(Some(found));
    }
    // Who explains a machine asks with its ID, which is in all of its attempts.
    let sql = "SELECT EXISTS (SELECT 1 FROM attempt WHERE machine = ?1)";
    if db.prepare_cached(sql)?.query_row((&text,), |row| row.get(0))? {
        return Ok(None);
    }
    let sql = "SELECT body FROM (SELECT body FROM attempt ORDER BY seq DESC LIMIT ?2) \
               WHERE instr(body, ?1) > 0";
    let found = all(db, sql, (&text, SEARCHED))?;
    Ok(found.into_iter().find(|attempt| attempt.is_known_as(id)))
}

fn latest(
    db: &Connection,
    machine: Option<MachineId>,
    limit: usize,
) -> Result<Vec<Attempt>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    match machine {
        Some(machine) => {
            let sql =
                "SELECT body FROM attempt WHERE machine IN (?1, ?2) ORDER BY seq DESC LIMIT ?3";
            let machine = machine.to_string();
            let unsigned = unsigned_of(&machine);
            all(db, sql, (machine, unsigned, limit))
        }
        None => all(db, "SELECT body FROM attempt ORDER BY seq DESC LIMIT ?1", (limit,)),
    }
}

/// The last signed attempt of each machine, without what only one who looks at a single machine reads.
fn last_of_each(db: &Connection) -> Result<Vec<Attempt>, StoreError> {
    let last = "SELECT body FROM attempt WHERE seq IN \
                (SELECT MAX(seq) FROM attempt WHERE machine IS NOT NULL GROUP BY machine)";
    let mut statement = db.prepare_cached(last)?;
    let bodies = statement.query_map((), |row| row.get::<_, String>(0))?;
    let summary = |body: rusqlite::Result<String>| Ok(decode(&body?)?.into_summary());
    let signed = |attempt: &Result<Attempt, StoreError>| {
        attempt.as_ref().map_or(true, |attempt| !attempt.unsigned)
    };
    bodies.map(summary).filter(signed).collect()
}

fn all(db: &Connection, sql: &str, params: impl Params) -> Result<Vec<Attempt>, StoreError> {
    db.prepare_cached(sql)?
        .query_map(params, |row| row.get::<_, String>(0))?
        .map(|body| decode(&body?))
        .collect()
}

fn decode(body: &str) -> Result<Attempt, StoreError> {
    let mut attempt: Attempt =
        serde_json::from_str(body).map_err(|error| StoreError::undecodable("attempt", error))?;
    if attempt.booted.is_none() {
        attempt.booted = booted_of_older_row(&attempt);
    }
    Ok(attempt)
}

/// Rows written before attempts had a member for it state what was booted only in the text of a
/// gate. They disappear as newer attempts arrive.
fn booted_of_older_row(attempt: &Attempt) -> Option<BootState> {
    let mut steps = attempt.ladder.steps.iter();
    let step = steps.find(|step| step.gate == Gate::Pcrs)?;
    let passed = step.state == StepState::Passed;
    passed.then(|| BootState::from_sentence(&step.detail))?
}
