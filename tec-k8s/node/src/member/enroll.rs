//! Claims in one object, so that a compare-and-swap covers all of them.

use std::collections::BTreeSet;

use crate::grant::Claim;
use crate::ticket::NodeName;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};

use super::roll::{NAME, Roll, full};
use crate::rpc::{Enrollments, Settled};
use tec_core::ak::{
    AkCandidate, AkDecision, AkMatcher, AkReason, AkRecord, AkState, Fingerprint, PublicKey,
};
use tec_core::flow::{AkOutcome, AkPorts, ClaimLimits, approve};
use tec_core::machine::{Machine, MachineState, RegisteredBy};
use tec_core::port::{
    AkRegistry, CreateOutcome, MachineRegistry, PortError, PortErrorKind, UnclaimedLimit,
};
use tec_k8s::api::{TrustedExecutionCluster, approval_matcher};
use tec_k8s::client::{KubeRegistry, is_conflict, port_error};

/// How often an update is retried when someone else changes the members at the same time.
const ATTEMPTS: usize = 16;

/// Members in the namespace of a registry, which holds their machines.
#[derive(Clone, Debug)]
pub struct KubeEnrollments(KubeRegistry);

impl KubeEnrollments {
    /// Keeps members in the namespace of this registry.
    pub fn new(registry: KubeRegistry) -> Self {
        Self(registry)
    }

    /// The approval policy of the only cluster in this namespace. Without one, no key is bound.
    async fn matcher(&self) -> Result<Box<dyn AkMatcher>, PortError> {
        let operation = "read the approval policy of the TrustedExecutionCluster";
        let clusters: Api<TrustedExecutionCluster> = self.0.objects();
        let params = ListParams::default().limit(2);
        let clusters = clusters.list(&params).await;
        let clusters = clusters.map_err(|error| port_error(operation, error))?;
        let refused = |kind, why: String| PortError::new(kind, format!("{operation}: {why}"));
        match clusters.items.as_slice() {
            [cluster] => approval_matcher(cluster.spec.approval.as_ref())
                .map_err(|why| refused(PortErrorKind::Invalid, why.to_string())),
            [] => Err(refused(PortErrorKind::NotFound, "there is none".to_owned())),
            _ => Err(refused(PortErrorKind::Conflict, "there are several".to_owned())),
        }
    }

    fn objects(&self) -> Api<ConfigMap> {
        self.0.objects()
    }

    async fn object(&self) -> Result<Option<ConfigMap>, PortError> {
        let found = self.objects().get_opt(NAME).await;
        found.map_err(|error| port_error("read the members", error))
    }

    /// Reads all current and removed members.
    ///
    /// # Errors
    /// The API server refuses, or someone wrote something that is not a claim.
    pub async fn roll(&self) -> Result<Roll, PortError> {
        self.object().await?.as_ref().map_or_else(|| Ok(Roll::default()), Roll::of)
    }

    /// A member begins to leave: no more tickets are issued for its disk, and its name stays taken until
    /// [`end_removal`](Self::end_removal). Repeating it changes nothing.
    ///
    /// # Errors
    /// As for [`Self::roll`]; kind `Conflict` if none of the control planes that are `ready` would remain.
    pub async fn begin_removal(
        &self,
        claim: &Claim,
        ready: &BTreeSet<NodeName>,
    ) -> Result<(), PortError> {
        let now = self.0.clock().now();
        self.change(&claim.name, |roll| roll.begin_removal(claim, ready, now)).await
    }

    /// A member that left stops being one: its name is free for its own key, and for others once its
    /// certificates have expired. Repeating it changes nothing.
    pub async fn end_removal(&self, claim: &Claim) -> Result<(), PortError> {
        let end = |roll: &mut Roll| {
            roll.end_removal(claim);
            Ok(())
        };
        self.change(&claim.name, end).await
    }

    /// Lets any key have the names of removed members.
    ///
    /// # Security
    /// To the API server, whoever holds the certificate of a removed member is the new node with this name.
    pub async fn dangerous_free_name(&self, name: &NodeName) -> Result<(), PortError> {
        let free = |roll: &mut Roll| {
            roll.dangerous_free_name(name);
            Ok(())
        };
        self.change(name, free).await
    }

    async fn change(
        &self,
        name: &NodeName,
        change: impl Fn(&mut Roll) -> Result<(), PortError>,
    ) -> Result<(), PortError> {
        for _ in 0..ATTEMPTS {
            let object = self.object().await?;
            let mut roll = object.as_ref().map_or_else(|| Ok(Roll::default()), Roll::of)?;
            let before = roll.clone();
            change(&mut roll)?;
            let is_done = roll == before;
            if is_done || self.swap(object, &roll, name).await? == CreateOutcome::Created {
                return Ok(());
            }
        }
        let operation = format!("change the member {name}: others change members all the time");
        Err(PortError::new(PortErrorKind::Unavailable, operation))
    }

