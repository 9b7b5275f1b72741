//! Attestation keys in the store.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Params, Row};

use super::error::{Failure, StoreError, some_row};
use super::{Store, audit, authority, machine};
use crate::ak::{AkRecord, AkState, ApprovedAk, Fingerprint, PublicKey, SourceNetwork, may_wait};
use crate::id::MachineId;
use crate::machine::Machine;
use crate::migrate::Deed;
use crate::port::{
    AkRegistry, AuditEvent, BindOutcome, Claims, CreateOutcome, PortError, PortErrorKind,
};
use crate::time::Timestamp;

#[async_trait]
impl AkRegistry for Store {
    async fn submit(
        &self,
        record: &AkRecord,
        line: &AuditEvent,
    ) -> Result<CreateOutcome, PortError> {
        let line = line.clone();
        let operation = format!("keep key {} until it is approved", record.fingerprint());
        let waiting = AkRecord { state: AkState::Pending, ..record.clone() };
        self.write(operation, move |db| submit(db, &waiting, &line)).await
    }

    async fn bind(&self, ak: &ApprovedAk, line: &AuditEvent) -> Result<BindOutcome, PortError> {
        let (record, line) = (ak.record().clone(), line.clone());
        let operation = format!("bind key {}", record.fingerprint());
        self.write(operation, move |db| bind(db, record.clone(), &line)).await
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<AkRecord>, PortError> {
        self.read(format!("look up key {key}"), |db| find(db, key))
    }

    async fn find_with_machine(
        &self,
        key: &Fingerprint,
    ) -> Result<Option<(AkRecord, Option<Machine>)>, PortError> {
        let both = |db: &Connection| -> Result<_, StoreError> {
            let Some(ak) = find(db, key)? else { return Ok(None) };
            let machine = machine::find(db, &ak.machine)?;
            Ok(Some((ak, machine)))
        };
        self.read(format!("look up key {key} with its machine"), both)
    }

    async fn bound_to(&self, machine: &MachineId) -> Result<Option<AkRecord>, PortError> {
        self.read(format!("look up the key of machine {machine}"), |db| bound_to(db, machine))
    }

    async fn list(&self, machine: Option<MachineId>) -> Result<Vec<AkRecord>, PortError> {
        self.read("list attestation keys", |db| list(db, machine))
    }

    async fn claims(&self, source: &SourceNetwork) -> Result<Claims, PortError> {
        self.read("count the machines that first use let in", |db| claims(db, source))
    }

    async fn revoke(&self, key: &Fingerprint, line: &AuditEvent) -> Result<(), PortError> {
        let (text, line) = (key.to_string(), line.clone());
        self.write(format!("revoke key {key}"), move |db| {
            authority::permit(db, Deed::ShutOut)?;
            let revoked = db
                .prepare_cached("UPDATE ak SET state = 'revoked' WHERE fingerprint = ?1")?
                .execute((&text,))?;
            some_row(revoked)?;
            Ok(audit::append(db, &line)?)
        })
        .await
    }
}

fn submit(db: &Connection, record: &AkRecord, line: &AuditEvent) -> Result<CreateOutcome, Failure> {
    let key = record.fingerprint();
    if find(db, &key)?.is_some() {
        return Ok(CreateOutcome::Existed);
    }
    if !is_live(db, &record.machine)? {
        return Err(Failure::Refused(PortErrorKind::NotFound));
    }
    authority::permit(db, Deed::Admit)?;
    if !may_wait(record, list(db, Some(record.machine))?.iter()) {
        return Err(Failure::Refused(PortErrorKind::Denied));
    }
    insert(db, record)?;
    audit::append(db, line)?;
    Ok(CreateOutcome::Created)
}

/// The compare-and-swap: everything happens in one transaction of the single writer, and the index `ak_bound`
/// would hold even if this function were wrong.
fn bind(db: &Connection, mut record: AkRecord, line: &AuditEvent) -> Result<BindOutcome, Failure> {
    if !is_live(db, &record.machine)? {
        return Ok(BindOutcome::NoMachine);
    }
    let known = find(db, &record.fingerprint())?;
    if let Some(known) = &known {
        if known.machine != record.machine || known.state == AkState::Revoked {
            return Ok(BindOutcome::KeyTaken);
        }
        if known.state == AkState::Bound {
            return Ok(BindOutcome::AlreadyBound);
        }
    }
    authority::permit(db, Deed::Admit)?;
    if bound_to(db, &record.machine)?.is_some() {
        return Ok(BindOutcome::MachineTaken);
    }
    if let Some(known) = known {
        record.submitted_at = known.submitted_at;
        record.ek = record.ek.or(known.ek);
    }
    replace(db, &record)?;
    machine::activate(db, &record)?;
    audit::append(db, line)?;
    Ok(BindOutcome::Bound)
}

fn is_live(db: &Connection, id: &MachineId) -> Result<bool, StoreError> {
    let machine = machine::find(db, id)?;
    Ok(machine.is_some_and(|machine| machine.state.takes_keys()))
}

/// Writes a record, overwriting any existing one; also used for records of another anchor.
pub(super) fn replace(db: &Connection, record: &AkRecord) -> Result<(), StoreError> {
    db.prepare_cached("DELETE FROM ak WHERE fingerprint = ?1")?
        .execute((record.fingerprint().to_string(),))?;
    insert(db, record)
}

fn insert(db: &Connection, record: &AkRecord) -> Result<(), StoreError> {
    db.prepare_cached("INSERT INTO ak VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute((
        record.fingerprint().to_string(),
        record.public.to_base64(),
        record.machine.to_string(),
        state_text(record.state),
        record.ek.map(|ek| ek.to_string()),
        record.submitted_at.unix_seconds(),
        record.source.map(|source| source.to_string()),
    ))?;
    Ok(())
}

