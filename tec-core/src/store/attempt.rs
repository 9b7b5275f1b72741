//! The latest attestation attempts, as JSON.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Params};

use super::Store;
use super::error::StoreError;
use crate::attest::Attempt;
use crate::boot::BootState;
use crate::explain::{Gate, StepState};
use crate::id::{AttemptId, MachineId};
use crate::port::{AttemptLog, PortError};

/// Attempts kept per machine; the contract of [`AttemptLog`] asks for 16.
const PER_MACHINE: i64 = 32;
/// Attempts kept for unknown machines.
const WITHOUT_MACHINE: i64 = 1000;
/// Attempts kept for unsigned evidence that names a key of the machine.
const UNSIGNED_PER_MACHINE: i64 = 8;
/// Attempts kept for unsigned evidence that names no key.
const UNSIGNED_WITHOUT_MACHINE: i64 = 200;
/// Unsigned attempts are stored under a name of their own instead of the machine, so that they only
/// push out each other.
const UNSIGNED: &str = "unsigned";

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

#[async_trait]
impl AttemptLog for Store {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        let operation = format!("record attempt {}", attempt.id);
        let attempt = attempt.clone();
        self.write(move |db| Ok(record(db, &attempt)?))
            .await
            .map_err(|failure| failure.during(operation))
    }

    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        self.readers
            .with(|db| find(db, id))
            .map_err(|error| error.during(format!("look up attempt {id}")))
    }

    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        self.readers
            .with(|db| latest(db, machine, limit))
            .map_err(|error| error.during("list attempts"))
    }
}

/// The order is that of the first recording, so it does not depend on a clock.
fn record(db: &Connection, attempt: &Attempt) -> Result<(), StoreError> {
    let (machine, kept) = place(attempt);
    let body = serde_json::to_string(attempt)
        .map_err(|error| StoreError::undecodable("attempt", error))?;
    db.prepare_cached(
        "INSERT INTO attempt (id, machine, body) VALUES (?1, ?2, ?3) \
         ON CONFLICT (id) DO UPDATE SET machine = excluded.machine, body = excluded.body",
    )?
    .execute((attempt.id.to_string(), &machine, body))?;
    db.prepare_cached(
        "DELETE FROM attempt WHERE machine IS ?1 AND seq <= \
         (SELECT seq FROM attempt WHERE machine IS ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute((machine, kept))?;
    Ok(())
}

fn find(db: &Connection, id: &AttemptId) -> Result<Option<Attempt>, StoreError> {
    db.prepare_cached("SELECT body FROM attempt WHERE id = ?1")?
        .query_row((id.to_string(),), |row| row.get(0))
        .optional()?
        .map(|body: String| decode(&body))
        .transpose()
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
