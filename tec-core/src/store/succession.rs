//! Successors of attestation keys in the store.

use async_trait::async_trait;
use rusqlite::Connection;

use super::error::{Failure, StoreError};
use super::{Store, ak, audit, authority, machine};
use crate::ak::{AkRecord, AkState, Fingerprint, PublicKey, Successor};
use crate::id::MachineId;
use crate::machine::MachineState;
use crate::migrate::Deed;
use crate::port::{
    AkSuccession, AuditEvent, NameOutcome, PortError, PortErrorKind, PromoteOutcome,
};

#[async_trait]
impl AkSuccession for Store {
    async fn name_successor(
        &self,
        bound: &Fingerprint,
        successor: &PublicKey,
        line: &AuditEvent,
    ) -> Result<NameOutcome, PortError> {
        let (bound, successor, line) = (*bound, successor.clone(), line.clone());
        self.write(move |db| name(db, &bound, &successor, &line))
            .await
            .map_err(|failure| failure.during(format!("record the successor of key {bound}")))
    }

    async fn find_successor(&self, key: &Fingerprint) -> Result<Option<Successor>, PortError> {
        let found = self.readers.with(|db| ak::successor(db, key));
        found.map_err(|error| error.during(format!("look up successor {key}")))
    }

    async fn promote_successor(
        &self,
        key: &Fingerprint,
        line: &AuditEvent,
    ) -> Result<PromoteOutcome, PortError> {
        let (key, line) = (*key, line.clone());
        self.write(move |db| promote(db, &key, &line))
            .await
            .map_err(|failure| failure.during(format!("bind successor {key}")))
    }
}

fn name(
    db: &Connection,
    bound: &Fingerprint,
    successor: &PublicKey,
    line: &AuditEvent,
) -> Result<NameOutcome, Failure> {
    let key = successor.fingerprint();
    authority::permit(db, Deed::Admit)?;
    if !authority::read(db)?.is_alone() {
        return Err(Failure::Refused(PortErrorKind::Conflict));
    }
    let record = ak::find(db, bound)?.filter(|record| record.state == AkState::Bound);
    match record {
        Some(record) if is_active(db, &record.machine)? => {}
        _ => return Ok(NameOutcome::NotBound),
    }
    let known = ak::successor(db, &key)?;
    if known.as_ref().is_some_and(|known| known.predecessor == *bound) {
        return Ok(NameOutcome::Named);
    }
    if known.is_some() || ak::find(db, &key)?.is_some() {
        return Ok(NameOutcome::KeyTaken);
    }
    db.prepare_cached("DELETE FROM ak_successor WHERE predecessor = ?1 OR fingerprint = ?2")?
        .execute((bound.to_string(), key.to_string()))?;
    db.prepare_cached("INSERT INTO ak_successor VALUES (?1, ?2, ?3)")?.execute((
        bound.to_string(),
        key.to_string(),
        successor.to_base64(),
    ))?;
    audit::append(db, line)?;
    Ok(NameOutcome::Named)
}

fn is_active(db: &Connection, id: &MachineId) -> Result<bool, StoreError> {
    Ok(machine::find(db, id)?.is_some_and(|machine| machine.state == MachineState::Active))
}

fn promote(
    db: &Connection,
    key: &Fingerprint,
    line: &AuditEvent,
) -> Result<PromoteOutcome, Failure> {
    let Some(successor) = ak::successor(db, key)? else {
        let known = ak::find(db, key)?;
        let is_bound = known.is_some_and(|known| known.state == AkState::Bound);
        return Ok(if is_bound { PromoteOutcome::AlreadyBound } else { PromoteOutcome::Lost });
    };
    authority::permit(db, Deed::Admit)?;
    let Some(old) = ak::find(db, &successor.predecessor)? else {
        return Ok(PromoteOutcome::Lost);
    };
    if !is_active(db, &old.machine)? {
        return Ok(PromoteOutcome::Lost);
    }
    let names = (key.to_string(), successor.predecessor.to_string());
    db.prepare_cached("DELETE FROM ak_successor WHERE predecessor = ?1")?.execute((&names.1,))?;
    db.prepare_cached("UPDATE ak SET state = 'revoked' WHERE fingerprint = ?1")?
        .execute((&names.1,))?;
    let record = AkRecord { public: successor.public, ..old };
    ak::replace(db, &record)?;
    machine::activate(db, &record)?;
    for moved in [
        "UPDATE OR REPLACE tpm_clock SET ak = ?1 WHERE ak = ?2",
        "UPDATE OR REPLACE platform SET ak = ?1 WHERE ak = ?2",
    ] {
        db.prepare_cached(moved)?.execute((&names.0, &names.1))?;
    }
    audit::append(db, line)?;
    Ok(PromoteOutcome::Promoted)
}
