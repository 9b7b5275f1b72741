//! The shell of [`JoinPlan`].

use async_trait::async_trait;
use tec_core::digest::Sha256Digest;
use tec_core::plan;
use tec_core::plan::Shell;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::{check_disk, lock, unlocked, write_intent};
use crate::derive::ClusterId;
use crate::join::{JoinEffect, JoinEvent, JoinOutcome, JoinPlan, JoinStep};
use crate::journal::{Intent, Phase};
use crate::lock::{LockedNode, NodeLock};
use crate::port::{ClusterJoiner, NodeStore, Pause, StateDisk, TicketSource};
use crate::state::{NodeState, Role};
use crate::ticket::{JoinTicket, NodeName};

/// Ports that join acts on.
#[derive(Clone, Copy, Debug)]
pub struct JoinPorts<'p> {
    /// The lock that it shares with init.
    pub lock: &'p NodeLock,
    /// The state disk.
    pub disk: &'p dyn StateDisk,
    /// Journal and state.
    pub store: &'p dyn NodeStore,
    /// Issues tickets.
    pub tickets: &'p dyn TicketSource,
    /// Runs kubeadm.
    pub cluster: &'p dyn ClusterJoiner,
    /// Waits between attempts.
    pub pause: &'p dyn Pause,
}

/// Runs a join to its end, however long that takes. `None` if the plan has a defect.
///
/// # Cancel safety
/// May be dropped at any await; the next process continues.
pub async fn drive_join(ports: JoinPorts<'_>, name: &NodeName, role: Role) -> Option<JoinOutcome> {
    let mut shell = JoinShell {
        ports,
        role,
        ticket: None,
        intent: None,
        locked: None,
        outcome: None,
        failures: 0,
    };
    let request = Sha256Digest::of(format!("join/1\n{role}\n{name}"));
    let first = JoinEvent::Started(request);
    plan::run(&mut JoinPlan::new(), first, &mut shell).await;
    shell.outcome
}

struct JoinShell<'p> {
    ports: JoinPorts<'p>,
    role: Role,
    ticket: Option<JoinTicket>,
    intent: Option<Intent>,
    locked: Option<LockedNode>,
    outcome: Option<JoinOutcome>,
    failures: u32,
}

impl JoinShell<'_> {
    async fn attempt(&mut self, step: JoinStep) -> Result<JoinEvent, PortError> {
        let ports = self.ports;
        match step {
            JoinStep::ReadJournal => {
                return ports.store.read_intent().await.map(JoinEvent::Journal);
            }
            JoinStep::ReadMarker => return ports.lock.marker().read().await.map(JoinEvent::Marker),
            JoinStep::FetchTicket => return self.fetch().await.map(JoinEvent::Ticket),
            JoinStep::Lock => return self.lock().await,
            JoinStep::Prepare => {
                let ticket = self.ticket()?;
                check_disk(ports.disk, &disk_key(ticket)).await?;
                ports.cluster.prepare(ticket).await?;
            }
            JoinStep::WriteIntent => {
                let intent = self.intent.as_ref().ok_or_else(unlocked)?;
                if !write_intent(ports.lock, ports.store, intent).await? {
                    return Ok(JoinEvent::Reserved);
                }
            }
            JoinStep::WriteDone => {
                let intent = self.intent.as_ref().ok_or_else(unlocked)?;
                ports.store.write_intent(intent).await?;
            }
            JoinStep::RekeyDisk => {
                let key = disk_key(self.ticket()?);
                ports.disk.rekey(self.node()?, &key).await?;
            }
            JoinStep::WriteState => {
                let state = NodeState::new(self.role, self.ticket()?.measurement_salt);
                ports.store.write_state(self.node()?, &state).await?;
            }
            JoinStep::WriteFiles => {
                let (node, ticket) = (self.node()?, self.ticket()?);
                ports.cluster.write_files(node, ticket).await?;
            }
            JoinStep::JoinCluster => self.join_cluster().await?,
        }
        Ok(JoinEvent::Done(step))
    }

    async fn fetch(&mut self) -> Result<ClusterId, PortError> {
        let ticket = self.ports.tickets.fetch().await?;
        let cluster = ticket.cluster();
        self.ticket = Some(ticket);
        Ok(cluster)
    }

    /// A worker that gets no new ticket uses the one it has. A control plane does not: its turn may
    /// have expired, and another may be changing etcd.
    async fn renew(&mut self) -> Result<(), PortError> {
        let cluster = self.intent.as_ref().ok_or_else(unlocked)?.cluster;
        match self.ports.tickets.fetch().await {
            Ok(ticket) if ticket.cluster() == cluster => self.ticket = Some(ticket),
            Ok(_) if self.role == Role::ControlPlane => {
                let operation = "ask for the turn to join: the ticket is that of another cluster";
                return Err(PortError::new(PortErrorKind::Conflict, operation));
            }
            Err(error) if self.role == Role::ControlPlane => return Err(error),
            _ => {}
        }
        Ok(())
    }

    async fn join_cluster(&mut self) -> Result<(), PortError> {
        // The turn began with the first ticket, and the steps since then may have used all of it.
        if self.role == Role::ControlPlane || self.failures > 0 {
            self.renew().await?;
        }
        self.ports.cluster.join(self.node()?, self.ticket()?).await
    }

    async fn lock(&mut self) -> Result<JoinEvent, PortError> {
        self.locked = lock(self.ports.lock, self.intent.as_ref()).await?;
        Ok(match self.locked {
            Some(_) => JoinEvent::Done(JoinStep::Lock),
            None => JoinEvent::LockTaken,
        })
    }

    fn ticket(&self) -> Result<&JoinTicket, PortError> {
        self.ticket.as_ref().ok_or_else(unlocked)
    }

    fn node(&self) -> Result<&LockedNode, PortError> {
        self.locked.as_ref().ok_or_else(unlocked)
    }
}

fn disk_key(ticket: &JoinTicket) -> SecretBytes {
    let key = ticket.state_disk_key.expose("open the state disk with it");
    SecretBytes::new(key.to_vec())
}

#[async_trait]
impl Shell<JoinPlan> for JoinShell<'_> {
    async fn perform(&mut self, effect: JoinEffect) -> Option<JoinEvent> {
        let step = match effect {
            JoinEffect::Run(step) => step,
            JoinEffect::WriteIntent(intent) => {
                self.intent = Some(intent);
                match intent.phase {
                    Phase::Intended => JoinStep::WriteIntent,
                    Phase::Done => JoinStep::WriteDone,
                }
            }
            JoinEffect::Lock(_) => JoinStep::Lock,
            JoinEffect::Again(step) => {
                self.ports.pause.pause(self.failures).await;
                self.failures = self.failures.saturating_add(1);
                step
            }
            JoinEffect::Wait { doublings } => {
                self.ports.pause.pause(doublings).await;
                return Some(JoinEvent::Waited);
            }
            JoinEffect::Finish(outcome) => {
                self.outcome = Some(outcome);
                return None;
            }
        };
        self.ports.pause.began(&step);
        let done = self.attempt(step).await;
        let done = done.inspect_err(|error| self.ports.pause.failed(&step, error));
        Some(done.unwrap_or(JoinEvent::Failed(step)))
    }
}
