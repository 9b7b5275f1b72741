//! The join service: who is admitted, and what admitted nodes get.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::ak::PublicKey;
use tec_core::node::derive::DataKeyId;
use tec_core::node::derive::DiskId;
use tec_core::node::derive::MeasurementSalt;
use tec_core::node::derive::MeasurementSecret;
use tec_core::node::grant::Claim;
use tec_core::node::grant::ControlPlanes;
use tec_core::node::grant::GrantError;
use tec_core::node::grant::Granted;
use tec_core::node::grant::grant;
use tec_core::node::grant::grant_rejoin;
use tec_core::node::lock::MarkerState;
use tec_core::node::port::DataKeys;
use tec_core::node::state::Role;
use tec_core::node::ticket::CaPin;
use tec_core::node::ticket::Component;
use tec_core::node::ticket::JoinTicket;
use tec_core::node::ticket::NodeName;
use tec_core::node::ticket::PkiFile;
use tec_core::port::CreateOutcome;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::secret::SecretArray;
use tec_core::secret::SecretBytes;
use tonic::Code;
use tonic::Request;
use tonic::Response;
use tonic::Status;

use super::Reason;
use super::caller::Caller;
use super::caller::refusal;
use super::convert;
use super::convert::TicketRequest;
use super::generated::join::IssueJoinTicketRequest;
use super::generated::join::IssueJoinTicketResponse;
use super::generated::join::IssueRejoinTicketRequest;
use super::generated::join::IssueRejoinTicketResponse;
use super::generated::join::api_server::Api;

/// What nodes claimed, for good.
#[async_trait]
pub trait Enrollments: fmt::Debug + Send + Sync {
    /// All of them.
    async fn list(&self) -> Result<Vec<Claim>, PortError>;

    /// Records a claim unless one with its key, name or disk is there; one step with the check.
    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError>;

    /// Brings what else is kept of a member up to date; again changes nothing. Kind `Denied` for a
    /// member that was taken back.
    async fn settle(&self, claim: &Claim, key: &PublicKey) -> Result<(), PortError>;
}

/// Signs kubelet certificates.
#[async_trait]
pub trait KubeletSigner: fmt::Debug + Send + Sync {
    /// The node that a request (PKCS #10, DER) is for: signed by its own key, of the organization
    /// `system:nodes` and the name `system:node:<name>`. Kind `Invalid` otherwise.
    fn name(&self, csr: &[u8]) -> Result<NodeName, PortError>;

    /// A certificate for it, PEM.
    async fn sign(&self, csr: &[u8]) -> Result<String, PortError>;
}

/// What the cluster gives its members.
#[async_trait]
pub trait ClusterFacts: fmt::Debug + Send + Sync {
    /// Whether there is a node of this name, whoever made it a member.
    async fn has_node(&self, name: &NodeName) -> Result<bool, PortError>;

    /// A bootstrap token of kubeadm, new, for minutes.
    async fn token(&self) -> Result<SecretBytes, PortError>;

    /// `host:port` of the API server.
    async fn api_server(&self) -> Result<String, PortError>;

    /// The CA that it proves.
    async fn ca_pin(&self) -> Result<CaPin, PortError>;

    /// What members install, and of which version of Kubernetes.
    async fn components(&self) -> Result<(String, Vec<Component>), PortError>;

    /// The files of a control plane.
    async fn control_plane_files(&self) -> Result<Vec<(PkiFile, SecretBytes)>, PortError>;
}

/// Lets control planes join one at a time, since each changes the members of etcd.
#[async_trait]
pub trait ControlPlaneTurns: fmt::Debug + Send + Sync {
    /// Gives the turn to this node, again if it has it. Kind `Unavailable` while another has it.
    async fn take(&self, node: &NodeName) -> Result<(), PortError>;
}

/// What the service acts on.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "callers write all of it out")]
pub struct JoinServicePorts {
    /// Keys of the cluster.
    pub keys: Arc<dyn DataKeys>,
    /// Salt of its id.
    pub salt: MeasurementSalt,
    /// What nodes claimed.
    pub enrollments: Arc<dyn Enrollments>,
    /// Who may be a control plane.
    pub control_planes: ControlPlanes,
    /// One control plane at a time.
    pub turns: Arc<dyn ControlPlaneTurns>,
    /// Signs.
    pub signer: Arc<dyn KubeletSigner>,
    /// What members get.
    pub facts: Arc<dyn ClusterFacts>,
}

/// Serves tickets to attested nodes.
#[derive(Clone, Debug)]
pub struct JoinService(JoinServicePorts);

/// Length of both keys.
const KEY: usize = 32;

impl JoinService {
    /// Over these ports.
    pub fn new(ports: JoinServicePorts) -> Self {
        Self(ports)
    }

    /// A machine without a cluster, or one of ours whose join was cut off. What else its measurements
    /// say, a member of another cluster is under the hand of others.
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

