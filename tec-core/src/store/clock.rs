//! The last clock of each TPM, as JSON.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};

use super::error::{StoreError, some_row};
use super::{Store, audit, authority};
use crate::ak::{ClockReading, Fingerprint};
use crate::id::MachineId;
use crate::migrate::Deed;
use crate::port::{AuditEvent, ClockLog, ClockOutcome, PortError};

#[async_trait]
impl ClockLog for Store {
    async fn advance(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        reading: &ClockReading,
    ) -> Result<ClockOutcome, PortError> {
        let (name, reading) = (key.to_string(), *reading);
        self.write(format!("keep the clock of the TPM of key {key}"), move |db| {
            Ok(advance(db, &name, machine, reading)?)
        })
        .await
    }

    async fn last(&self, key: &Fingerprint) -> Result<Option<ClockReading>, PortError> {
        let operation = format!("look up the clock of the TPM of key {key}");
        self.read(operation, |db| find(db, &key.to_string()))
    }

    async fn forget(&self, machine: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        let (name, line) = (machine.to_string(), line.clone());
        self.write(format!("forget the clock of machine {machine}"), move |db| {
            authority::permit(db, Deed::Admit)?;
            some_row(remove_of(db, &name)?)?;
            Ok(audit::append(db, &line)?)
        })
        .await
    }
}

fn advance(
    db: &Connection,
    key: &str,
    machine: MachineId,
    reading: ClockReading,
) -> Result<ClockOutcome, StoreError> {
    let kept = match find(db, key)? {
        None => reading.after_other_keys(of_machine(db, machine)?),
        Some(last) => match reading.succeeding(&last) {
            Ok(kept) => kept,
            Err(fault) => return Ok(ClockOutcome::Refused(fault)),
        },
    };
    let kept = serde_json::to_string(&kept)
        .map_err(|error| StoreError::undecodable("clock of a TPM", error))?;
    db.prepare_cached(
        "INSERT INTO tpm_clock VALUES (?1, ?2, ?3) ON CONFLICT (ak) DO UPDATE \
         SET machine = excluded.machine, reading = excluded.reading",
    )?
    .execute((key, machine.to_string(), kept))?;
    Ok(ClockOutcome::Follows)
}

fn find(db: &Connection, key: &str) -> Result<Option<ClockReading>, StoreError> {
    let found: Option<String> = db
        .prepare_cached("SELECT reading FROM tpm_clock WHERE ak = ?1")?
        .query_row((key,), |row| row.get(0))
        .optional()?;
    found.map(|text| decode(&text)).transpose()
}

/// The readings of all keys of a machine.
fn of_machine(db: &Connection, machine: MachineId) -> Result<Vec<ClockReading>, StoreError> {
    let mut found = db.prepare_cached("SELECT reading FROM tpm_clock WHERE machine = ?1")?;
    let texts = found.query_map((machine.to_string(),), |row| row.get::<_, String>(0))?;
    texts.map(|text| decode(&text?)).collect()
}

fn decode(text: &str) -> Result<ClockReading, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::undecodable("clock of a TPM", error))
}

/// Removes the clocks of a machine, and returns their number; also used when machines are removed.
pub(super) fn remove_of(db: &Connection, machine: &str) -> Result<usize, StoreError> {
    Ok(db.prepare_cached("DELETE FROM tpm_clock WHERE machine = ?1")?.execute((machine,))?)
}
