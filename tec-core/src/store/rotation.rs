//! Rotation of disk keys: which of the sealed keys of a machine is which.
//!
//! The state is what is stored: a pending key, a previous key, or neither, next to the current one.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _};

use super::error::{Failure, StoreError};
use super::seal::Seal;
use super::{Store, audit, authority, machine, secret};
use crate::id::{MachineId, ResourcePath};
use crate::machine::MachineState;
use crate::migrate::Deed;
use crate::port::{AuditEvent, BeginOutcome, CancelOutcome, DiskKeys, PortError, PortErrorKind};
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};
use crate::secret::SecretBytes;

#[async_trait]
impl DiskKeys for Store {
    async fn rotation(&self, machine: &MachineId) -> Result<Option<Keys<KeyMark>>, PortError> {
        self.read(format!("read the disk keys of machine {machine}"), |db| {
            // One read transaction, so that no promotion comes between the keys.
            let db = db.unchecked_transaction()?;
            kept(&db, &self.seal, machine)
        })
    }

    async fn begin(
        &self,
        machine: &MachineId,
        pending: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<BeginOutcome, PortError> {
        let operation = || format!("begin a rotation of the disk key of machine {machine}");
        let path = ResourcePath::luks_pending(machine);
        let sealed =
            self.seal.seal_secret(&path, pending).map_err(|error| error.during(operation()))?;
        let (id, mark, line) = (*machine, KeyMark::of(pending), line.clone());
        let seal = Arc::clone(&self.seal);
        self.write(operation(), move |db| {
            authority::permit(db, Deed::Admit)?;
            if !authority::read(db)?.is_alone() {
                // The other anchor of a migration would keep the old key.
                return Err(Failure::Refused(PortErrorKind::Conflict));
            }
            let active = machine::find(db, &id)?.map(|machine| machine.state);
            let keys = kept(db, &seal, &id)?.filter(|_| active == Some(MachineState::Active));
            let keys = keys.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
            if let Err(keys) = keys.begin(mark) {
                return Ok(BeginOutcome::UnderWay(keys));
            }
            secret::insert(db, path.as_str(), &sealed)?;
            audit::append(db, &line)?;
            Ok(BeginOutcome::Begun(mark))
        })
        .await
    }

    async fn confirm(
        &self,
        machine: &MachineId,
        confirmation: Confirmation,
        key: &KeyMark,
        line: &AuditEvent,
    ) -> Result<Confirmed<KeyMark>, PortError> {
        let (id, key, line) = (*machine, *key, line.clone());
        let seal = Arc::clone(&self.seal);
        self.write(format!("confirm a disk key of machine {machine}"), move |db| {
            authority::permit(db, Deed::Admit)?;
            let keys = kept(db, &seal, &id)?;
            let keys = keys.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
            let confirmed = keys.confirm(confirmation, &key);
            let Confirmed::Changed(next) = &confirmed else {
                return Ok(confirmed);
            };
            match next {
                Keys::Promoted { .. } => promote(db, &seal, &id)?,
                Keys::Settled { .. } => {
                    secret::delete(db, ResourcePath::luks_previous(&id).as_str())?;
                }
                Keys::Pending { .. } => {}
            }
            audit::append(db, &line)?;
            Ok(confirmed)
        })
        .await
    }

    async fn cancel(
        &self,
        machine: &MachineId,
        forget: Forget,
        line: &AuditEvent,
    ) -> Result<CancelOutcome, PortError> {
        let (id, line) = (*machine, line.clone());
        let seal = Arc::clone(&self.seal);
        self.write(format!("cancel the rotation of the disk key of machine {machine}"), move |db| {
            authority::permit(db, Deed::Admit)?;
            let keys = kept(db, &seal, &id)?;
            let keys = keys.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
            let keys = match keys.cancel(forget) {
                Ok(keys) => keys,
                Err(unchanged) => return Ok(CancelOutcome::Unchanged(unchanged)),
            };
            let forgotten = match forget {
                Forget::Pending => ResourcePath::luks_pending(&id),
                Forget::DangerouslyPrevious => ResourcePath::luks_previous(&id),
            };
            secret::delete(db, forgotten.as_str())?;
            audit::append(db, &line)?;
            Ok(CancelOutcome::Canceled(keys))
        })
        .await
    }
}

/// The keys of a machine, by their marks.
fn kept(db: &Connection, seal: &Seal, id: &MachineId) -> Result<Option<Keys<KeyMark>>, StoreError> {
    let mark = |path: ResourcePath| -> Result<Option<KeyMark>, StoreError> {
        Ok(unsealed(db, seal, &path)?.as_ref().map(KeyMark::of))
    };
    let Some(current) = mark(ResourcePath::luks_root(id))? else {
        return Ok(None);
    };
    let (pending, previous) =
        (mark(ResourcePath::luks_pending(id))?, mark(ResourcePath::luks_previous(id))?);
    match (pending, previous) {
        (None, None) => Ok(Some(Keys::Settled { current })),
        (Some(pending), None) => Ok(Some(Keys::Pending { current, pending })),
        (None, Some(previous)) => Ok(Some(Keys::Promoted { current, previous })),
        (Some(_), Some(_)) => {
            let what = format!("machine {id} has both a pending and a previous disk key");
            Err(StoreError::corrupt(what))
        }
    }
}

/// The pending key becomes the current one, which becomes the previous one. Keys are sealed to their path.
fn promote(db: &Connection, seal: &Seal, id: &MachineId) -> Result<(), StoreError> {
    let [root, pending, previous] =
        [ResourcePath::luks_root, ResourcePath::luks_pending, ResourcePath::luks_previous]
            .map(|path| path(id));
    for (from, to) in [(&root, &previous), (&pending, &root)] {
        if let Some(key) = unsealed(db, seal, from)? {
            secret::delete(db, from.as_str())?;
            secret::insert(db, to.as_str(), &seal.seal_secret(to, &key)?)?;
        }
    }
    Ok(())
}

fn unsealed(
    db: &Connection,
    seal: &Seal,
    path: &ResourcePath,
) -> Result<Option<SecretBytes>, StoreError> {
    let sealed = secret::find(db, path)?;
    sealed.map(|sealed| seal.unseal_secret(path, &sealed)).transpose()
}

/// A machine whose disk key is being rotated. The condition is that of the index `secret_rotating`.
pub(super) const ROTATING: &str = "SELECT substr(path, 9, 36) FROM secret \
    WHERE substr(path, 45) IN ('/pending', '/previous') LIMIT 1";

/// Refuses while the disk key of any machine is being rotated: a copy of the store without the pending and
/// previous keys could lose the only one that opens a disk.
pub(super) fn settled(db: &Connection) -> Result<(), Failure> {
    let found: Option<String> =
        db.prepare_cached(ROTATING)?.query_row((), |row| row.get(0)).optional()?;
    match found {
        None => Ok(()),
        Some(machine) => Err(Failure::RotationUnderWay { machine }),
    }
}