    /// The claim is recorded before anything is handed out.
    async fn admit(&self, claim: &Claim) -> Result<(), Status> {
        let failed =
            |error: PortError| refusal(Reason::Registry, "the enrollments cannot be used", &error);
        let known = self.0.enrollments.list().await.map_err(failed)?;
        match grant(claim, &known, &self.0.control_planes).map_err(|error| denied(claim, error))? {
            Granted::Again => Ok(()),
            // Not all members came by us, and a certificate of its name is one for that node.
            Granted::New if self.0.facts.has_node(&claim.name).await.map_err(failed)? => {
                Err(denied(claim, GrantError::NameTaken))
            }
            Granted::New => match self.0.enrollments.add(claim).await.map_err(failed)? {
                CreateOutcome::Created => Ok(()),
                CreateOutcome::Existed => {
                    Err(Reason::Busy.status(Code::Aborted, "another node was admitted meanwhile"))
                }
            },
        }
    }

    async fn measurement_secret(&self) -> Result<MeasurementSecret, PortError> {
        let id = DataKeyId::measurement_secret();
        // Init made it.
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

    async fn ticket(&self, request: &TicketRequest) -> Result<JoinTicket, PortError> {
        let facts = &self.0.facts;
        let (kubernetes_version, components) = facts.components().await?;
        Ok(JoinTicket {
            measurement_secret: self.measurement_secret().await?,
            measurement_salt: self.0.salt,
            state_disk_key: self.new_disk_key(request.disk).await?,
            token: facts.token().await?,
            api_server: facts.api_server().await?,
            ca_pin: facts.ca_pin().await?,
            kubelet_certificate: self.0.signer.sign(&request.csr).await?,
            files: match request.role {
                Role::ControlPlane => facts.control_plane_files().await?,
                _ => Vec::new(),
            },
            components,
            kubernetes_version,
        })
    }
}

fn denied(claim: &Claim, error: GrantError) -> Status {
    tracing::warn!(
        node = %claim.name, ak.fingerprint = %claim.ak, reason = %error, "a node was refused"
    );
    Reason::NotAdmitted.status(Code::PermissionDenied, error.to_string())
}

fn elsewhere(caller: &Caller, sentence: &'static str) -> Status {
    tracing::warn!(ak.fingerprint = %caller.ak(), reason = sentence, "a node was refused");
    Reason::NotAdmitted.status(Code::PermissionDenied, sentence)
}

fn certificate_refused(error: &PortError) -> Status {
    let sentence = "the certificate request is refused";
    refusal(Reason::CertificateRequest, sentence, error)
}

fn unsettled(error: &PortError) -> Status {
    let reason = match error.kind() {
        PortErrorKind::Denied => Reason::NotAdmitted,
        _ => Reason::Registry,
    };
    refusal(reason, "the member cannot be registered", error)
}

fn no_ticket(error: &PortError) -> Status {
    refusal(Reason::Ticket, "the ticket cannot be made", error)
}

#[async_trait]
impl Api for JoinService {
    async fn issue_join_ticket(
        &self,
        request: Request<IssueJoinTicketRequest>,
    ) -> Result<Response<IssueJoinTicketResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ak = caller.ak();
        let request = convert::ticket_request(request.into_inner())?;
        let name = self.0.signer.name(&request.csr);
        let claim = Claim {
            ak,
            name: name.map_err(|error| certificate_refused(&error))?,
            role: request.role,
            disk: request.disk,
        };
        self.ensure_not_elsewhere(&caller).await?;
        self.admit(&claim).await?;
        let settled = self.0.enrollments.settle(&claim, caller.key()).await;
        settled.map_err(|error| unsettled(&error))?;
        if claim.role == Role::ControlPlane {
            let turn = self.0.turns.take(&claim.name).await;
            let sentence = "another control plane is joining";
            turn.map_err(|error| refusal(Reason::Busy, sentence, &error))?;
        }
        let ticket = self.ticket(&request).await;
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
        let disk = convert::disk_id(&request.into_inner().disk_uuid)?;
        // Its disk is open: whoever still asks for the key wants it for something else.
        if caller.marker() != MarkerState::Unset {
            return Err(elsewhere(&caller, "this machine was not booted again"));
        }
        let failed = |error: PortError| no_ticket(&error);
        let known = self.0.enrollments.list().await.map_err(failed)?;
        let claim = grant_rejoin(caller.ak(), disk, &known).map_err(|error| {
            Reason::NotAdmitted.status(Code::PermissionDenied, error.to_string())
        })?;
        let settled = self.0.enrollments.settle(claim, caller.key()).await;
        settled.map_err(|error| unsettled(&error))?;
        let secret = self.measurement_secret().await.map_err(failed)?;
        let key = self.disk_key(disk).await.map_err(failed)?;
        Ok(Response::new(IssueRejoinTicketResponse {
            state_disk_key: key.expose(WHY).to_vec(),
            measurement_secret: secret.expose(WHY).to_vec(),
        }))
    }
}