/// Looks up a key; also used for records of another anchor.
pub(super) fn find(db: &Connection, key: &Fingerprint) -> Result<Option<AkRecord>, StoreError> {
    one(db, "SELECT * FROM ak WHERE fingerprint = ?1", key.to_string())
}

fn bound_to(db: &Connection, machine: &MachineId) -> Result<Option<AkRecord>, StoreError> {
    let sql = "SELECT * FROM ak WHERE machine = ?1 AND state = 'bound'";
    one(db, sql, machine.to_string())
}

fn claims(db: &Connection, source: &SourceNetwork) -> Result<Claims, StoreError> {
    // The index `ak_claim` answers both.
    let (total, of_source): (i64, i64) = db
        .prepare_cached(
            "SELECT count(*), count(*) FILTER (WHERE source = ?1) FROM ak \
             WHERE state = 'bound' AND source IS NOT NULL",
        )?
        .query_row((source.to_string(),), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Claims { total: total.unsigned_abs(), of_source: of_source.unsigned_abs() })
}

fn one(db: &Connection, sql: &str, name: String) -> Result<Option<AkRecord>, StoreError> {
    db.prepare_cached(sql)?.query_row((name,), |row| Ok(decode(row))).optional()?.transpose()
}

/// The keys of a machine, or all keys; also used for other anchors.
pub(super) fn list(
    db: &Connection,
    machine: Option<MachineId>,
) -> Result<Vec<AkRecord>, StoreError> {
    match machine {
        Some(machine) => {
            let sql = "SELECT * FROM ak WHERE machine = ?1 ORDER BY fingerprint";
            all(db, sql, (machine.to_string(),))
        }
        None => all(db, "SELECT * FROM ak ORDER BY fingerprint", ()),
    }
}

fn all(db: &Connection, sql: &str, params: impl Params) -> Result<Vec<AkRecord>, StoreError> {
    db.prepare_cached(sql)?.query_map(params, |row| Ok(decode(row)))?.map(|row| row?).collect()
}

fn decode(row: &Row<'_>) -> Result<AkRecord, StoreError> {
    let (public, machine): (String, String) = (row.get(1)?, row.get(2)?);
    let (state, ek): (String, Option<String>) = (row.get(3)?, row.get(4)?);
    let public = PublicKey::from_base64(&public)
        .map_err(|error| StoreError::undecodable("attestation key", error))?;
    let machine = machine.parse().map_err(|error| StoreError::undecodable("machine id", error))?;
    let ek = ek
        .map(|ek| ek.parse())
        .transpose()
        .map_err(|error| StoreError::undecodable("fingerprint", error))?;
    let submitted_at = Timestamp::from_unix_seconds(row.get(5)?);
    let mut record = AkRecord::pending(public, machine, ek, submitted_at);
    record.source = row
        .get::<_, Option<String>>(6)?
        .map(|source| source.parse())
        .transpose()
        .map_err(|error| StoreError::undecodable("source network", error))?;
    record.state = state_of(&state).ok_or_else(|| StoreError::undecodable("key state", state))?;
    Ok(record)
}

fn state_text(state: AkState) -> &'static str {
    match state {
        AkState::Pending => "pending",
        AkState::Bound => "bound",
        AkState::Revoked => "revoked",
    }
}

fn state_of(text: &str) -> Option<AkState> {
    [AkState::Pending, AkState::Bound, AkState::Revoked]
        .into_iter()
        .find(|state| state_text(*state) == text)
}
