//! Claims in one object, so that a compare and swap is over all of them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde::{Deserialize, Serialize};
use tec_core::ak::{AkCandidate, AkMatcher, AkReason, AkState, Fingerprint, PublicKey};
use tec_core::flow::{AkOutcome, AkPorts, AkSubmission, ClaimLimits, approve};
use tec_core::id::MachineId;
use tec_core::machine::{Machine, MachineState, RegisteredBy};
use tec_core::node::derive::DiskId;
use tec_core::node::grant::Claim;
use tec_core::node::state::Role;
use tec_core::port::{
    AkRegistry, CreateOutcome, MachineRegistry, PortError, PortErrorKind, UnclaimedLimit,
};

use crate::rpc::{Enrollments, Settled};
use tec_k8s::api::{TrustedExecutionCluster, approval_matcher};
use tec_k8s::client::{KubeRegistry, is_conflict, port_error};

/// The object. 1 MiB of it (etcd's limit for a request) is room for about five thousand members.
const NAME: &str = "tec-members";

/// A claim under the fingerprint of its key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    name: String,
    role: Role,
    disk: DiskId,
}

/// Members in the namespace of a registry, whose machines they are.
#[derive(Clone, Debug)]
pub struct KubeEnrollments(KubeRegistry);

fn malformed(key: &str) -> PortError {
    let operation = format!("read the claim {key} of {NAME}");
    PortError::new(PortErrorKind::Internal, operation)
}

fn read((key, json): (&String, &String)) -> Result<Claim, PortError> {
    let record: Record =
        serde_json::from_str(json).map_err(|error| malformed(key).because(error))?;
    Ok(Claim {
        ak: key.parse().map_err(|error| malformed(key).because(error))?,
        name: record.name.parse().map_err(|error| malformed(key).because(error))?,
        role: record.role,
        disk: record.disk,
    })
}

fn written(claim: &Claim) -> Result<String, PortError> {
    let record = Record { name: claim.name.to_string(), role: claim.role, disk: claim.disk };
    serde_json::to_string(&record).map_err(|error| malformed(&claim.ak.to_string()).because(error))
}

fn claims(object: &ConfigMap) -> Result<Vec<Claim>, PortError> {
    object.data.iter().flatten().map(read).collect()
}

impl KubeEnrollments {
    /// In the namespace of this registry.
    pub fn new(registry: KubeRegistry) -> Self {
        Self(registry)
    }

    /// The approval policy of the one cluster of this namespace. Without one, no key is bound.
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

    /// The machine of a claim; that of the disk's id where an earlier version bound this very key to it.
    async fn machine_id(&self, claim: &Claim) -> Result<MachineId, PortError> {
        let older = older_id(claim.disk)?;
        let bound = AkRegistry::bound_to(&self.0, &older).await?;
        let is_ours = bound.is_some_and(|record| record.fingerprint() == claim.ak);
        Ok(if is_ours { older } else { claim.machine_id() })
    }

    fn objects(&self) -> Api<ConfigMap> {
        self.0.objects()
    }

    async fn object(&self) -> Result<Option<ConfigMap>, PortError> {
        let found = self.objects().get_opt(NAME).await;
        found.map_err(|error| port_error("read the members", error))
    }

    /// Writes what was read, with one more; `Existed` when somebody else was faster.
    async fn swap(
        &self,
        object: Option<ConfigMap>,
        claim: &Claim,
    ) -> Result<CreateOutcome, PortError> {
        let line = (claim.ak.to_string(), written(claim)?);
        let params = PostParams::default();
        let swapped = if let Some(mut object) = object {
            object.data.get_or_insert_default().extend([line]);
            self.objects().replace(NAME, &params, &object).await
        } else {
            let object = ConfigMap {
                metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
                data: Some(BTreeMap::from([line])),
                ..ConfigMap::default()
            };
            self.objects().create(&params, &object).await
        };
        match swapped {
            Ok(_) => Ok(CreateOutcome::Created),
            Err(error) if is_conflict(&error) => Ok(CreateOutcome::Existed),
            Err(error) => Err(port_error(format!("enroll node {}", claim.name), error)),
        }
    }
}

/// The id that the machines of members had before they got one of their own.
fn older_id(disk: DiskId) -> Result<MachineId, PortError> {
    disk.to_string().parse().map_err(|error| {
        PortError::new(PortErrorKind::Internal, format!("name the machine of disk {disk}"))
            .because(error)
    })
}

