//! Recovery keys that machines deposited, as objects of their own kind. A key broker may create these, but
//! not Secrets, which could be tokens of other accounts.
//!
//! Earlier versions created Secrets with the same name. Those still count.

use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource as _};
use tec_core::id::MachineId;
use tec_core::port::{AuditEvent, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::KubeRegistry;
use super::error::{is_conflict, port_error};
use crate::api::RecoveryKey;

impl KubeRegistry {
    pub(super) fn recovery_keys(&self) -> Api<RecoveryKey> {
        self.objects()
    }

    /// Creates the object, which its machine owns; `None` if it exists.
    pub(super) async fn create_recovery_key(
        &self,
        (machine, number): (MachineId, u32),
        sealed: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<Option<ObjectMeta>, PortError> {
        let operation = || format!("store recovery key {number} of machine {machine}");
        let text = std::str::from_utf8(sealed.expose("the API server stores it"));
        let text = text
            .map_err(|error| PortError::new(PortErrorKind::Invalid, operation()).because(error))?;
        let mut object = RecoveryKey::of(machine, number, text);
        self.complete(&mut object.metadata, Some(line));
        if self.owner.is_none() {
            let owner = self.machine_object(&machine).await?;
            // Without an owner it would outlive the machine, and pass to the next one with this id.
            let gone = || PortError::new(PortErrorKind::NotFound, operation());
            let owner = owner.ok_or_else(gone)?.owner_ref(&());
            object.metadata.owner_references = owner.map(|owner| vec![owner]);
        }
        match self.recovery_keys().create(&PostParams::default(), &object).await {
            Ok(created) => Ok(Some(created.metadata)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(port_error(operation(), error)),
        }
    }
}

/// Returns no recovery keys if the cluster is of an earlier version, which does not serve the kind.
pub(super) fn none_if_unknown(listed: Result<(), PortError>) -> Result<(), PortError> {
    match listed {
        Err(error) if error.kind() == PortErrorKind::NotFound => Ok(()),
        listed => listed,
    }
}
