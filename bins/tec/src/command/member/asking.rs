//! Repeats Init until its outcome is known: after the lock, a node can only continue, so a broken connection
//! is not an outcome.
//!
//! ```text
//!  reach ─► zero, or this cluster? ─► Init ─► kubeconfig
//!    ▲        no: nothing is sent        │
//!    └── the connection broke, or ───────┘
//!        an Init runs already
//! ```

use std::io::Write as _;
use std::time::Duration;

use tec_core::code::Code;
use tec_node::atls::Endpoint;
use tec_node::derive::ClusterId;
use tec_node::lock::MarkerState;
use tec_node::rpc::generated::init::api_client::ApiClient;
use tec_node::rpc::generated::init::init_progress::Item;
use tec_node::rpc::generated::init::{InitProgress, InitResponse};
use tec_node::rpc::{Reached, Reason, derived_cluster};
use tec_support::exit::CodedError;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::reach::{is_broken, reach, refused};
use super::request::{Extent, Request};

/// Wait before the same request is sent again.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest time for a node to become a cluster, whatever happens in the meantime (Constellation).
const LIMIT: Duration = Duration::from_hours(1);

/// A node that is asked to become part of one cluster.
pub(super) struct Asking<'d> {
    /// Requires everything that the node must prove, except its cluster.
    pub(super) endpoint: Endpoint,
    pub(super) node: &'d str,
    pub(super) request: &'d Request,
    /// How long a node may be unreachable, or busy with an Init that may not be ours.
    pub(super) wait: Duration,
    /// The cluster that the request would create, if known.
    cluster: Option<ClusterId>,
}

impl<'d> Asking<'d> {
    /// `cluster` is the cluster that this request creates, according to the admin.
    pub(super) fn new(
        endpoint: Endpoint,
        node: &'d str,
        request: &'d Request,
        (wait, cluster): (Duration, Option<ClusterId>),
    ) -> anyhow::Result<Self> {
        let derived = derived_cluster(request.message(Extent::Whole));
        if let (Some(derived), Some(given)) = (derived, cluster) {
            anyhow::ensure!(
                derived == given,
                "this request creates cluster {derived}, but --cluster names a different one"
            );
        }
        Ok(Self { endpoint, node, request, wait, cluster: derived.or(cluster) })
    }

    pub(super) async fn check(&self) -> Result<InitResponse, CodedError> {
        let checked = self.ask(Extent::Check).await?;
        if checked.cluster_id.is_empty() {
            let context = format!("{} is of another version, which knows no check", self.node);
            return Err(CodedError::new(Code::BootstrapDefect, context));
        }
        Ok(checked)
    }

    pub(super) async fn make(mut self) -> Result<InitResponse, CodedError> {
        if self.cluster.is_none() {
            self.learn_cluster().await?;
        }
        self.ask(Extent::Whole).await
    }

    /// With external keys, only the node knows which cluster the request creates. It must report the cluster
    /// before it is locked: afterwards there is no way to find out.
    async fn learn_cluster(&mut self) -> Result<(), CodedError> {
        let checked = self.ask(Extent::Check).await?;
        // Older nodes do not support the check: they are asked while they are in no cluster.
        let id = <[u8; 32]>::try_from(checked.cluster_id.as_slice()).ok();
        self.cluster = id.map(ClusterId::new);
        if let Some(cluster) = self.cluster {
            tracing::info!(%cluster, "the node can become this cluster");
        }
        Ok(())
    }

    async fn ask(&self, extent: Extent) -> Result<InitResponse, CodedError> {
        let end = Instant::now() + LIMIT;
        let mut until = Instant::now() + self.wait;
        loop {
            let Reached { channel, marker } = reach(&self.endpoint, self.node, until).await?;
            self.ensure_ours(marker)?;
            let status = match call(channel, self.request, extent).await {
                Ok(response) => return Ok(response),
                Err(status) => status,
            };
            // A node that was reachable, or is working for us, gets the full time again.
            match Interrupted::of(&status, extent) {
                Some(Interrupted::Broken) => until = Instant::now() + self.wait,
                Some(Interrupted::Busy) if marker != MarkerState::Unset => {
                    until = Instant::now() + self.wait.max(2 * PAUSE);
                }
                Some(Interrupted::Busy) => {}
                None => return Err(refused(self.node, &status)),
            }
            if Instant::now() + PAUSE > until.min(end) {
                return Err(refused(self.node, &status));
            }
            let reason = status.message();
            tracing::warn!(reason, "it is not known yet how the node ends; it is asked again");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The keys of a cluster are sent only to a node that is in no cluster or already in that one.
    fn ensure_ours(&self, marker: MarkerState) -> Result<(), CodedError> {
        let node = self.node;
        let is_ours = match marker {
            MarkerState::Unset => true,
            MarkerState::Set(_) => self.cluster.is_some_and(|cluster| marker.is_of(&cluster)),
        };
        if is_ours {
            return Ok(());
        }
        let found = match self.cluster {
            Some(cluster) => format!("{node} is in a cluster, which is not {cluster}"),
            None => format!("{node} is in a cluster, and --cluster does not say that it may be"),
        };
        Err(CodedError::new(Code::BootstrapUntrusted, found))
    }
}

/// Why the outcome of a call is unknown.
enum Interrupted {
    /// The connection broke.
    Broken,
    /// An Init is running: either this one, whose connection broke, or another one; the register will show
    /// which.
    Busy,
}

impl Interrupted {
    fn of(status: &Status, extent: Extent) -> Option<Self> {
        if is_broken(status) {
            return Some(Self::Broken);
        }
        let is_taken = Reason::of(status) == Some(Reason::AlreadyActivated);
        (is_taken && extent == Extent::Whole).then_some(Self::Busy)
    }
}

/// Calls a node. Older nodes send nothing until the end, and do not support the check.
async fn call(channel: Channel, request: &Request, extent: Extent) -> Result<InitResponse, Status> {
    let mut client = ApiClient::new(channel);
    match client.init_with_progress(request.message(extent)).await {
        Ok(progress) => follow(progress.into_inner()).await,
        Err(status) if status.code() == tonic::Code::Unimplemented => match extent {
            // Their Init would not just check, but initialize.
            Extent::Check => Ok(InitResponse::default()),
            Extent::Whole => Ok(client.init(request.message(extent)).await?.into_inner()),
        },
        Err(status) => Err(status),
    }
}

async fn follow(mut progress: Streaming<InitProgress>) -> Result<InitResponse, Status> {
    let began = Instant::now();
    while let Some(InitProgress { item }) = progress.message().await? {
        let seconds = began.elapsed().as_secs();
        match item {
            Some(Item::Success(response)) => return Ok(response),
            Some(Item::Began(step)) => tracing::info!(seconds, step, "the node goes on"),
            Some(Item::Failed(error)) => tracing::warn!(seconds, error, "a step failed"),
            Some(Item::Failure(failure)) => {
                tracing::error!(reason = failure.reason, "the node gave up; its log follows");
            }
            Some(Item::Log(piece)) => {
                // A closed stderr must not keep us from seeing the end.
                let _ = std::io::stderr().write_all(&piece);
            }
            None => {}
        }
    }
    Err(Status::unavailable("the node ended the call without an answer"))
}
