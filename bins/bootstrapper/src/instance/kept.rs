//! The ticket of a join that has begun, on the encrypted state disk.
//!
//! A join service issues no second certificate to a node that is in its cluster. A process, or a machine,
//! that stops between the registration of its kubelet and the end of the join continues with what it has:
//!
//! ```text
//!  ticket ─► files, key, certificate, `ticket` ─► kubeadm join ─► done ─► `ticket` is removed
//!                        └───────── after a crash: read from here ◄──┘
//! ```

use std::path::PathBuf;
use std::{fs, io};

use anyhow::Context as _;
use async_trait::async_trait;
use tec_core::port::{Clock, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::host::write_whole;
use tec_node::lock::LockedNode;
use tec_node::port::{ClusterJoiner, TicketSource};
use tec_node::rpc::{ticket_from_bytes, ticket_to_bytes};
use tec_node::state::Role;
use tec_node::ticket::JoinTicket;

use crate::instance::clock;

const FILE: &str = "ticket";
const MODE: u32 = 0o600;

/// The file of the ticket.
#[derive(Clone, Debug)]
pub struct TicketFile(PathBuf);

impl TicketFile {
    /// Uses the directory of the node's state.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into().join(FILE))
    }

    fn read(&self) -> Result<Option<JoinTicket>, PortError> {
        match fs::read(&self.0) {
            Ok(bytes) => ticket_from_bytes(&SecretBytes::new(bytes)).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    fn write(&self, ticket: &JoinTicket) -> Result<(), PortError> {
        let bytes = ticket_to_bytes(ticket);
        let bytes = bytes.expose("only the cluster's key opens this disk");
        write_whole(&self.0, bytes, MODE).map_err(|error| self.failed("write", error))
    }

    fn failed(&self, verb: &str, error: io::Error) -> PortError {
        let operation = format!("{verb} {}", self.0.display());
        PortError::new(PortErrorKind::Unavailable, operation).because(error)
    }

    /// Removes the ticket, once the node is a member.
    pub fn remove(&self) -> anyhow::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Tickets from a source; only the first one is used.
#[derive(Debug)]
pub struct KeptTickets<'k> {
    /// The file.
    pub file: TicketFile,
    /// Join services.
    pub source: &'k dyn TicketSource,
    /// Runs kubeadm.
    pub joiner: &'k dyn ClusterJoiner,
    /// The role of the node.
    pub role: Role,
    /// Compared with the certificates in tickets.
    pub clock: &'k dyn Clock,
}

#[async_trait]
impl TicketSource for KeptTickets<'_> {
    /// A control plane always asks for its turn; the ticket that comes with it contains nothing new.
    async fn fetch(&self) -> Result<JoinTicket, PortError> {
        let Some(kept) = self.file.read()? else {
            return self.source.fetch().await;
        };
        if self.role == Role::ControlPlane {
            let turn = self.source.fetch().await?;
            if turn.cluster() != kept.cluster() {
                let operation = "ask for the turn to join: it is that of another cluster";
                return Err(PortError::new(PortErrorKind::Conflict, operation));
            }
        }
        Ok(kept)
    }
}

#[async_trait]
impl ClusterJoiner for KeptTickets<'_> {
    async fn prepare(&self, ticket: &JoinTicket) -> Result<(), PortError> {
        clock::check_certificate(&ticket.kubelet_certificate, self.clock)?;
        self.joiner.prepare(ticket).await
    }

    async fn write_files(&self, node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        self.joiner.write_files(node, ticket).await?;
        self.file.write(ticket)
    }

    async fn join(&self, node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        self.joiner.join(node, ticket).await
    }
}
