//! The node's side of the join service.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::derive::{ClusterId, DiskId};
use crate::drive::OfferedKeys;
use crate::lock::MarkerState;
use crate::port::TicketSource;
use crate::state::Role;
use crate::ticket::JoinTicket;
use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tec_core::port::{PortError, PortErrorKind};
use tokio::io::AsyncReadExt as _;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::endorse::{Endorser, prove};
use super::generated::join::api_client::ApiClient;
use super::generated::join::{
    EndorsementProof, IssueJoinTicketRequest, IssueJoinTicketResponse, IssueRejoinTicketRequest,
    IssueRejoinTicketResponse,
};
use super::{CALL_LIMIT, Reason, convert};

/// How long to wait for a service before the next one is asked as well.
const STAGGER: Duration = Duration::from_secs(3);
/// More control planes than any cluster has. The platform lists them, and is not trusted.
const MAX_SERVICES: usize = 32;

/// An attested connection, and the cluster that its other end is in.
#[derive(Debug)]
pub struct Reached {
    /// A connection to a service that proved itself; it must not be reestablished to a different one.
    pub channel: Channel,
    /// What the service's register reports about its cluster.
    pub marker: MarkerState,
}

/// A ticket for a cluster that its service does not belong to.
#[derive(Debug, thiserror::Error)]
#[error("the ticket is for cluster {0}, but its service is not a member of that cluster")]
struct Elsewhere(ClusterId);

/// A service that has no key for a disk.
#[derive(Debug, thiserror::Error)]
#[error("the service does not belong to a cluster")]
struct Newcomer;

/// The first answer. Services are asked in order; one that is slow or fails does not keep the next from being
/// asked.
async fn first<T>(asks: Vec<BoxFuture<'_, Result<T, PortError>>>) -> Result<T, PortError> {
    let mut last = PortError::new(PortErrorKind::Unavailable, "find a join service");
    let mut next = asks.into_iter().take(MAX_SERVICES);
    let mut asked = FuturesUnordered::new();
    loop {
        match next.next() {
            Some(ask) => asked.push(ask),
            None if asked.is_empty() => return Err(last),
            None => {}
        }
        let has_more = next.len() > 0;
        tokio::select! {
            Some(answer) = asked.next() => match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            },
            () = tokio::time::sleep(STAGGER), if has_more => {}
        }
    }
}

/// Finds join services, and connects to them.
///
/// # Security
/// A connection must prove that its other end belongs to the cluster: the node runs whatever its ticket
/// contains.
#[async_trait]
pub trait Dial: fmt::Debug + Send + Sync {
    /// Addresses to try, in this order.
    async fn addresses(&self) -> Result<Vec<String>, PortError>;

    /// An attested connection.
    async fn dial(&self, address: &str) -> Result<Reached, PortError>;
}

/// Proves our attestation key, if the service asks for that.
fn asked_to_prove<'e, T>(
    answer: &Result<T, Status>,
    endorser: Option<&'e Arc<dyn Endorser>>,
) -> Option<&'e dyn Endorser> {
    let status = answer.as_ref().err()?;
    let is_asked = Reason::of(status) == Some(Reason::NeedsEndorsementKey);
    endorser.filter(|_| is_asked).map(|one| &**one)
}

/// Maximum number of bytes read from the file with a control plane's ticket.
const MAX_TICKET: u64 = 4096;

/// Asks join services for a ticket.
#[derive(Clone, Debug)]
pub struct TicketClient {
    dial: Arc<dyn Dial>,
    disk: DiskId,
    role: Role,
    csr: Vec<u8>,
    endorser: Option<Arc<dyn Endorser>>,
    control_plane_ticket: Option<PathBuf>,
}

impl TicketClient {
    /// Requests tickets for this node; `csr` is PKCS #10 in DER.
    pub fn new(dial: Arc<dyn Dial>, disk: DiskId, role: Role, csr: Vec<u8>) -> Self {
        Self { dial, disk, role, csr, endorser: None, control_plane_ticket: None }
    }

    /// Presents the ticket by which an admin allows this node to be a control plane. The file is read each
    /// time a service is asked.
    pub fn with_control_plane_ticket(self, ticket: Option<PathBuf>) -> Self {
        Self { control_plane_ticket: ticket, ..self }
    }

    async fn plane_ticket(&self) -> String {
        let Some(path) = &self.control_plane_ticket else {
            return String::new();
        };
        let read = async {
            let mut text = String::new();
            let file = tokio::fs::File::open(path).await?;
            file.take(MAX_TICKET).read_to_string(&mut text).await?;
            std::io::Result::Ok(text)
        };
        read.await.unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the ticket of a control plane cannot be read");
            String::new()
        })
    }

    /// Proves the attestation key to services that ask for that.
    pub fn with_endorser(self, endorser: Arc<dyn Endorser>) -> Self {
        Self { endorser: Some(endorser), ..self }
    }

    async fn call(
        &self,
        channel: &Channel,
        endorsement: Option<EndorsementProof>,
    ) -> Result<Response<IssueJoinTicketResponse>, Status> {
        let mut request = Request::new(IssueJoinTicketRequest {
            disk_uuid: self.disk.to_string(),
            certificate_request: self.csr.clone(),
            is_control_plane: self.role == Role::ControlPlane,
            endorsement,
            control_plane_ticket: self.plane_ticket().await,
        });
        request.set_timeout(CALL_LIMIT);
        ApiClient::new(channel.clone()).issue_join_ticket(request).await
    }

    async fn ask(&self, address: &str) -> Result<JoinTicket, PortError> {
        let failed = |kind| PortError::new(kind, format!("ask {address} for a ticket"));
        let Reached { channel, marker } = self.dial.dial(address).await?;
        let mut answer = self.call(&channel, None).await;
        if let Some(endorser) = asked_to_prove(&answer, self.endorser.as_ref()) {
            let proof = prove(endorser, channel.clone(), self.disk).await?;
            answer = self.call(&channel, Some(proof)).await;
        }
        let answer = answer.map_err(|status| failed(PortErrorKind::Unavailable).because(status))?;
        let ticket = convert::ticket(answer.into_inner())
            .map_err(|error| failed(PortErrorKind::Unavailable).because(error))?;
        let cluster = ticket.cluster();
        if !marker.is_of(&cluster) {
            return Err(failed(PortErrorKind::Denied).because(Elsewhere(cluster)));
        }
        Ok(ticket)
    }
}

