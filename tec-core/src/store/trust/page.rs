//! Units read, merged and written inside a transaction of the caller.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _};

use super::super::error::{Failure, StoreError};
use super::super::seal::Seal;
use super::super::{ak, audit, authority, image, machine, secret};
use crate::ak::AkState;
use crate::id::{MachineId, ResourcePath};
use crate::machine::Machine;
use crate::migrate::{
    AdoptPage, Adopted, Epoch, MachineUnit, Merged, Role, TrustUnit, UnitName, merge_image,
    merge_machine,
};
use crate::port::{AuditAction, AuditEvent};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

pub(super) fn export(
    db: &Connection,
    seal: &Seal,
    after: Option<&UnitName>,
    limit: usize,
) -> Result<Vec<TrustUnit>, StoreError> {
    // One read transaction, so that a machine and its keys are from the same moment.
    let db = db.unchecked_transaction()?;
    let (images, after) = match after {
        Some(UnitName::Machine(id)) => (Vec::new(), Some(*id)),
        Some(UnitName::Image(name)) => (image::page(&db, Some(name), limit)?, None),
        None => (image::page(&db, None, limit)?, None),
    };
    let left = limit.saturating_sub(images.len());
    let mut units: Vec<_> = images.into_iter().map(TrustUnit::Image).collect();
    for machine in machine::list(&db, after, left)? {
        units.push(TrustUnit::Machine(complete(&db, seal, machine)?));
    }
    Ok(units)
}

fn complete(db: &Connection, seal: &Seal, machine: Machine) -> Result<MachineUnit, StoreError> {
    let path = ResourcePath::luks_root(&machine.id);
    let sealed = secret::find(db, &path)?;
    let secret = sealed.map(|sealed| seal.unseal_secret(&path, &sealed)).transpose()?;
    let keys = ak::list(db, Some(machine.id))?;
    let escrows = escrows(db, seal, &machine.id)?;
    Ok(MachineUnit::new(machine, keys, secret).with_escrows(escrows))
}

fn escrows(
    db: &Connection,
    seal: &Seal,
    id: &MachineId,
) -> Result<BTreeMap<u32, SecretBytes>, StoreError> {
    let mut found = BTreeMap::new();
    for number in secret::recovery_numbers(db, id)? {
        let path = ResourcePath::recovery(id, number);
        if let Some(sealed) = secret::find(db, &path)? {
            found.insert(number, seal.unseal_secret(&path, &sealed)?);
        }
    }
    Ok(found)
}

/// A unit merged with what exists here.
pub(super) struct Met {
    pub(super) existed: bool,
    pub(super) merged: Merged<TrustUnit>,
}

pub(super) fn meet(db: &Connection, seal: &Seal, comes: &TrustUnit) -> Result<Met, StoreError> {
    match comes {
        TrustUnit::Image(image) => {
            let here = image::find(db, &image.name)?;
            let adopted = is_adopted(db, &comes.name())?;
            let merged = merge_image(here.as_ref(), image, adopted).map(TrustUnit::Image);
            let existed = here.is_some();
            Ok(Met { existed, merged })
        }
        TrustUnit::Machine(unit) => {
            let here = machine::find(db, &unit.machine.id)?;
            let here = here.map(|here| complete(db, seal, here)).transpose()?;
            let mut known = Vec::new();
            for key in &unit.keys {
                known.extend(ak::find(db, &key.fingerprint())?);
            }
            let merged = merge_machine(here.as_ref(), unit, &known).map(TrustUnit::Machine);
            let existed = here.is_some();
            Ok(Met { existed, merged })
        }
    }
}

pub(super) fn adopt(
    db: &Connection,
    seal: &Seal,
    page: &AdoptPage,
) -> Result<Vec<Adopted>, Failure> {
    let authority = authority::read(db)?;
    let admitted = authority.admits(page.intake);
    admitted.map_err(Failure::NotNow)?;
    prune(db, page, authority.role())?;
    let mut adopted = Vec::with_capacity(page.units.len());
    for unit in page.units.iter() {
        let met = meet(db, seal, unit)?;
        let outcome = Adopted::of(&met.merged, met.existed);
        if let Merged::Write(merged) = met.merged {
            let name = unit.name();
            write(db, seal, merged)?;
            note(db, AuditAction::TrustAdopted, &name, page.at)?;
            if outcome == Adopted::Created {
                remember(db, &name)?;
            }
        }
        adopted.push(outcome);
    }
    let last = page.units.last().map(TrustUnit::name);
    keep_progress(db, page.intake.epoch(), last.filter(|_| page.more).as_ref())?;
    Ok(adopted)
}

fn write(db: &Connection, seal: &Seal, unit: TrustUnit) -> Result<(), StoreError> {
    match unit {
        TrustUnit::Image(image) => image::put(db, &image),
        TrustUnit::Machine(unit) => {
            machine::put(db, &unit.machine)?;
            // Ends old bindings first: a machine has one bound key at any moment.
            let (bound, others): (Vec<_>, Vec<_>) =
                unit.keys.iter().partition(|key| key.state == AkState::Bound);
            for key in others.into_iter().chain(bound) {
                ak::replace(db, key)?;
            }
            let id = &unit.machine.id;
            let disk = unit.secret.iter();
            let disk = disk.map(|key| (ResourcePath::luks_root(id), key));
            let recovery = unit.escrows.iter();
            let recovery = recovery.map(|(number, key)| (ResourcePath::recovery(id, *number), key));
            for (path, key) in disk.chain(recovery) {
                let sealed = seal.seal_secret(&path, key)?;
                // If there is one, the merge has established that it is this one.
                secret::insert(db, path.as_str(), &sealed)?;
            }
            Ok(())
        }
    }
}

