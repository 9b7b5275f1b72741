//! The platforms of machines, as JSON. Machines of one model share the stored firmware.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};
use serde::Serialize;

use super::error::{Failure, StoreError};
use super::{Store, audit, authority};
use crate::ak::Fingerprint;
use crate::digest::Sha256Digest;
use crate::id::MachineId;
use crate::migrate::Deed;
use crate::platform::{Firmware, Platform};
use crate::port::{
    AuditEvent, PlatformEntry, PlatformLog, PlatformOutcome, PlatformRecord, PortError,
    PortErrorKind,
};
use crate::time::Timestamp;

#[async_trait]
impl PlatformLog for Store {
    async fn admit(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        seen: &Platform,
        at: Timestamp,
    ) -> Result<PlatformOutcome, PortError> {
        let (name, seen) = (key.to_string(), seen.clone());
        self.write(format!("record the platform of key {key}"), move |db| {
            Ok(admit(db, &name, machine, &seen, at)?)
        })
        .await
    }

    async fn find(&self, key: &Fingerprint) -> Result<Option<PlatformRecord>, PortError> {
        let operation = format!("look up the platform of key {key}");
        self.read(operation, |db| find(db, &key.to_string()))
    }

    async fn list(&self) -> Result<Vec<PlatformEntry>, PortError> {
        self.read("list platforms", list)
    }

    async fn approve(
        &self,
        key: &Fingerprint,
        seen: &Platform,
        line: &AuditEvent,
    ) -> Result<Vec<MachineId>, PortError> {
        let (name, seen, line) = (key.to_string(), seen.clone(), line.clone());
        self.write(format!("approve the platform of key {key}"), move |db| {
            approve(db, &name, &seen, &line)
        })
        .await
    }
}

fn admit(
    db: &Connection,
    key: &str,
    machine: MachineId,
    seen: &Platform,
    at: Timestamp,
) -> Result<PlatformOutcome, StoreError> {
    let of_machine = machine.to_string();
    let known = match find(db, key)? {
        None => last_of(db, &of_machine)?,
        known => known,
    };
    let (record, outcome) = match known {
        None => (PlatformRecord::first(machine, seen), PlatformOutcome::Recorded),
        Some(record) => record.after(seen, at),
    };
    let former = parts_of(db, &of_machine)?;
    db.prepare_cached("DELETE FROM platform WHERE machine = ?1 AND ak <> ?2")?
        .execute((&of_machine, key))?;
    write(db, key, machine, &record)?;
    sweep(db, &former)?;
    Ok(outcome)
}

