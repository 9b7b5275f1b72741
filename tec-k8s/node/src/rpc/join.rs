//! The join service: decides who is admitted, and what admitted nodes get.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::derive::{DataKeyId, DiskId, MeasurementSalt, MeasurementSecret};
use crate::grant::{Claim, ControlPlanes, GrantError, Granted, grant, grant_rejoin};
use crate::lock::MarkerState;
use crate::plane::AdminTickets;
use crate::port::DataKeys;
use crate::state::Role;
use crate::ticket::{CaPin, Component, JoinTicket, NodeName, PkiFile};
use async_trait::async_trait;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::time::Timestamp;
use tonic::{Code, Request, Response, Status};

use super::caller::{Caller, refusal};
use super::convert::TicketRequest;
use super::endorse::{Endorsements, demanded};
use super::generated::join::api_server::Api;
use super::generated::join::{
    ChallengeEndorsementKeyRequest, ChallengeEndorsementKeyResponse, EndorsementProof,
    IssueJoinTicketRequest, IssueJoinTicketResponse, IssueRejoinTicketRequest,
    IssueRejoinTicketResponse,
};
use super::refuse::{
    certificate_refused, denied, elsewhere, joined, no_ticket, unsettled, unusable,
};
use super::{Reason, convert, plane};

/// The state of a claim's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is bound to the machine.
    Bound,
    /// It waits for an admin.
    AwaitsApproval,
    /// The policy requires the proof of an endorsement key.
    NeedsEndorsementKey,
    /// It cannot be bound: the disk belongs to a removed member, and has its key.
    DiskRetired,
    /// It cannot be bound before this time: certificates of a removed member with the same name may be valid
    /// until then.
    NameHeld(Timestamp),
}

/// Permanent store of the claims of nodes.
#[async_trait]
pub trait Enrollments: fmt::Debug + Send + Sync {
    /// All claims.
    async fn list(&self) -> Result<Vec<Claim>, PortError>;

    /// Records a claim unless there is one with its key, name or disk; check and write are one step.
    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError>;

    /// Whether a member with this name was removed.
    async fn was_removed(&self, name: &NodeName) -> Result<bool, PortError>;

    /// Replaces the addresses of an existing claim.
    async fn readdress(&self, claim: &Claim) -> Result<(), PortError>;

    /// Registers the machine of a claim, and its key according to the cluster's approval policy; repeating it
    /// changes nothing. `ek` is the endorsement key that the node proved. Kind `Denied` for a machine that is
    /// not in service or a key that was revoked.
    async fn settle(
        &self,
        claim: &Claim,
        key: &PublicKey,
        ek: Option<Fingerprint>,
    ) -> Result<Settled, PortError>;

    /// Whether the machine of a claim is in service, with the key of the claim bound to it.
    async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError>;
}

/// Signs kubelet certificates.
#[async_trait]
pub trait KubeletSigner: fmt::Debug + Send + Sync {
    /// The node that a request (PKCS #10, DER) is for: signed by its own key, with the organization
    /// `system:nodes` and the name `system:node:<name>`; and its addresses. Kind `Invalid` otherwise.
    fn named(&self, csr: &[u8]) -> Result<(NodeName, BTreeSet<IpAddr>), PortError>;

    /// A certificate for it, PEM.
    async fn sign(&self, csr: &[u8]) -> Result<String, PortError>;
}

/// Progress of a node's join, according to its Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStanding {
    /// There is no such object.
    Absent,
    /// There is one, but it is not labeled as a control plane.
    Registered,
    /// There is one, labeled as a control plane: setting that label is the last step of a control plane's
    /// join.
    ControlPlane,
}

/// The data that the cluster gives its members.
#[async_trait]
pub trait ClusterFacts: fmt::Debug + Send + Sync {
    /// Progress of the node with this name, whoever made it a member.
    async fn node(&self, name: &NodeName) -> Result<NodeStanding, PortError>;

    /// `host:port` of the API server.
    async fn api_server(&self) -> Result<String, PortError>;

    /// The CA that the API server's certificate must chain to.
    async fn ca_pin(&self) -> Result<CaPin, PortError>;

    /// The version of Kubernetes, and the components that members install.
    async fn components(&self) -> Result<(String, Vec<Component>), PortError>;

    /// The files for a node with this role: for workers only [`PkiFile::CA`].
    async fn files(&self, role: Role) -> Result<Vec<(PkiFile, SecretBytes)>, PortError>;
}

