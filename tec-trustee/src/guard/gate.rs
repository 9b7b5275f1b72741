//! Who decides, and where the decision is recorded.

use std::sync::Arc;

use tec_core::attest::{Attempt, VerifiedEvidence, VerifyError};
use tec_core::boot::{BootStates, Pins};
use tec_core::code::Code;
use tec_core::explain::Gate;
use tec_core::flow;
use tec_core::flow::{AdmitPorts, Boots, Closed, ReleaseError};
use tec_core::id::{AttemptId, ResourcePath};
use tec_core::port::{
    AkRegistry, AttemptLog, AuditAction, AuditEvent, AuditSink, Clock, ClockLog, ImageRegistry,
    PlatformLog, PortError,
};

/// The findings about one piece of evidence.
#[derive(Clone, Debug)]
pub struct Passage {
    record: Attempt,
    refused: Option<Code>,
}

impl Passage {
    /// The passage of an attempt, which is refused if one of its attestation checks failed.
    pub fn of(record: Attempt) -> Self {
        Self { refused: record.ladder.code, record }
    }

    /// Number of the attempt.
    pub fn attempt(&self) -> AttemptId {
        self.record.id
    }

    /// The attempt as it was recorded.
    pub fn record(&self) -> &Attempt {
        &self.record
    }

    /// Why the evidence must not pass; `None` if it may.
    pub fn refused(&self) -> Option<Code> {
        self.refused
    }
}

/// How the key broker answered what the guard forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerAnswer {
    /// With the resource.
    Granted,
    /// With a refusal.
    Refused(Code),
}

/// Approved images, and what counts as a boot of one.
#[derive(Clone, Debug)]
pub struct ApprovedBoots {
    /// The images.
    pub images: Arc<dyn ImageRegistry>,
    /// Which registers must match.
    pub pins: Pins,
    /// Boot states that machines may be in.
    pub states: Arc<dyn BootStates>,
}

/// Decides over the registries which machine a piece of evidence belongs to, with or without approved images,
/// and records the outcome, which is durable when a call returns.
#[derive(Clone, Debug)]
pub struct Registries {
    /// Keys and their machines.
    pub aks: Arc<dyn AkRegistry>,
    /// Approved boots; `None` leaves the registers to the broker's policies.
    pub boots: Option<ApprovedBoots>,
    /// Last known clock of each TPM.
    pub clocks: Arc<dyn ClockLog>,
    /// The platform of each machine; `None` leaves firmware and Secure Boot policy unchecked.
    pub platforms: Option<Arc<dyn PlatformLog>>,
    /// Attempts, for `tec explain`.
    pub attempts: Arc<dyn AttemptLog>,
    /// Audit log.
    pub audit: Arc<dyn AuditSink>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

impl Registries {
    /// Examines evidence, good or bad, and records the attempt if it is refused.
    pub async fn admit(
        &self,
        attempt: AttemptId,
        evidence: &Result<VerifiedEvidence, VerifyError>,
    ) -> Result<Passage, PortError> {
        let found = flow::look(self.admit_ports(), attempt, evidence).await?;
        let passage = Passage::of(found.appraisal.attempt);
        if passage.refused.is_some() || evidence.is_err() {
            flow::record(self.admit_ports(), &passage.record, evidence.is_ok()).await?;
        }
        Ok(passage)
    }

    /// Records the attempt of evidence that is forwarded to the broker, while the broker examines it; the
    /// broker's answer waits for the record.
    pub async fn passed(&self, passage: &Passage) -> Result<(), PortError> {
        flow::record(self.admit_ports(), &passage.record, true).await
    }

    /// Whether an attested machine may ask the broker for a resource now.
    pub async fn permit(&self, passage: &Passage, path: &ResourcePath) -> Result<(), ReleaseError> {
        let closed = self.closed(passage, path).await?;
        let Some(closed) = closed else {
            return Ok(());
        };
        let code = closed.code;
        let subject = format!("{code} attempt {}", passage.attempt());
        self.note(passage, AuditAction::KeyRefused, subject).await?;
        let mut record = passage.record.clone();
        closed.note(&mut record.ladder);
        self.attempts.record(&record).await?;
        Err(ReleaseError::Refused(code))
    }

    /// Records what the broker answered; a granted resource waits for the record. Without a path, the broker
    /// answered the evidence itself.
    pub async fn settle(
        &self,
        passage: &Passage,
        path: Option<&ResourcePath>,
        answer: BrokerAnswer,
    ) -> Result<(), PortError> {
        let attempt = passage.attempt();
        let mut record = passage.record.clone();
        let path = path.map_or_else(|| "attest".to_owned(), ToString::to_string);
        let (action, subject) = match answer {
            BrokerAnswer::Granted => {
                record.ladder.pass(Gate::ReleasePolicy, "the key broker");
                record.ladder.pass(Gate::Key, format!("released {path}"));
                (AuditAction::KeyReleased, format!("{path} attempt {attempt}"))
            }
            BrokerAnswer::Refused(code) => {
                let gate = match code {
                    Code::KeyMissing => Gate::Key,
                    _ => Gate::ReleasePolicy,
                };
                record.ladder.code = Some(code);
                record.ladder.fail(gate, format!("the key broker refused {path}"));
                (AuditAction::KeyRefused, format!("{code} attempt {attempt}"))
            }
        };
        // Both concurrently, so that a store writes both in one go.
        let noted = self.note(passage, action, subject);
        let (noted, recorded) = tokio::join!(noted, self.attempts.record(&record));
        noted.and(recorded)
    }

    fn admit_ports(&self) -> AdmitPorts<'_> {
        let boots = self.boots.as_ref().map(|boots| Boots {
            images: &*boots.images,
            pins: boots.pins,
            states: &*boots.states,
        });
        AdmitPorts::new(
            &*self.aks,
            boots,
            &*self.clocks,
            &*self.attempts,
            &*self.audit,
            &*self.clock,
        )
        .with_platforms(self.platforms.as_deref())
    }

    async fn note(
        &self,
        passage: &Passage,
        action: AuditAction,
        subject: String,
    ) -> Result<(), PortError> {
        let machine = passage.record.machine;
        let event = AuditEvent::new(self.clock.now(), action, machine, subject);
        self.audit.append(&event).await
    }

    async fn closed(
        &self,
        passage: &Passage,
        path: &ResourcePath,
    ) -> Result<Option<Closed>, PortError> {
        let (Some(own), Some(key)) = (passage.record.machine, passage.record.ak) else {
            return Ok(Some(Closed::new(Gate::AkBound, "no machine attested")));
        };
        if path.machine().is_some_and(|machine| machine != own) {
            let why = format!("machine {own} asked for {path}, which is not its own");
            return Ok(Some(Closed::new(Gate::ReleasePolicy, why)));
        }
        let closed = flow::taken_back(&*self.aks, own, &key).await?;
        let late = path.machine().and_then(|_| Closed::after_initramfs(&passage.record));
        Ok(closed.or(late))
    }
}
