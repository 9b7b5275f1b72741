//! TPM clocks as objects: one small object for each key, swapped as a whole.

use async_trait::async_trait;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use tec_core::ak::{ClockReading, Fingerprint};
use tec_core::id::MachineId;
use tec_core::migrate::Deed;
use tec_core::port::{
    AuditEvent, AuditSink as _, ClockLog, ClockOutcome, PortError, PortErrorKind,
};

use super::error::{is_conflict, is_not_found, port_error};
use super::{ATTEMPTS, KubeRegistry};
use crate::api::{CLOCK_OF, TpmClock};

#[async_trait]
impl ClockLog for KubeRegistry {
    /// Takes two requests, and one more if the key has a different machine; for the first reading of a key, four.
    async fn advance(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        reading: &ClockReading,
    ) -> Result<ClockOutcome, PortError> {
        let what = || format!("keep the clock of the TPM of key {key}");
        let (clocks, name) = (self.clocks(), TpmClock::name_of(key));
        for _ in 0..ATTEMPTS {
            let found = clocks.get_opt(&name).await;
            let found = found.map_err(|error| port_error(what(), error))?;
            let kept = match &found {
                None => reading.after_other_keys(self.clocks_of(&machine).await?),
                Some(last) => {
                    let last = last.reading().map_err(|error| {
                        PortError::new(PortErrorKind::Invalid, what()).because(error)
                    })?;
                    match reading.succeeding(&last) {
                        Ok(kept) => kept,
                        Err(fault) => return Ok(ClockOutcome::Refused(fault)),
                    }
                }
            };
            let next = self.next_clock(key, machine, &kept, found.as_ref()).await?;
            let params = PostParams::default();
            let written = match &found {
                None => clocks.create(&params, &next).await,
                // A compare-and-swap: the object carries the version that was read.
                Some(_) => clocks.replace(&name, &params, &next).await,
            };
            match written {
                Ok(_) => return Ok(ClockOutcome::Follows),
                // Someone else was faster, or removed it.
                Err(error) if is_conflict(&error) => {}
                Err(error) if found.is_some() && is_not_found(&error) => {}
                Err(error) => return Err(port_error(what(), error)),
            }
        }
        let why = format!("{}: others were faster each time", what());
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }

    async fn last(&self, key: &Fingerprint) -> Result<Option<ClockReading>, PortError> {
        let what = || format!("read the clock of the TPM of key {key}");
        let found = self.clocks().get_opt(&TpmClock::name_of(key)).await;
        let found = found.map_err(|error| port_error(what(), error))?;
        let reading = found.map(|found| found.reading()).transpose();
        reading.map_err(|error| PortError::new(PortErrorKind::Invalid, what()).because(error))
    }

    async fn forget(&self, machine: &MachineId, line: &AuditEvent) -> Result<(), PortError> {
        let what = || format!("forget the clock of machine {machine}");
        self.permit(Deed::Admit, what).await?;
        let clocks = self.clocks();
        let listed = clocks.list_metadata(&labelled(machine)).await;
        let listed = listed.map_err(|error| port_error(what(), error))?;
        if listed.items.is_empty() {
            return Err(PortError::new(PortErrorKind::NotFound, what()));
        }
        for object in &listed.items {
            match clocks.delete(&object.name_any(), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(port_error(what(), error)),
            }
        }
        self.append(line).await
    }
}

impl KubeRegistry {
    fn clocks(&self) -> Api<TpmClock> {
        self.objects()
    }

    /// The readings of all keys of a machine.
    async fn clocks_of(&self, machine: &MachineId) -> Result<Vec<ClockReading>, PortError> {
        let what = || format!("list the clocks of machine {machine}");
        let listed = self.clocks().list(&labelled(machine)).await;
        let listed = listed.map_err(|error| port_error(what(), error))?;
        let readings = listed.items.iter().map(TpmClock::reading);
        readings
            .collect::<Result<_, _>>()
            .map_err(|error| PortError::new(PortErrorKind::Invalid, what()).because(error))
    }

    /// The object as it should be; its machine owns it.
    async fn next_clock(
        &self,
        key: &Fingerprint,
        machine: MachineId,
        kept: &ClockReading,
        found: Option<&TpmClock>,
    ) -> Result<TpmClock, PortError> {
        let mut next = TpmClock::from_core(key, machine, kept);
        if let Some(same) = found.filter(|found| found.spec.machine == next.spec.machine) {
            next.metadata = same.metadata.clone();
            return Ok(next);
        }
        let owner = self.machine_object(&machine).await?;
        let owner = owner.and_then(|owner| owner.owner_ref(&()));
        next.metadata.owner_references = owner.map(|owner| vec![owner]);
        next.metadata.resource_version = found.and_then(TpmClock::resource_version);
        Ok(next)
    }
}

fn labelled(machine: &MachineId) -> ListParams {
    ListParams::default().labels(&format!("{CLOCK_OF}={machine}"))
}