#[async_trait]
impl TicketSource for TicketClient {
    async fn fetch(&self) -> Result<JoinTicket, PortError> {
        let addresses = self.dial.addresses().await?;
        let asks = addresses.iter().map(|address| self.ask(address).boxed());
        first(asks.collect()).await
    }
}

/// Asks join services for the key to the disk of a member that rebooted.
#[derive(Clone, Debug)]
pub struct RejoinClient {
    dial: Arc<dyn Dial>,
    disk: DiskId,
    endorser: Option<Arc<dyn Endorser>>,
}

impl RejoinClient {
    /// Requests keys for the node with this disk.
    pub fn new(dial: Arc<dyn Dial>, disk: DiskId) -> Self {
        Self { dial, disk, endorser: None }
    }

    /// Proves the attestation key to services that ask for that.
    pub fn with_endorser(self, endorser: Arc<dyn Endorser>) -> Self {
        Self { endorser: Some(endorser), ..self }
    }

    async fn call(
        &self,
        channel: &Channel,
        endorsement: Option<EndorsementProof>,
    ) -> Result<Response<IssueRejoinTicketResponse>, Status> {
        let message = IssueRejoinTicketRequest { disk_uuid: self.disk.to_string(), endorsement };
        let mut request = Request::new(message);
        request.set_timeout(CALL_LIMIT);
        ApiClient::new(channel.clone()).issue_rejoin_ticket(request).await
    }

    async fn ask(&self, address: &str) -> Result<OfferedKeys, PortError> {
        let failed = |kind| PortError::new(kind, format!("ask {address} for a rejoin ticket"));
        let Reached { channel, marker } = self.dial.dial(address).await?;
        if marker == MarkerState::Unset {
            return Err(failed(PortErrorKind::Denied).because(Newcomer));
        }
        let mut answer = self.call(&channel, None).await;
        if let Some(endorser) = asked_to_prove(&answer, self.endorser.as_ref()) {
            let proof = prove(endorser, channel.clone(), self.disk).await?;
            answer = self.call(&channel, Some(proof)).await;
        }
        let answer = answer.map_err(|status| failed(PortErrorKind::Unavailable).because(status))?;
        convert::rejoin_ticket(answer.into_inner())
            .map_err(|error| failed(PortErrorKind::Unavailable).because(error))
    }

    /// The keys in the ticket of the first service that gives one.
    pub async fn fetch(&self) -> Result<OfferedKeys, PortError> {
        let addresses = self.dial.addresses().await?;
        let asks = addresses.iter().map(|address| self.ask(address).boxed());
        first(asks.collect()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    /// The services asked, in order: `slow` never answers, `bad` refuses, others give their name.
    async fn asking(services: &[&str]) -> (Result<String, PortErrorKind>, Vec<String>, Duration) {
        let (begin, asked) = (Instant::now(), Mutex::new(Vec::new()));
        let ask = async |address: &str| {
            asked.lock().unwrap().push(address.to_owned());
            match address {
                "slow" => std::future::pending().await,
                "bad" => Err(PortError::new(PortErrorKind::Denied, "ask")),
                _ => {
                    tokio::time::sleep(STAGGER * 2).await;
                    Ok(address.to_owned())
                }
            }
        };
        let answer = first(services.iter().map(|address| ask(address).boxed()).collect());
        let answer = answer.await.map_err(|error| error.kind());
        (answer, asked.into_inner().unwrap(), begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_hangs_or_refuses_does_not_keep_a_node_from_another() {
        let (answer, asked, took) = asking(&["slow", "bad", "good", "late"]).await;
        assert_eq!(answer, Ok("good".to_owned()));
        assert_eq!(asked, ["slow", "bad", "good", "late"]);
        assert_eq!(took, STAGGER * 3);
        // If one answers in time, no other is asked for long.
        let (answer, asked, _) = asking(&["good", "late"]).await;
        assert_eq!((answer, asked.len()), (Ok("good".to_owned()), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_gives_an_answer_the_last_refusal_is_told() {
        assert_eq!(asking(&["bad", "bad"]).await.0, Err(PortErrorKind::Denied));
        assert_eq!(asking(&[]).await.0, Err(PortErrorKind::Unavailable));
        let many: Vec<&str> = vec!["bad"; MAX_SERVICES + 1];
        assert_eq!(asking(&many).await.1.len(), MAX_SERVICES);
    }
}