/// Lets control planes join one at a time, since each join changes the members of etcd.
#[async_trait]
pub trait ControlPlaneTurns: fmt::Debug + Send + Sync {
    /// Gives the turn to this node, or confirms it if the node has it. Kind `Unavailable` while another node
    /// has it.
    async fn take(&self, node: &NodeName) -> Result<(), PortError>;
}

/// The ports of the service.
#[derive(Clone, Debug)]
pub struct JoinServicePorts {
    /// Keys of the cluster.
    pub keys: Arc<dyn DataKeys>,
    /// Salt of its ID.
    pub salt: MeasurementSalt,
    /// The claims of nodes.
    pub enrollments: Arc<dyn Enrollments>,
    /// Who may be a control plane.
    pub control_planes: ControlPlanes,
    /// Lets control planes join one at a time.
    pub turns: Arc<dyn ControlPlaneTurns>,
    /// Signs kubelet certificates.
    pub signer: Arc<dyn KubeletSigner>,
    /// The data that members get.
    pub facts: Arc<dyn ClusterFacts>,
}

/// What an admitted node gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Everything that it needs.
    Whole,
    /// Its turn, but no certificate: the kubelet of this control plane has already joined, and the rest of
    /// its join changes etcd.
    Turn,
}

/// A request, and what its caller proved.
struct Asked<'c> {
    claim: Claim,
    caller: &'c Caller,
    ek: Option<Fingerprint>,
    plane_ticket: String,
}

/// Serves tickets to attested nodes.
#[derive(Clone, Debug)]
pub struct JoinService(JoinServicePorts, Option<Arc<Endorsements>>, Option<Arc<AdminTickets>>);

/// Length of both keys.
const KEY: usize = 32;

impl JoinService {
    /// Uses these ports.
    pub fn new(ports: JoinServicePorts) -> Self {
        Self(ports, None, None)
    }

    /// Accepts endorsement keys as proof of attestation keys, and asks for them if the policy requires it.
    pub fn with_endorsements(self, endorsements: Endorsements) -> Self {
        Self(self.0, Some(Arc::new(endorsements)), self.2)
    }

    /// Allows nodes with such tickets to be control planes, in addition to those that are listed.
    pub fn with_plane_tickets(self, tickets: Arc<AdminTickets>) -> Self {
        Self(self.0, self.1, Some(tickets))
    }

    /// Who may be a control plane, for this request: a ticket applies if the list does not allow the caller.
    async fn control_planes(&self, asked: &Asked<'_>) -> Result<ControlPlanes, Status> {
        let listed = plane::by_list(&self.0.control_planes, asked.caller, asked.ek);
        if plane::is_listed(&listed, asked.caller) {
            return Ok(listed);
        }
        let Some(tickets) = self.2.as_ref().filter(|_| !asked.plane_ticket.is_empty()) else {
            let may_prove =
                self.1.as_ref().is_some_and(|endorsements| endorsements.can_be_proven());
            // The list may name its endorsement key.
            return match (listed, asked.ek) {
                (ControlPlanes::Listed(keys), None) if may_prove && !keys.is_empty() => {
                    Err(demanded(asked.caller))
                }
                (listed, _) => Ok(listed),
            };
        };
        let secret = self.measurement_secret().await.map_err(|error| no_ticket(&error))?;
        let judged = tickets.check(&asked.plane_ticket, &secret.cluster_id(&self.0.salt));
        plane::by_ticket(judged, asked.caller, asked.ek)
    }

    /// The endorsement key that the caller proved. Checked before everything that costs more than a
    /// signature.
    fn proven(
        &self,
        caller: &Caller,
        disk: DiskId,
        proof: Option<EndorsementProof>,
    ) -> Result<Option<Fingerprint>, Status> {
        let endorsements = self.1.as_ref();
        endorsements.map_or(Ok(None), |endorsements| endorsements.proven(caller, disk, proof))
    }

    /// Accepts a machine without a cluster, and one of ours whose join was interrupted. A member of another
    /// cluster is under someone else's control, whatever its measurements are.
    async fn ensure_not_elsewhere(&self, caller: &Caller) -> Result<(), Status> {
        if caller.marker() == MarkerState::Unset {
            return Ok(());
        }
        let secret = self.measurement_secret().await;
        let secret = secret.map_err(|error| no_ticket(&error))?;
        if caller.marker().is_of(&secret.cluster_id(&self.0.salt)) {
            return Ok(());
        }
        Err(elsewhere(caller, "this machine is in another cluster"))
    }