/// Removes what the page covers but does not hold; see the contract of the port.
fn prune(db: &Connection, page: &AdoptPage, role: Role) -> Result<(), Failure> {
    let stays = page.names();
    for name in within(db, role, page)? {
        if stays.contains(&name) {
            continue;
        }
        match &name {
            UnitName::Image(image) => {
                db.prepare_cached("DELETE FROM image WHERE name = ?1")?
                    .execute((image.as_str(),))?;
            }
            UnitName::Machine(id) => {
                machine::remove(db, &id.to_string())?;
                secret::delete_disk_keys(db, id)?;
                for number in secret::recovery_numbers(db, id)? {
                    secret::delete(db, ResourcePath::recovery(id, number).as_str())?;
                }
            }
        }
        forget(db, &name)?;
        note(db, AuditAction::TrustPruned, &name, page.at)?;
    }
    Ok(())
}

fn note(
    db: &Connection,
    action: AuditAction,
    name: &UnitName,
    at: Timestamp,
) -> Result<(), StoreError> {
    let machine = match name {
        UnitName::Machine(id) => Some(*id),
        UnitName::Image(_) => None,
    };
    audit::append(db, &AuditEvent::new(at, action, machine, name.to_string()))
}

/// A unit's name as text, with the same sort order.
fn text(name: &UnitName) -> String {
    match name {
        UnitName::Image(name) => format!("{IMAGE}{name}"),
        UnitName::Machine(id) => format!("{MACHINE}{id}"),
    }
}

const IMAGE: &str = "image/";
const MACHINE: &str = "machine/";
/// Sorts after the text of every name.
const END: &str = "~";

fn name(text: &str) -> Result<UnitName, StoreError> {
    let unknown = || StoreError::undecodable("name of a unit", text);
    if let Some(image) = text.strip_prefix(IMAGE) {
        return image.parse().map(UnitName::Image).map_err(|_| unknown());
    }
    let id = text.strip_prefix(MACHINE).ok_or_else(unknown)?;
    id.parse().map(UnitName::Machine).map_err(|_| unknown())
}

/// The units that the page covers and may remove: on standby those that came from the other anchor, in
/// serve-only mode all.
fn within(db: &Connection, role: Role, page: &AdoptPage) -> Result<Vec<UnitName>, StoreError> {
    let sql = match role {
        Role::ServeOnly => {
            "SELECT unit FROM (SELECT 'image/' || name AS unit FROM image \
             UNION ALL SELECT 'machine/' || id FROM machine) WHERE unit > ?1 AND unit <= ?2"
        }
        _ => "SELECT unit FROM adopted WHERE unit > ?1 AND unit <= ?2",
    };
    let after = page.after.as_ref().map_or_else(String::new, text);
    let last = page.units.last().filter(|_| page.more);
    let last = last.map_or_else(|| END.to_owned(), |unit| text(&unit.name()));
    db.prepare_cached(sql)?
        .query_map((after, last), |row| row.get::<_, String>(0))?
        .map(|unit| name(&unit?))
        .collect()
}

fn is_adopted(db: &Connection, name: &UnitName) -> Result<bool, StoreError> {
    let adopted =
        db.prepare_cached("SELECT 1 FROM adopted WHERE unit = ?1")?.exists((text(name),))?;
    Ok(adopted)
}

fn remember(db: &Connection, name: &UnitName) -> Result<(), StoreError> {
    db.prepare_cached("INSERT INTO adopted VALUES (?1) ON CONFLICT DO NOTHING")?
        .execute((text(name),))?;
    Ok(())
}

fn forget(db: &Connection, name: &UnitName) -> Result<(), StoreError> {
    db.prepare_cached("DELETE FROM adopted WHERE unit = ?1")?.execute((text(name),))?;
    Ok(())
}

/// Stores where the pass continues; nothing once it is complete.
fn keep_progress(db: &Connection, epoch: Epoch, at: Option<&UnitName>) -> Result<(), StoreError> {
    db.prepare_cached("DELETE FROM progress")?.execute(())?;
    if let Some(name) = at {
        db.prepare_cached("INSERT INTO progress VALUES (1, ?1, ?2)")?
            .execute((epoch.number().cast_signed(), text(name)))?;
    }
    Ok(())
}

pub(super) fn progress(db: &Connection, epoch: Epoch) -> Result<Option<UnitName>, StoreError> {
    let unit: Option<String> = db
        .prepare_cached("SELECT unit FROM progress WHERE epoch = ?1")?
        .query_row((epoch.number().cast_signed(),), |row| row.get(0))
        .optional()?;
    unit.as_deref().map(name).transpose()
}
