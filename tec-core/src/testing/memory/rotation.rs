//! Rotation of disk keys in memory.

use async_trait::async_trait;

use super::{MemoryRegistry, State};
use crate::id::{MachineId, ResourcePath};
use crate::machine::MachineState;
use crate::migrate::Deed;
use crate::port::{AuditEvent, BeginOutcome, CancelOutcome, DiskKeys, PortError, PortErrorKind};
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};
use crate::secret::SecretBytes;

#[async_trait]
impl DiskKeys for MemoryRegistry {
    async fn rotation(&self, machine: &MachineId) -> Result<Option<Keys<KeyMark>>, PortError> {
        Ok(kept(&self.0.lock(), machine))
    }

    async fn begin(
        &self,
        machine: &MachineId,
        pending: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<BeginOutcome, PortError> {
        let operation = format!("begin a rotation of the disk key of machine {machine}");
        let mut state = self.0.lock();
        state.permit(Deed::Admit, operation.clone())?;
        if !state.authority().is_alone() {
            return Err(PortError::new(PortErrorKind::Conflict, operation));
        }
        let active = state.machines.get(machine).map(|machine| machine.state);
        let keys = kept(&state, machine).filter(|_| active == Some(MachineState::Active));
        let keys = keys.ok_or_else(|| PortError::new(PortErrorKind::NotFound, operation))?;
        let mark = KeyMark::of(pending);
        if let Err(keys) = keys.begin(mark) {
            return Ok(BeginOutcome::UnderWay(keys));
        }
        let copy = pending.duplicate("the store keeps it");
        state.secrets.insert(ResourcePath::luks_pending(machine), copy);
        state.events.push(line.clone());
        Ok(BeginOutcome::Begun(mark))
    }

    async fn confirm(
        &self,
        machine: &MachineId,
        confirmation: Confirmation,
        key: &KeyMark,
        line: &AuditEvent,
    ) -> Result<Confirmed<KeyMark>, PortError> {
        let operation = format!("confirm a disk key of machine {machine}");
        let mut state = self.0.lock();
        state.permit(Deed::Admit, operation.clone())?;
        let keys = kept(&state, machine);
        let keys = keys.ok_or_else(|| PortError::new(PortErrorKind::NotFound, operation))?;
        let confirmed = keys.confirm(confirmation, key);
        let Confirmed::Changed(next) = &confirmed else {
            return Ok(confirmed);
        };
        let [root, pending, previous] =
            [ResourcePath::luks_root, ResourcePath::luks_pending, ResourcePath::luks_previous]
                .map(|path| path(machine));
        if next.is_settled() {
            state.secrets.remove(&previous);
        } else {
            for (from, to) in [(&root, previous), (&pending, root.clone())] {
                if let Some(key) = state.secrets.remove(from) {
                    state.secrets.insert(to, key);
                }
            }
        }
        state.events.push(line.clone());
        Ok(confirmed)
    }

    async fn cancel(
        &self,
        machine: &MachineId,
        forget: Forget,
        line: &AuditEvent,
    ) -> Result<CancelOutcome, PortError> {
        let operation = format!("cancel the rotation of the disk key of machine {machine}");
        let mut state = self.0.lock();
        state.permit(Deed::Admit, operation.clone())?;
        let keys = kept(&state, machine);
        let keys = keys.ok_or_else(|| PortError::new(PortErrorKind::NotFound, operation))?;
        let keys = match keys.cancel(forget) {
            Ok(keys) => keys,
            Err(unchanged) => return Ok(CancelOutcome::Unchanged(unchanged)),
        };
        let forgotten = match forget {
            Forget::Pending => ResourcePath::luks_pending(machine),
            Forget::DangerouslyPrevious => ResourcePath::luks_previous(machine),
        };
        state.secrets.remove(&forgotten);
        state.events.push(line.clone());
        Ok(CancelOutcome::Canceled(keys))
    }
}

fn kept(state: &State, id: &MachineId) -> Option<Keys<KeyMark>> {
    let mark = |path: ResourcePath| state.secrets.get(&path).map(KeyMark::of);
    let current = mark(ResourcePath::luks_root(id))?;
    let (pending, previous) =
        (mark(ResourcePath::luks_pending(id)), mark(ResourcePath::luks_previous(id)));
    Some(match (pending, previous) {
        (Some(pending), _) => Keys::Pending { current, pending },
        (None, Some(previous)) => Keys::Promoted { current, previous },
        (None, None) => Keys::Settled { current },
    })
}