    /// Writes what was read and changed; `Existed` if someone else was faster.
    async fn swap(
        &self,
        object: Option<ConfigMap>,
        roll: &Roll,
        name: &NodeName,
    ) -> Result<CreateOutcome, PortError> {
        let data = Some(roll.lines()?);
        let params = PostParams::default();
        let swapped = if let Some(object) = object {
            self.objects().replace(NAME, &params, &ConfigMap { data, ..object }).await
        } else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let object = ConfigMap { metadata, data, ..ConfigMap::default() };
            self.objects().create(&params, &object).await
        };
        match swapped {
            Ok(_) => Ok(CreateOutcome::Created),
            Err(error) if is_conflict(&error) => Ok(CreateOutcome::Existed),
            Err(error) => Err(port_error(format!("write the claim of node {name}"), error)),
        }
    }

    /// Registers the machine of a claim unless it exists. A node that would only leave a Machine behind gets
    /// none: there may be any number of disks, and any number of keys in one TPM.
    async fn register(
        &self,
        claim: &Claim,
        candidate: &AkCandidate,
        matcher: &dyn AkMatcher,
        others: &[(AkRecord, Option<Machine>)],
    ) -> Result<Option<Settled>, PortError> {
        let id = claim.machine_id();
        if MachineRegistry::find(&self.0, &id).await?.is_some() {
            return Ok(None);
        }
        ensure_no_other_machine(others)?;
        let known = AkRegistry::find(&self.0, &claim.ak).await?;
        let machine = Machine::unclaimed(id, RegisteredBy::JoinService, self.0.clock().now());
        match matcher.decide(candidate, Some(&machine), None, known.as_ref()) {
            AkDecision::Wait(AkReason::NeedsEkProof) => {
                return Ok(Some(Settled::NeedsEndorsementKey));
            }
            AkDecision::Reject(reason) => {
                let operation = format!("bind the key of node {}: {reason:?}", claim.name);
                return Err(PortError::new(PortErrorKind::Denied, operation));
            }
            _ => {}
        }
        let named = self.0.with_node_name(claim.name.to_string());
        named.create(&machine, UnclaimedLimit::Unlimited).await?;
        Ok(None)
    }
}

/// Other attestation keys of a TPM, with their machines if these still exist.
async fn others(
    aks: &dyn AkRegistry,
    machines: &dyn MachineRegistry,
    ek: Fingerprint,
    ak: &Fingerprint,
) -> Result<Vec<(AkRecord, Option<Machine>)>, PortError> {
    let mut keys = aks.list(None).await?;
    keys.retain(|one| one.ek == Some(ek) && one.fingerprint() != *ak);
    let mut others = Vec::new();
    for key in keys {
        let machine = machines.find(&key.machine).await?;
        others.push((key, machine));
    }
    Ok(others)
}

/// A TPM can have any number of attestation keys: if one of them was revoked, or its machine is out of
/// service, that applies to the whole TPM.
fn ensure_not_refused(others: &[(AkRecord, Option<Machine>)]) -> Result<(), PortError> {
    let is_out = |machine: &Machine| !machine.state.takes_keys();
    let refused = others.iter().find(|(key, machine)| {
        key.state == AkState::Revoked || machine.as_ref().is_some_and(is_out)
    });
    let Some((key, _)) = refused else { return Ok(()) };
    let operation = format!(
        "admit the TPM of attestation key {}, which was revoked or whose machine is out of service; \
         delete its AttestationKey to admit the TPM again",
        key.fingerprint()
    );
    Err(PortError::new(PortErrorKind::Denied, operation))
}

/// A TPM is one machine, whichever key it presents.
fn ensure_no_other_machine(others: &[(AkRecord, Option<Machine>)]) -> Result<(), PortError> {
    let Some(machine) = others.iter().find_map(|(_, machine)| machine.as_ref()) else {
        return Ok(());
    };
    let operation = format!(
        "admit the TPM of machine {0} as another machine; run kubectl tec member replace, or kubectl \
         tec machine remove {0} if it never joined",
        machine.id
    );
    Err(PortError::new(PortErrorKind::Denied, operation))
}

#[async_trait]
impl Enrollments for KubeEnrollments {
    async fn list(&self) -> Result<Vec<Claim>, PortError> {
        Ok(self.roll().await?.claims)
    }

    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError> {
        let object = self.object().await?;
        let mut roll = object.as_ref().map_or_else(|| Ok(Roll::default()), Roll::of)?;
        if roll.refuses(claim, self.0.clock().now()) {
            return Ok(CreateOutcome::Existed);
        }
        roll.claims.push(claim.clone());
        if !roll.has_room()? {
            return Err(full());
        }
        self.swap(object, &roll, &claim.name).await
    }

    async fn was_removed(&self, name: &NodeName) -> Result<bool, PortError> {
        Ok(self.roll().await?.removed.iter().any(|one| one.name == *name))
    }