/// A TPM can have any number of attestation keys: that one of them was revoked, or that its machine is
/// out of service, is meant for the TPM.
async fn ensure_not_refused(
    aks: &dyn AkRegistry,
    machines: &dyn MachineRegistry,
    ek: Fingerprint,
    ak: &Fingerprint,
) -> Result<(), PortError> {
    let keys = aks.list(None).await?;
    let others = keys.iter().filter(|one| one.ek == Some(ek) && one.fingerprint() != *ak);
    for other in others {
        let machine = machines.find(&other.machine).await?;
        let is_out = machine.is_some_and(|machine| !machine.state.takes_keys());
        if other.state == AkState::Revoked || is_out {
            let key = other.fingerprint();
            let operation = format!(
                "admit the TPM of attestation key {key}, which was revoked or whose machine is out \
                 of service; delete its AttestationKey to admit the TPM again"
            );
            return Err(PortError::new(PortErrorKind::Denied, operation));
        }
    }
    Ok(())
}

#[async_trait]
impl Enrollments for KubeEnrollments {
    async fn list(&self) -> Result<Vec<Claim>, PortError> {
        let object = self.object().await?;
        object.as_ref().map_or_else(|| Ok(Vec::new()), claims)
    }

    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError> {
        let object = self.object().await?;
        let known = object.as_ref().map_or_else(|| Ok(Vec::new()), claims)?;
        let collides =
            |one: &Claim| one.ak == claim.ak || one.name == claim.name || one.disk == claim.disk;
        if known.iter().any(collides) {
            return Ok(CreateOutcome::Existed);
        }
        self.swap(object, claim).await
    }

    /// A machine that somebody quarantined, retired or revoked stays so, and its node gets nothing.
    async fn settle(
        &self,
        claim: &Claim,
        key: &PublicKey,
        ek: Option<Fingerprint>,
    ) -> Result<Settled, PortError> {
        let matcher = self.matcher().await?;
        if let Some(ek) = ek {
            ensure_not_refused(&self.0, &self.0, ek, &claim.ak).await?;
        }
        let id = self.machine_id(claim).await?;
        let now = self.0.clock().now();
        let machine = Machine::unclaimed(id, RegisteredBy::JoinService, now);
        // The node proved its key; there is no number of such machines to keep low.
        let named = self.0.with_node_name(claim.name.to_string());
        named.create(&machine, UnclaimedLimit::Unlimited).await?;
        let candidate = AkCandidate::from_node(key.clone(), ek);
        let ports = AkPorts::new(&self.0, &self.0, &*matcher, &self.0, &**self.0.clock())
            .with_claims(ClaimLimits::NONE);
        let operation = format!("bind the key of node {} to machine {id}", claim.name);
        let bound = approve(ports, AkSubmission::new(id, candidate)).await;
        match bound.map_err(|error| {
            PortError::new(error.port_error().kind(), operation.clone()).because(error)
        })? {
            AkOutcome::Bound(_) | AkOutcome::AlreadyBound => Ok(Settled::Bound),
            AkOutcome::Waiting(AkReason::NeedsEkProof) => Ok(Settled::NeedsEndorsementKey),
            AkOutcome::Waiting(_) | AkOutcome::AlreadyWaiting(_) => Ok(Settled::AwaitsApproval),
            AkOutcome::Rejected(_) => Err(PortError::new(PortErrorKind::Denied, operation)),
        }
    }

    async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError> {
        let id = self.machine_id(claim).await?;
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

    #[tokio::test]
    async fn another_key_of_a_tpm_that_was_revoked_or_taken_out_of_service_is_refused() {
        let registry = MemoryRegistry::new();
        let (aks, machines): (&dyn AkRegistry, &dyn MachineRegistry) = (&registry, &registry);
        let ek = |number| sample::public_key(100 + number).fingerprint();
        for number in 1..=3 {
            let mut record = sample::ak(number, number);
            record.ek = Some(ek(number));
            machines.create(&sample::machine(number), UnclaimedLimit::Unlimited).await.unwrap();
            aks.submit(&record, &sample::line()).await.unwrap();
        }
        let other = sample::public_key(9).fingerprint();
        let refused = async |number| ensure_not_refused(aks, machines, ek(number), &other).await;
        for number in 1..=3 {
            refused(number).await.unwrap();
        }
        let line = sample::line();
        aks.revoke(&sample::public_key(1).fingerprint(), &line).await.unwrap();
        machines.revoke(&sample::machine_id(2), &line).await.unwrap();
        for number in [1, 2] {
            assert_eq!(refused(number).await.unwrap_err().kind(), PortErrorKind::Denied);
        }
        refused(3).await.unwrap();
        let own = sample::public_key(1).fingerprint();
        ensure_not_refused(aks, machines, ek(1), &own).await.unwrap();
    }
}
