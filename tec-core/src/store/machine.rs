//! Machines in the store.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::error::{Failure, StoreError, some_row};
use super::{Store, attempt, audit, authority, clock, platform};
use crate::ak::AkRecord;
use crate::id::MachineId;
use crate::machine::{LastBinding, Machine, MachineChange, MachineState, RegisteredBy};
use crate::migrate::Deed;
use crate::port::{
    AuditEvent, CreateOutcome, MachineRegistry, PortError, PortErrorKind, UnclaimedLimit,
};
use crate::time::Timestamp;

#[async_trait]
impl MachineRegistry for Store {
    async fn create(
        &self,
        machine: &Machine,
        limit: UnclaimedLimit,
    ) -> Result<CreateOutcome, PortError> {
        let operation = format!("register machine {}", machine.id);
        let machine = machine.clone();
        self.write(operation, move |db| create(db, &machine, limit)).await
    }

    async fn find(&self, id: &MachineId) -> Result<Option<Machine>, PortError> {
        self.read(format!("look up machine {id}"), |db| find(db, id))
    }

    async fn list(
        &self,
        after: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Machine>, PortError> {
        self.read("list machines", |db| list(db, after, limit))
    }

    async fn revoke(&self, id: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        let (text, line) = (id.to_string(), line.clone());
        self.write(format!("revoke machine {id}"), move |db| {
            authority::permit(db, Deed::ShutOut)?;
            let revoked = db
                .prepare_cached(
                    "UPDATE machine SET state = 'revoked', out_of_service = NULL WHERE id = ?1",
                )?
                .execute((&text,))?;
            some_row(revoked)?;
            Ok(audit::append(db, &line)?)
        })
        .await
    }

    async fn change(
        &self,
        id: &MachineId,
        change: MachineChange,
        line: &AuditEvent,
    ) -> Result<(), PortError> {
        let (machine, line) = (*id, line.clone());
        self.write(format!("change the state of machine {id}"), move |db| {
            change_state(db, &machine, change, &line)
        })
        .await
    }

    async fn remove(&self, id: &MachineId) -> Result<(), PortError> {
        let text = id.to_string();
        self.write(format!("remove machine {id}"), move |db| {
            authority::permit(db, Deed::Remove)?;
            remove(db, &text)
        })
        .await
    }

    async fn expire_unclaimed(&self, before: Timestamp) -> Result<u64, PortError> {
        self.write("expire unclaimed machines", move |db| expire(db, before)).await
    }
}

fn create(
    db: &Connection,
    machine: &Machine,
    limit: UnclaimedLimit,
) -> Result<CreateOutcome, Failure> {
    let id = machine.id.to_string();
    let known = db.prepare_cached("SELECT 1 FROM machine WHERE id = ?1")?.exists((&id,))?;
    if known {
        return Ok(CreateOutcome::Existed);
    }
    authority::permit(db, Deed::Admit)?;
    if machine.state == MachineState::Unclaimed
        && let UnclaimedLimit::AtMost(most) = limit
        && unclaimed(db)? >= most
    {
        return Err(Failure::Refused(PortErrorKind::Denied));
    }
    put(db, machine)?;
    Ok(CreateOutcome::Created)
}

fn change_state(
    db: &Connection,
    id: &MachineId,
    change: MachineChange,
    line: &AuditEvent,
) -> Result<(), Failure> {
    authority::permit(db, Deed::of(change))?;
    let machine = find(db, id)?.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
    let state = machine.state_after(change).ok_or(Failure::Refused(PortErrorKind::Conflict))?;
    put(db, &Machine { state, ..machine })?;
    Ok(audit::append(db, line)?)
}

/// Writes a machine, or the state and binding of an existing one; also used for machines of another
/// anchor.
pub(super) fn put(db: &Connection, machine: &Machine) -> Result<(), StoreError> {
    db.prepare_cached(
        "INSERT INTO machine VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO UPDATE \
         SET state = excluded.state, last_ak = excluded.last_ak, last_ek = excluded.last_ek, \
         out_of_service = excluded.out_of_service",
    )?
    .execute((
        machine.id.to_string(),
        registrar_text(machine.registered_by),
        machine.registered_at.unix_seconds(),
        state_texts(machine.state).0,
        machine.binding.map(|last| last.ak.to_string()),
        machine.binding.and_then(|last| last.ek).map(|ek| ek.to_string()),
        state_texts(machine.state).1,
    ))?;
    Ok(())
}

fn unclaimed(db: &Connection) -> Result<u64, StoreError> {
    let machines: i64 =
        db.prepare_cached("SELECT machines FROM unclaimed")?.query_row((), |row| row.get(0))?;
    // The table's constraint keeps it from being negative.
    Ok(machines.unsigned_abs())
}

/// Looks up a machine; also used when keys are written.
pub(super) fn find(db: &Connection, id: &MachineId) -> Result<Option<Machine>, StoreError> {
    db.prepare_cached("SELECT * FROM machine WHERE id = ?1")?
        .query_row((id.to_string(),), |row| Ok(decode(row)))
        .optional()?
        .transpose()
}

/// Machines in order; also used for other anchors.
pub(super) fn list(
    db: &Connection,
    after: Option<MachineId>,
    limit: usize,
) -> Result<Vec<Machine>, StoreError> {
    // The empty text sorts before all ids.
    let after = after.map_or_else(String::new, |id| id.to_string());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    db.prepare_cached("SELECT * FROM machine WHERE id > ?1 ORDER BY id LIMIT ?2")?
        .query_map((after, limit), |row| Ok(decode(row)))?
        .map(|row| row?)
        .collect()
}

/// Marks the machine of a bound key as claimed.
pub(super) fn activate(db: &Connection, ak: &AkRecord) -> Result<(), StoreError> {
    db.prepare_cached(
        "UPDATE machine SET state = 'active', last_ak = ?2, last_ek = ?3 WHERE id = ?1",
    )?
    .execute((
        ak.machine.to_string(),
        ak.fingerprint().to_string(),
        ak.ek.map(|ek| ek.to_string()),
    ))?;
    Ok(())
}

/// The foreign key removes its attestation keys. Also used for machines that another anchor no
/// longer has.
pub(super) fn remove(db: &Connection, id: &str) -> Result<(), Failure> {
    db.prepare_cached("DELETE FROM attempt WHERE machine IN (?1, ?2)")?
        .execute((id, attempt::unsigned_of(id)))?;
    clock::remove_of(db, id)?;
    platform::remove_of(db, id)?;
    db.prepare_cached("DELETE FROM machine WHERE id = ?1")?.execute((id,))?;
    Ok(())
}

/// An anchor that may not remove anything keeps them: the other anchor decides.
fn expire(db: &Connection, before: Timestamp) -> Result<u64, Failure> {
    if authority::read(db)?.permit(Deed::Remove).is_err() {
        return Ok(0);
    }
    let strays: Vec<String> = db
        .prepare_cached(
            "SELECT id FROM machine WHERE state = 'unclaimed' AND registered_by = 'first-boot' \
             AND registered_at < ?1",
        )?
        .query_map((before.unix_seconds(),), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    strays.iter().try_for_each(|id| remove(db, id))?;
    Ok(u64::try_from(strays.len()).unwrap_or(u64::MAX))
}

fn decode(row: &Row<'_>) -> Result<Machine, StoreError> {
    let (id, registered_by): (String, String) = (row.get(0)?, row.get(1)?);
    let (registered_at, state): (i64, String) = (row.get(2)?, row.get(3)?);
    let id = id.parse().map_err(|error| StoreError::undecodable("machine id", error))?;
    let registered_by = registrar(&registered_by)
        .ok_or_else(|| StoreError::undecodable("registrar", registered_by))?;
    let registered_at = Timestamp::from_unix_seconds(registered_at);
    let mut machine = Machine::unclaimed(id, registered_by, registered_at);
    let out_of_service: Option<String> = row.get(6)?;
    let read = state_of(&state, out_of_service.as_deref());
    machine.state = read.ok_or_else(|| StoreError::undecodable("machine state", state))?;
    let (ak, ek): (Option<String>, Option<String>) = (row.get(4)?, row.get(5)?);
    let fingerprint =
        |text: String| text.parse().map_err(|error| StoreError::undecodable("fingerprint", error));
    if let Some(ak) = ak {
        let ek = ek.map(fingerprint).transpose()?;
        machine.binding = Some(LastBinding::new(fingerprint(ak)?, ek));
    }
    Ok(machine)
}

fn registrar_text(by: RegisteredBy) -> &'static str {
    match by {
        RegisteredBy::FirstBoot => "first-boot",
        RegisteredBy::Admin => "admin",
        RegisteredBy::JoinService => "join-service",
    }
}

fn registrar(text: &str) -> Option<RegisteredBy> {
    [RegisteredBy::FirstBoot, RegisteredBy::Admin, RegisteredBy::JoinService]
        .into_iter()
        .find(|by| registrar_text(*by) == text)
}

/// The columns `state` and `out_of_service`.
fn state_texts(state: MachineState) -> (&'static str, Option<&'static str>) {
    match state {
        MachineState::Unclaimed => ("unclaimed", None),
        MachineState::Active => ("active", None),
        MachineState::Quarantined => ("revoked", Some("quarantined")),
        MachineState::Revoked => ("revoked", None),
        MachineState::Retired => ("revoked", Some("retired")),
    }
}

fn state_of(state: &str, out_of_service: Option<&str>) -> Option<MachineState> {
    use MachineState::{Active, Quarantined, Retired, Revoked, Unclaimed};
    [Unclaimed, Active, Quarantined, Revoked, Retired]
        .into_iter()
        .find(|known| state_texts(*known) == (state, out_of_service))
}