    async fn readdress(&self, claim: &Claim) -> Result<(), PortError> {
        let change = |roll: &mut Roll| {
            for one in roll.claims.iter_mut().filter(|one| one.is_of_same_member(claim)) {
                one.addresses.clone_from(&claim.addresses);
            }
            Ok(())
        };
        self.change(&claim.name, change).await
    }

    /// A machine that someone quarantined, retired or revoked stays so, and its node gets nothing.
    async fn settle(
        &self,
        claim: &Claim,
        key: &PublicKey,
        ek: Option<Fingerprint>,
    ) -> Result<Settled, PortError> {
        let roll = self.roll().await?;
        if roll.has_removed(claim.disk) {
            return Ok(Settled::DiskRetired);
        }
        let matcher = self.matcher().await?;
        let others = match ek {
            Some(ek) => others(&self.0, &self.0, ek, &claim.ak).await?,
            None => Vec::new(),
        };
        ensure_not_refused(&others)?;
        if let Some(holder) = roll.holder(claim, self.0.clock().now()) {
            return Ok(Settled::NameHeld(holder.held_until()));
        }
        let candidate = AkCandidate::from_node(key.clone(), ek);
        if let Some(settled) = self.register(claim, &candidate, &*matcher, &others).await? {
            return Ok(settled);
        }
        let id = claim.machine_id();
        let ports = AkPorts::new(&self.0, &self.0, &*matcher, &self.0, &**self.0.clock())
            .with_claims(ClaimLimits::NONE);
        let operation = format!("bind the key of node {} to machine {id}", claim.name);
        let bound = approve(ports, id, candidate).await;
        match bound
            .map_err(|error| PortError::new(error.kind(), operation.clone()).because(error))?
        {
            AkOutcome::Bound(_) | AkOutcome::AlreadyBound => Ok(Settled::Bound),
            AkOutcome::Waiting(AkReason::NeedsEkProof) => Ok(Settled::NeedsEndorsementKey),
            AkOutcome::Waiting(_) | AkOutcome::AlreadyWaiting(_) => Ok(Settled::AwaitsApproval),
            AkOutcome::Rejected(_) => Err(PortError::new(PortErrorKind::Denied, operation)),
        }
    }

    async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError> {
        if self.roll().await?.has_removed(claim.disk) {
            return Ok(false);
        }
        let id = claim.machine_id();
        let machine = MachineRegistry::find(&self.0, &id).await?;
        let is_active = machine.is_some_and(|machine| machine.state == MachineState::Active);
        let bound = AkRegistry::bound_to(&self.0, &id).await?;
        Ok(is_active && bound.is_some_and(|record| record.fingerprint() == claim.ak))
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::{MemoryRegistry, sample};

    use super::*;

    fn ek(number: u64) -> Fingerprint {
        sample::public_key(100 + number).fingerprint()
    }

    /// Three machines, each with a waiting key of its own TPM.
    async fn registry() -> MemoryRegistry {
        let registry = MemoryRegistry::new();
        for number in 1..=3 {
            let mut record = sample::ak(number, number);
            record.ek = Some(ek(number));
            let machine = sample::machine(number);
            let limit = UnclaimedLimit::Unlimited;
            MachineRegistry::create(&registry, &machine, limit).await.unwrap();
            registry.submit(&record, &sample::line()).await.unwrap();
        }
        registry
    }

    /// Whether a key of a TPM is refused: any key, and a key of a new machine.
    async fn refusals(registry: &MemoryRegistry, ek: Fingerprint, key: u64) -> (bool, bool) {
        let ak = sample::public_key(key).fingerprint();
        let others = others(registry, registry, ek, &ak).await.unwrap();
        let is_denied = |judged: Result<(), PortError>| {
            judged.is_err_and(|error| error.kind() == PortErrorKind::Denied)
        };
        (is_denied(ensure_not_refused(&others)), is_denied(ensure_no_other_machine(&others)))
    }

    #[tokio::test]
    async fn another_key_of_a_tpm_that_was_revoked_or_taken_out_of_service_is_refused() {
        let (registry, line) = (registry().await, sample::line());
        let key = sample::public_key(1).fingerprint();
        AkRegistry::revoke(&registry, &key, &line).await.unwrap();
        MachineRegistry::revoke(&registry, &sample::machine_id(2), &line).await.unwrap();
        for number in [1, 2] {
            assert!(refusals(&registry, ek(number), 9).await.0);
        }
        assert!(!refusals(&registry, ek(1), 1).await.0, "its key is judged by its record");
    }

    #[tokio::test]
    async fn a_tpm_is_one_machine_whichever_of_its_keys_it_shows() {
        let registry = registry().await;
        assert_eq!(refusals(&registry, ek(3), 9).await, (false, true));
        assert_eq!(refusals(&registry, ek(3), 3).await, (false, false));
        assert_eq!(refusals(&registry, ek(9), 9).await, (false, false));
        MachineRegistry::remove(&registry, &sample::machine_id(3)).await.unwrap();
        let after = refusals(&registry, ek(3), 9).await;
        assert_eq!(after, (false, false), "it may come back when that is gone");
    }
}
