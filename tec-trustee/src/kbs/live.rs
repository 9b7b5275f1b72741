//! A backend over the registries: nothing is pushed, everything is read when it is needed.
//!
//! ```text
//! admit ─── the registries ─► flow::admit ─► AttemptLog, AuditSink
//! policies ◄── reference values from that same look
//! release ─ the same registries again ─► flow::release ─► audit line, then the key
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tec_core::ak::{AkRecord, AkState};
use tec_core::attest::{Attested, PinnedPcrs, VerifiedEvidence, VerifyError};
use tec_core::boot::{BootStates, LiveImages, Pins, WholeImages};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::explain::Gate;
use tec_core::flow;
use tec_core::flow::{AdmitPorts, Boots, NextBoot, ReleaseError, ReleasePorts};
use tec_core::id::{AttemptId, ResourcePath};
use tec_core::machine::{Machine, MachineState};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::port::{
    AkRegistry, AttemptLog, AuditEvent, AuditSink, Clock, ClockLog, DiskKeys, ImageRegistry,
    KeyBroker, PlatformLog, PortError, SecretStore, chain,
};
use tec_core::rotation::{Confirmation, Confirmed, KeyMark, Keys};
use tec_core::secret::SecretBytes;

use super::{Admission, Backend, PolicyDecision};
use crate::policy::{
    AttestationPolicy, PolicyError, PolicyIntent, ResourcePolicy, ak_reference_name,
    ak_reference_value, pcr_reference_name,
};

/// The ports of a live backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LivePorts {
    /// The attestation keys, and their machines.
    pub aks: Arc<dyn AkRegistry>,
    /// The approved images.
    pub images: Arc<dyn ImageRegistry>,
    /// The disk keys.
    pub secrets: Arc<dyn SecretStore>,
    /// Where refusals and releases are recorded.
    pub audit: Arc<dyn AuditSink>,
    /// Last known clock of each TPM.
    pub clocks: Arc<dyn ClockLog>,
    /// The platform of each machine; `None` leaves firmware and Secure Boot policy unchecked.
    pub platforms: Option<Arc<dyn PlatformLog>>,
    /// The disk keys while one replaces the other; `None` if no key is rotated.
    pub disk_keys: Option<Arc<dyn DiskKeys>>,
    /// Where attempts are kept for `tec explain`.
    pub attempts: Arc<dyn AttemptLog>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl LivePorts {
    /// Combines these ports; `history` is what is known of each machine's TPM and platform.
    pub fn new(
        aks: Arc<dyn AkRegistry>,
        images: Arc<dyn ImageRegistry>,
        secrets: Arc<dyn SecretStore>,
        audit: Arc<dyn AuditSink>,
        (clocks, platforms): (Arc<dyn ClockLog>, Arc<dyn PlatformLog>),
        attempts: Arc<dyn AttemptLog>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (platforms, disk_keys) = (Some(platforms), None);
        Self { aks, images, secrets, audit, clocks, platforms, disk_keys, attempts, clock }
    }

    /// Also rotates disk keys.
    pub fn with_disk_keys(mut self, disk_keys: Arc<dyn DiskKeys>) -> Self {
        self.disk_keys = Some(disk_keys);
        self
    }

    /// Uses one store for everything, such as `tec_core::store::Store`.
    pub fn of<S>(store: Arc<S>, clock: Arc<dyn Clock>) -> Self
    where
        S: AkRegistry + ImageRegistry + SecretStore + AuditSink + ClockLog + AttemptLog,
        S: PlatformLog + DiskKeys + 'static,
    {
        let history = (Arc::clone(&store) as _, Arc::clone(&store) as _);
        Self::new(
            Arc::clone(&store) as _,
            Arc::clone(&store) as _,
            Arc::clone(&store) as _,
            Arc::clone(&store) as _,
            history,
            Arc::clone(&store) as _,
            clock,
        )
        .with_disk_keys(store)
    }
}

/// Decides from the registries twice: when evidence arrives and when the key is released.
///
/// # Security
/// A machine needs both the appraisal against the registries and the policies. A revocation in a registry
/// takes effect from the next request on, also for existing sessions and tokens.
#[derive(Debug)]
pub struct LiveBackend {
    ports: LivePorts,
    /// The registers that the policies ask about.
    pinned: PinnedPcrs,
    pins: Pins,
    states: Arc<dyn BootStates>,
    attestation: Arc<str>,
    resource: Arc<str>,
}

