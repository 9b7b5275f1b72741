//! Sealed disk keys in the store.

use async_trait::async_trait;
use rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER;
use rusqlite::{Connection, OptionalExtension as _};

use super::error::{Failure, StoreError};
use super::seal::{self, Sealed};
use super::{Store, audit, authority};
use crate::id::{MachineId, ResourcePath};
use crate::migrate::Deed;
use crate::port::{AuditEvent, PortError, PutOutcome, SecretStore};
use crate::secret::SecretBytes;

#[async_trait]
impl SecretStore for Store {
    async fn put_new(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<PutOutcome, PortError> {
        let operation = || format!("store the secret at {path}");
        let sealed =
            self.seal.seal_secret(path, secret).map_err(|error| error.during(operation()))?;
        let (name, line) = (path.as_str().to_owned(), line.clone());
        self.write(operation(), move |db| put_new(db, &name, &sealed, &line)).await
    }

    async fn find(&self, path: &ResourcePath) -> Result<Option<SecretBytes>, PortError> {
        let operation = || format!("read the secret at {path}");
        let sealed = self.read(operation(), |db| -> Result<_, Failure> {
            authority::permit(db, Deed::Release)?;
            Ok(find(db, path)?)
        })?;
        sealed
            .map(|sealed| self.seal.unseal_secret(path, &sealed))
            .transpose()
            .map_err(|error| error.during(operation()))
    }

    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError> {
        self.read(format!("look for the secret at {path}"), |db| exists(db, path))
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        let own = path.clone();
        self.write(format!("remove the secret at {path}"), move |db| {
            authority::permit(db, Deed::Remove)?;
            match own.machine() {
                Some(machine) => Ok(delete_disk_keys(db, &machine)?),
                None => Ok(delete(db, own.as_str())?),
            }
        })
        .await
    }
}

fn put_new(
    db: &Connection,
    path: &str,
    sealed: &Sealed,
    line: &AuditEvent,
) -> Result<PutOutcome, Failure> {
    if !insert(db, path, sealed)? {
        return Ok(PutOutcome::Existed);
    }
    // A refusal rolls back the row.
    authority::permit(db, Deed::Admit)?;
    audit::append(db, line)?;
    Ok(PutOutcome::Stored)
}

/// Stores a secret unless there is one, and returns whether it did; also used for secrets of another anchor.
/// Refuses what another seal key sealed.
pub(super) fn insert(db: &Connection, path: &str, sealed: &Sealed) -> Result<bool, StoreError> {
    let inserted = db
        .prepare_cached("INSERT INTO secret VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING")?
        .execute((path, &sealed.bytes, sealed.number))
        .map_err(|error| match error.sqlite_error() {
            // The only trigger that refuses a secret.
            Some(cause) if cause.extended_code == SQLITE_CONSTRAINT_TRIGGER => seal::replaced(),
            _ => error.into(),
        })?;
    Ok(inserted > 0)
}

/// Removes a sealed secret; also used for secrets that another anchor no longer has.
pub(super) fn delete(db: &Connection, path: &str) -> Result<(), StoreError> {
    db.prepare_cached("DELETE FROM secret WHERE path = ?1")?.execute((path,))?;
    Ok(())
}

/// Removes the disk key of a machine with those of a rotation: nothing may outlive the machine.
pub(super) fn delete_disk_keys(db: &Connection, id: &MachineId) -> Result<(), StoreError> {
    let paths = [ResourcePath::luks_pending, ResourcePath::luks_previous, ResourcePath::luks_root];
    paths.iter().try_for_each(|path| delete(db, path(id).as_str()))
}

/// Reads a sealed secret; also used for other anchors.
pub(super) fn find(db: &Connection, path: &ResourcePath) -> Result<Option<Sealed>, StoreError> {
    let sealed = db
        .prepare_cached("SELECT sealed, seal FROM secret WHERE path = ?1")?
        .query_row((path.as_str(),), |row| Ok(Sealed { bytes: row.get(0)?, number: row.get(1)? }))
        .optional()?;
    Ok(sealed)
}

/// The numbers of the recovery keys that a machine deposited.
pub(super) fn recovery_numbers(db: &Connection, id: &MachineId) -> Result<Vec<u32>, StoreError> {
    // '.' sorts directly after '-'.
    let range = (format!("default/{id}/recovery-"), format!("default/{id}/recovery."));
    db.prepare_cached("SELECT path FROM secret WHERE path > ?1 AND path < ?2")?
        .query_map(range, |row| row.get::<_, String>(0))?
        .map(|path| {
            let path = path?;
            let parsed = path.parse::<ResourcePath>().ok();
            let number = parsed.and_then(|path| Some(path.recovery_of()?.1));
            number.ok_or_else(|| StoreError::undecodable("path of a recovery key", path))
        })
        .collect()
}

fn exists(db: &Connection, path: &ResourcePath) -> Result<bool, StoreError> {
    let found =
        db.prepare_cached("SELECT 1 FROM secret WHERE path = ?1")?.exists((path.as_str(),))?;
    Ok(found)
}