/// Writes the record of a key, and removes the parts that only its last one referred to.
fn write(
    db: &Connection,
    key: &str,
    machine: MachineId,
    record: &PlatformRecord,
) -> Result<(), StoreError> {
    let former = parts_of(db, key)?;
    let of = |platform: &Platform| -> Result<_, StoreError> {
        let Platform { firmware, recorded, boots } = platform;
        let rest = if boots.is_empty() { put(db, recorded)? } else { put(db, &(recorded, boots))? };
        Ok((put(db, firmware)?, rest))
    };
    let (baseline, last) = (of(&record.baseline)?, of(&record.seen)?);
    db.prepare_cached("INSERT OR REPLACE INTO platform VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
        .execute((
            key,
            machine.to_string(),
            baseline.0,
            baseline.1,
            last.0,
            last.1,
            record.refused_at.map(Timestamp::unix_seconds),
        ))?;
    sweep(db, &former)
}

/// What is recorded for the last key of a machine.
fn last_of(db: &Connection, machine: &str) -> Result<Option<PlatformRecord>, StoreError> {
    // Stores of earlier versions have one record for each key that the machine had.
    let key: Option<String> = db
        .prepare_cached(
            "SELECT platform.ak FROM platform LEFT JOIN ak ON ak.fingerprint = platform.ak \
             WHERE platform.machine = ?1 ORDER BY ak.submitted_at DESC LIMIT 1",
        )?
        .query_row((machine,), |row| row.get(0))
        .optional()?;
    key.map_or(Ok(None), |key| find(db, &key))
}

/// Stores a part under the digest of its content, and returns the digest.
fn put(db: &Connection, part: &impl Serialize) -> Result<String, StoreError> {
    let body = serde_json::to_string(part).map_err(undecodable)?;
    let id = Sha256Digest::of(&body).to_string();
    db.prepare_cached("INSERT INTO platform_part VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
        .execute((&id, body))?;
    Ok(id)
}

fn body(db: &Connection, id: &str) -> Result<String, StoreError> {
    let mut select = db.prepare_cached("SELECT body FROM platform_part WHERE id = ?1")?;
    Ok(select.query_row((id,), |row| row.get(0))?)
}

fn firmware(db: &Connection, id: &str) -> Result<Firmware, StoreError> {
    serde_json::from_str(&body(db, id)?).map_err(undecodable)
}

/// A platform from its two parts. The second has no boots in the form of earlier versions.
fn platform(db: &Connection, id: &str, rest: &str) -> Result<Platform, StoreError> {
    let (mut platform, rest) = (Platform::new(firmware(db, id)?, BTreeMap::new()), body(db, rest)?);
    if rest.starts_with('{') {
        platform.recorded = serde_json::from_str(&rest).map_err(undecodable)?;
    } else {
        (platform.recorded, platform.boots) = serde_json::from_str(&rest).map_err(undecodable)?;
    }
    Ok(platform)
}

/// Removes those of `parts` that nothing refers to anymore, and the approvals of baselines that no key has.
fn sweep(db: &Connection, parts: &[String]) -> Result<(), StoreError> {
    let mut parts = parts.to_vec();
    for id in parts.clone() {
        let after: Vec<String> = db
            .prepare_cached(
                "DELETE FROM platform_approval WHERE before = ?1 AND \
                 NOT EXISTS (SELECT 1 FROM platform WHERE baseline = ?1) RETURNING after",
            )?
            .query_map((id,), |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        parts.extend(after);
    }
    let mut remove = db.prepare_cached(
        "DELETE FROM platform_part WHERE id = ?1 AND \
         NOT EXISTS (SELECT 1 FROM platform WHERE baseline = ?1) AND \
         NOT EXISTS (SELECT 1 FROM platform WHERE baseline_recorded = ?1) AND \
         NOT EXISTS (SELECT 1 FROM platform WHERE seen = ?1) AND \
         NOT EXISTS (SELECT 1 FROM platform WHERE seen_recorded = ?1) AND \
         NOT EXISTS (SELECT 1 FROM platform_approval WHERE after = ?1)",
    )?;
    for id in parts {
        remove.execute((id,))?;
    }
    Ok(())
}

/// The parts that the keys of a machine, or one key, refer to.
fn parts_of(db: &Connection, name: &str) -> Result<Vec<String>, StoreError> {
    let rows: Vec<[String; 4]> = db
        .prepare_cached(
            "SELECT baseline, baseline_recorded, seen, seen_recorded FROM platform \
             WHERE ak = ?1 OR machine = ?1",
        )?
        .query_map((name,), |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?
        .collect::<Result<_, _>>()?;
    Ok(rows.into_iter().flatten().collect())
}

fn find(db: &Connection, key: &str) -> Result<Option<PlatformRecord>, StoreError> {
    type Row = (String, [String; 4], Option<i64>);
    let found: Option<Row> = db
        .prepare_cached("SELECT * FROM platform WHERE ak = ?1")?
        .query_row((key,), |row| {
            let parts = [row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?];
            Ok((row.get(1)?, parts, row.get(6)?))
        })
        .optional()?;
    let Some((machine, [baseline, baseline_recorded, seen, seen_recorded], refused)) = found else {
        return Ok(None);
    };
    let machine = machine.parse().map_err(undecodable)?;
    let mut record = PlatformRecord::first(machine, &platform(db, &baseline, &baseline_recorded)?);
    record.seen = platform(db, &seen, &seen_recorded)?;
    record.refused_at = refused.map(Timestamp::from_unix_seconds);
    record.approved = approved(db, &baseline)?;
    Ok(Some(record))
}

fn approved(db: &Connection, baseline: &str) -> Result<Vec<Firmware>, StoreError> {
    let ids: Vec<String> = db
        .prepare_cached("SELECT after FROM platform_approval WHERE before = ?1")?
        .query_map((baseline,), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    ids.iter().map(|id| firmware(db, id)).collect()
}

fn list(db: &Connection) -> Result<Vec<PlatformEntry>, StoreError> {
    type Row = ([String; 4], Option<i64>);
    let rows: Vec<Row> = db
        .prepare_cached(
            "SELECT machine, ak, baseline, seen, refused_at FROM platform ORDER BY machine, ak",
        )?
        .query_map((), |row| {
            Ok(([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?], row.get(4)?))
        })?
        .collect::<Result<_, _>>()?;
    let entry = |([machine, key, baseline, seen], refused): Row| {
        Ok(PlatformEntry::new(
            (machine.parse().map_err(undecodable)?, key.parse().map_err(undecodable)?),
            baseline.parse().map_err(undecodable)?,
            seen.parse().map_err(undecodable)?,
            refused.map(Timestamp::from_unix_seconds),
        ))
    };
    rows.into_iter().map(entry).collect()
}

fn approve(
    db: &Connection,
    key: &str,
    seen: &Platform,
    line: &AuditEvent,
) -> Result<Vec<MachineId>, Failure> {
    authority::permit(db, Deed::Admit)?;
    let record = find(db, key)?.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
    let record = record.approved(seen).ok_or(Failure::Refused(PortErrorKind::Conflict))?;
    write(db, key, record.machine, &record)?;
    let mut machines = vec![record.machine];
    if record.has_other_firmware() {
        machines = approve_firmware(db, &record.baseline.firmware, &seen.firmware)?;
    }
    audit::append(db, line)?;
    Ok(machines)
}

/// Approves a change for all machines with the same baseline, and returns them.
fn approve_firmware(
    db: &Connection,
    before: &Firmware,
    after: &Firmware,
) -> Result<Vec<MachineId>, StoreError> {
    let (before, after) = (put(db, before)?, put(db, after)?);
    db.prepare_cached("INSERT INTO platform_approval VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
        .execute((&before, &after))?;
    let names = |sql: &str, of: &[&String]| -> Result<Vec<String>, StoreError> {
        let mut select = db.prepare_cached(sql)?;
        let rows = select.query_map(rusqlite::params_from_iter(of), |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    };
    let showed = "SELECT ak FROM platform \
                  WHERE baseline = ?1 AND seen = ?2 AND refused_at IS NOT NULL";
    let accept = "UPDATE platform SET refused_at = NULL WHERE ak = ?1";
    for key in names(showed, &[&before, &after])? {
        // It may still be refused for what it showed of its image.
        if find(db, &key)?.is_some_and(|record| record.settled().refused_at.is_none()) {
            db.prepare_cached(accept)?.execute((key,))?;
        }
    }
    let sharing = "SELECT DISTINCT machine FROM platform WHERE baseline = ?1 ORDER BY 1";
    let parse = |machine: String| machine.parse().map_err(undecodable);
    names(sharing, &[&before])?.into_iter().map(parse).collect()
}

/// Removes the platforms of a machine.
pub(super) fn remove_of(db: &Connection, machine: &str) -> Result<(), StoreError> {
    let former = parts_of(db, machine)?;
    db.prepare_cached("DELETE FROM platform WHERE machine = ?1")?.execute((machine,))?;
    sweep(db, &former)
}

fn undecodable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::undecodable("platform", error)
}