impl LiveBackend {
    /// A backend with the policies of `intent`. Each image pins what its prediction contains, and only whole images are
    /// admitted.
    pub fn new(ports: LivePorts, intent: &PolicyIntent) -> Self {
        Self {
            ports,
            pinned: intent.pinned(),
            pins: Pins::Predicted,
            states: Arc::new(WholeImages),
            attestation: intent.render_attestation().into(),
            resource: intent.render_resource().into(),
        }
    }

    /// Uses these policies instead of those of the intent: Rego texts with the package `policy`.
    ///
    /// They can only refuse more. The registries still decide what is pinned and which machine gets which
    /// key.
    pub fn with_policies(mut self, attestation: &str, resource: &str) -> Result<Self, PolicyError> {
        AttestationPolicy::parse(attestation)?;
        ResourcePolicy::parse(resource)?;
        self.attestation = attestation.into();
        self.resource = resource.into();
        Ok(self)
    }

    /// Judges boots by these registers, regardless of what the policies ask about. For [`Pins::Predicted`], the
    /// default, the intent should pin PCR 4, which every admitted image pins.
    pub fn with_pins(mut self, pins: Pins) -> Self {
        self.pins = pins;
        self
    }

    /// Admits what `states` admits, for example machines between two images.
    pub fn with_states(mut self, states: Arc<dyn BootStates>) -> Self {
        self.states = states;
        self
    }

    /// The values that policies may ask for, from one read of the registries.
    fn references(
        &self,
        evidence: &VerifiedEvidence,
        ak: Option<&AkRecord>,
        machine: Option<&Machine>,
        live: &LiveImages<'_>,
    ) -> BTreeMap<String, Value> {
        let bound = ak.filter(|ak| ak.state == AkState::Bound && ak.public == evidence.ak);
        let active = machine.filter(|machine| machine.state == MachineState::Active);
        let value = match (bound, active) {
            (Some(ak), Some(machine)) if ak.machine == machine.id => {
                ak_reference_value(&ak.public, &machine.id)
            }
            _ => Value::Null,
        };
        let mut references = BTreeMap::from([(ak_reference_name(&evidence.ak), value)]);
        for pcr in self.pinned.iter() {
            references.insert(pcr_reference_name(pcr), self.values(live, pcr));
        }
        references
    }

    /// Adds the quoted values that an approved boot explains without being stated: of registers in which the
    /// firmware or systemd measured something around the boot chain.
    fn add_quoted(
        &self,
        references: &mut BTreeMap<String, Value>,
        evidence: &VerifiedEvidence,
        attested: &Attested,
        live: &LiveImages<'_>,
    ) {
        let judged: PcrSet = self.pinned.iter().chain(Pins::of_images()).collect();
        for pcr in judged.iter() {
            let quoted = evidence.pcrs.value(pcr);
            if attested.judged().value(pcr) == quoted {
                continue;
            }
            let stated = attested.judged().value(pcr).to_string();
            let value =
                references.entry(pcr_reference_name(pcr)).or_insert_with(|| self.values(live, pcr));
            if let Value::Array(values) = value
                && values.iter().any(|value| *value == stated)
            {
                values.push(quoted.to_string().into());
            }
        }
    }

    /// The values that a register may have. No list can tell which of them occur together: the appraisal
    /// decides that.
    fn values(&self, live: &LiveImages<'_>, pcr: PcrIndex) -> Value {
        let values = self.pins.values(&*self.states, live, pcr);
        values.iter().map(ToString::to_string).collect()
    }

    fn boots(&self) -> Boots<'_> {
        Boots { images: &*self.ports.images, pins: self.pins, states: &*self.states }
    }

    fn admit_ports(&self) -> AdmitPorts<'_> {
        AdmitPorts::new(
            &*self.ports.aks,
            Some(self.boots()),
            &*self.ports.clocks,
            &*self.ports.attempts,
            &*self.ports.audit,
            &*self.ports.clock,
        )
        .with_platforms(self.ports.platforms.as_deref())
    }
}

#[async_trait]
impl Backend for LiveBackend {
    async fn attestation_policy(&self) -> Result<Option<Arc<str>>, PortError> {
        Ok(Some(Arc::clone(&self.attestation)))
    }

    async fn resource_policy(&self) -> Result<Option<Arc<str>>, PortError> {
        Ok(Some(Arc::clone(&self.resource)))
    }