    /// What a claim may get. A node whose object exists has its certificate, and gets no second one: an
    /// attacker who took the node over later could use it elsewhere.
    async fn judge(&self, asked: &Asked<'_>) -> Result<(Granted, Admission), Status> {
        let claim = &asked.claim;
        let known = self.0.enrollments.list().await.map_err(|error| unusable(&error))?;
        // A member need not prove again what it was once allowed.
        let planes = match claim.role {
            Role::ControlPlane if !known.iter().any(|one| one.is_of_same_member(claim)) => {
                self.control_planes(asked).await?
            }
            _ => ControlPlanes::Closed,
        };
        let granted = grant(claim, &known, &planes);
        let granted = granted.map_err(|error| denied(claim, error))?;
        // A machine that joined is known by the key that it joined with, until it reboots.
        if matches!(granted, Granted::New) && asked.caller.marker() != MarkerState::Unset {
            return Err(elsewhere(asked.caller, "this machine joined with another key"));
        }
        let standing = self.0.facts.node(&claim.name).await.map_err(|error| unusable(&error))?;
        let admission = match (granted, standing, claim.role) {
            (_, NodeStanding::Absent, _) => Admission::Whole,
            (Granted::Again, NodeStanding::Registered, Role::ControlPlane) => Admission::Turn,
            (Granted::Again, ..) => return Err(joined(claim)),
            // Not all members joined through us, and a certificate with its name is a certificate for that
            // node.
            (Granted::New, ..) => return Err(denied(claim, GrantError::NameTaken)),
        };
        Ok((granted, admission))
    }

    /// The claim is recorded once its key is bound, and before anything is released.
    async fn admit(&self, asked: &Asked<'_>) -> Result<Admission, Status> {
        let (granted, admission) = self.judge(asked).await?;
        let Asked { claim, caller, ek, .. } = asked;
        let settled = self.0.enrollments.settle(claim, caller.key(), *ek).await;
        ensure_bound(claim, settled.map_err(|error| unsettled(&error))?)?;
        match granted {
            // Its certificate is for its current address.
            Granted::Again if admission == Admission::Whole => {
                let readdressed = self.0.enrollments.readdress(claim).await;
                readdressed.map(|()| admission).map_err(|error| unusable(&error))
            }
            Granted::Again => Ok(admission),
            Granted::New => {
                match self.0.enrollments.add(claim).await.map_err(|error| unusable(&error))? {
                    CreateOutcome::Created => Ok(admission),
                    CreateOutcome::Existed => {
                        Err(Reason::Busy
                            .status(Code::Aborted, "another node was admitted meanwhile"))
                    }
                }
            }
        }
    }

    async fn measurement_secret(&self) -> Result<MeasurementSecret, PortError> {
        let id = DataKeyId::measurement_secret();
        // Init created it.
        let key = self.0.keys.existing_data_key(&id, KEY).await?;
        MeasurementSecret::from_data_key(&key).map_err(|error| {
            PortError::new(PortErrorKind::Internal, "take the measurement secret").because(error)
        })
    }

    async fn new_disk_key(&self, disk: DiskId) -> Result<SecretArray<32>, PortError> {
        let id = DataKeyId::state_disk(disk);
        Self::taken(&self.0.keys.data_key(&id, KEY).await?)
    }

    async fn disk_key(&self, disk: DiskId) -> Result<SecretArray<32>, PortError> {
        let id = DataKeyId::state_disk(disk);
        Self::taken(&self.0.keys.existing_data_key(&id, KEY).await?)
    }

    fn taken(key: &SecretBytes) -> Result<SecretArray<32>, PortError> {
        <[u8; 32]>::try_from(key.expose("hand it to the disk's node"))
            .map(SecretArray::new)
            .map_err(|_| PortError::new(PortErrorKind::Internal, "take the key of a disk"))
    }

    async fn ticket(
        &self,
        request: &TicketRequest,
        admission: Admission,
    ) -> Result<JoinTicket, PortError> {
        let facts = &self.0.facts;
        let (kubernetes_version, components) = facts.components().await?;
        Ok(JoinTicket {
            measurement_secret: self.measurement_secret().await?,
            measurement_salt: self.0.salt,
            state_disk_key: self.new_disk_key(request.disk).await?,
            api_server: facts.api_server().await?,
            ca_pin: facts.ca_pin().await?,
            kubelet_certificate: match admission {
                Admission::Whole => self.0.signer.sign(&request.csr).await?,
                Admission::Turn => String::new(),
            },
            files: facts.files(request.role).await?,
            components,
            kubernetes_version,
        })
    }
}