    async fn admit(
        &self,
        attempt: AttemptId,
        evidence: &Result<VerifiedEvidence, VerifyError>,
    ) -> Result<Admission, PortError> {
        let found = flow::admit(self.admit_ports(), attempt, evidence).await?;
        let record = found.appraisal.attempt;
        let mut admission = Admission::new(attempt);
        if let Ok(verified) = evidence {
            let live = LiveImages::at(&found.images, record.at);
            let (ak, machine) = (found.ak.as_ref(), found.machine.as_ref());
            admission.references = self.references(verified, ak, machine, &live);
            if let Some(attested) = &found.appraisal.attested {
                self.add_quoted(&mut admission.references, verified, attested, &live);
            }
        }
        admission.attested = found.appraisal.attested;
        if admission.attested.is_some() {
            admission.record = Some(record);
        } else {
            // The checks of a refusal are in the log; the session needs only the code.
            let code = record.ladder.code.unwrap_or(Code::EvidenceMalformed);
            admission.refused = Some(code);
        }
        Ok(admission)
    }

    async fn reference_value(&self, name: &str) -> Result<Option<Value>, PortError> {
        let mut known = self.pinned.iter().chain(Pins::of_images());
        if let Some(pcr) = known.find(|pcr| pcr_reference_name(*pcr) == name) {
            let images = self.ports.images.list().await?;
            let live = LiveImages::at(&images, self.ports.clock.now());
            return Ok(Some(self.values(&live, pcr)));
        }
        // Keys are answered from the appraisal's view of the registries, see `references`.
        Ok(None)
    }

    async fn release(
        &self,
        admission: &Admission,
        path: &ResourcePath,
        policy: PolicyDecision,
        shown: Option<KeyMark>,
    ) -> Result<SecretBytes, ReleaseError> {
        let (Some(attested), Some(record)) = (&admission.attested, &admission.record) else {
            let code = admission.refused.unwrap_or(Code::ReleaseDenied);
            return Err(ReleaseError::Refused(code));
        };
        let mut attempt = record.clone();
        let own = path.disk_key_of() == Some(attested.machine());
        let released = if policy == PolicyDecision::Deny && own {
            attempt.ladder.fail(Gate::ReleasePolicy, "the resource policy denies it");
            let code = Code::ReleaseDenied;
            let line = AuditEvent::key_refused(self.ports.clock.now(), &attempt, code);
            self.ports.audit.append(&line).await?;
            Err(ReleaseError::Refused(code))
        } else {
            // For a path that is not its own the flow refuses too, with a better message.
            let ports = ReleasePorts::new(
                &*self.ports.aks,
                &*self.ports.images,
                &*self.states,
                &*self.ports.secrets,
                &*self.ports.audit,
                &*self.ports.clock,
            )
            .with_disk_keys(self.ports.disk_keys.as_deref(), shown);
            flow::release(ports, attested, path, &mut attempt).await
        };
        if let Err(error) = self.ports.attempts.record(&attempt).await {
            // The audit log, which is the one that counts, is written before; this record is for explaining.
            tracing::warn!(attempt = %attempt.id, error = chain(&error), "attempt not recorded");
        }
        released
    }

    async fn escrow(
        &self,
        admission: &Admission,
        sealed: &SecretBytes,
    ) -> Result<u32, ReleaseError> {
        let attested = proven(admission)?;
        let ports = &self.ports;
        flow::escrow(&*ports.aks, &*ports.secrets, &*ports.clock, attested, sealed).await
    }

    async fn rotation(&self, admission: &Admission) -> Result<Option<Keys<KeyMark>>, ReleaseError> {
        let attested = proven(admission)?;
        match &self.ports.disk_keys {
            Some(keys) => flow::rotation(&*self.ports.aks, &**keys, attested).await,
            None => Ok(None),
        }
    }

    async fn confirm_rotation(
        &self,
        admission: &Admission,
        confirmation: Confirmation,
        key: &KeyMark,
    ) -> Result<Option<Confirmed<KeyMark>>, ReleaseError> {
        let attested = proven(admission)?;
        let Some(keys) = &self.ports.disk_keys else {
            return Ok(None);
        };
        let ports = (&*self.ports.aks, &**keys, &*self.ports.clock);
        flow::confirm_rotation(ports, attested, confirmation, key).await.map(Some)
    }

    async fn next_boot(
        &self,
        admission: &Admission,
        predicted: &BTreeMap<PcrIndex, Sha256Digest>,
    ) -> Result<Option<NextBoot>, ReleaseError> {
        let attested = proven(admission)?;
        let ports = (&*self.ports.aks, &*self.ports.clock);
        flow::next_boot(ports, self.boots(), attested, predicted).await.map(Some)
    }

    fn broker(&self) -> Option<&dyn KeyBroker> {
        None
    }
}

/// The proof of the machine, or why there is none.
fn proven(admission: &Admission) -> Result<&Attested, ReleaseError> {
    let code = admission.refused.unwrap_or(Code::ReleaseDenied);
    admission.attested.as_ref().ok_or(ReleaseError::Refused(code))
}