fn ensure_bound(claim: &Claim, settled: Settled) -> Result<(), Status> {
    let machine = claim.machine_id();
    let (reason, sentence) = match settled {
        Settled::Bound => return Ok(()),
        Settled::AwaitsApproval => (
            Reason::AwaitsApproval,
            format!("the attestation key of machine {machine} waits for an admin's approval"),
        ),
        Settled::NeedsEndorsementKey => (
            Reason::NeedsEndorsementKey,
            "the approval policy EndorsementKey needs a proof by the endorsement key of the TPM"
                .to_owned(),
        ),
        Settled::DiskRetired => (
            Reason::NotAdmitted,
            format!(
                "disk {} is that of a member that was removed; run bootstrapper prepare \
                 --dangerous-erase",
                claim.disk
            ),
        ),
        Settled::NameHeld(until) => (
            Reason::NameTaken,
            format!(
                "certificates of the removed member {0} may count until {until}; choose another name, or run \
                 kubectl tec member remove {0} --dangerous-free-name if its old disk is erased",
                claim.name
            ),
        ),
    };
    tracing::warn!(node = %claim.name, ak.fingerprint = %claim.ak, %reason, "a node was refused");
    Err(reason.status(Code::FailedPrecondition, sentence))
}

#[async_trait]
impl Api for JoinService {
    async fn issue_join_ticket(
        &self,
        request: Request<IssueJoinTicketRequest>,
    ) -> Result<Response<IssueJoinTicketResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ak = caller.ak();
        let mut message = request.into_inner();
        let proof = message.endorsement.take();
        let plane_ticket = std::mem::take(&mut message.control_plane_ticket);
        let request = convert::ticket_request(message)?;
        let ek = self.proven(&caller, request.disk, proof)?;
        let named = self.0.signer.named(&request.csr);
        let (name, addresses) = named.map_err(|error| certificate_refused(&error))?;
        let claim = Claim { ak, name, role: request.role, disk: request.disk, addresses };
        self.ensure_not_elsewhere(&caller).await?;
        let asked = Asked { claim, caller: &caller, ek, plane_ticket };
        let admission = self.admit(&asked).await?;
        let claim = asked.claim;
        if claim.role == Role::ControlPlane {
            let turn = self.0.turns.take(&claim.name).await;
            let sentence = "another control plane is joining";
            turn.map_err(|error| refusal(Reason::Busy, sentence, &error))?;
        }
        let ticket = self.ticket(&request, admission).await;
        let ticket = ticket.map_err(|error| no_ticket(&error))?;
        tracing::info!(node = %claim.name, role = %claim.role, "issued a join ticket");
        Ok(Response::new(convert::ticket_message(&ticket)))
    }

    async fn issue_rejoin_ticket(
        &self,
        request: Request<IssueRejoinTicketRequest>,
    ) -> Result<Response<IssueRejoinTicketResponse>, Status> {
        const WHY: &str = "hand it to a member over an attested connection";
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let disk = convert::disk_id(&message.disk_uuid)?;
        let ek = self.proven(&caller, disk, message.endorsement)?;
        // Its disk is open: a caller that still asks for the key wants it for something else.
        if caller.marker() != MarkerState::Unset {
            return Err(elsewhere(&caller, "this machine was not booted again"));
        }
        let failed = |error: PortError| no_ticket(&error);
        let known = self.0.enrollments.list().await.map_err(failed)?;
        let claim = grant_rejoin(caller.ak(), disk, &known).map_err(|error| {
            Reason::NotAdmitted.status(Code::PermissionDenied, error.to_string())
        })?;
        let settled = self.0.enrollments.settle(claim, caller.key(), ek).await;
        ensure_bound(claim, settled.map_err(|error| unsettled(&error))?)?;
        let secret = self.measurement_secret().await.map_err(failed)?;
        let key = self.disk_key(disk).await.map_err(failed)?;
        Ok(Response::new(IssueRejoinTicketResponse {
            state_disk_key: key.expose(WHY).to_vec(),
            measurement_secret: secret.expose(WHY).to_vec(),
        }))
    }

    async fn challenge_endorsement_key(
        &self,
        request: Request<ChallengeEndorsementKeyRequest>,
    ) -> Result<Response<ChallengeEndorsementKeyResponse>, Status> {
        let caller = Caller::of(&request)?;
        let Some(endorsements) = &self.1 else {
            let sentence = "this service takes no endorsement keys";
            return Err(Reason::EndorsementKey.status(Code::Unimplemented, sentence));
        };
        endorsements.challenge(&caller, request.into_inner()).map(Response::new)
    }
}
