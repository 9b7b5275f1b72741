//! Attestation attempts as Events about their machines.
//!
//! ```text
//!   record ─► AttemptLog of the guard
//!        └──► Tally: one line for each machine and outcome ─ run() ─► Event, series counted up
//! ```
//! *What it is*: a log that passes every attempt on to another log and also reports it to the cluster.
//! Recording waits for no API server. *What it is not*: proof. Anyone who may create Events can write the
//! same. They are for people; nothing depends on them.
//!
//! # Floods
//! Anyone who knows a public key can make attempts fail in its name. However many there are, the same outcome
//! for a machine is one Event, written at most once in `QUIET`, all of them together at `PER_SECOND`, and at
//! most `MOST_LINES` lines are kept. Outcomes that anyone can cause get a small part of them, and are
//! reported after all those that machines signed.

mod tally;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_core::port::{AttemptLog, PortError, PortErrorKind, chain};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::tally::{Due, Line, News, Tally};
use super::KubeRegistry;
use super::error::{is_not_found, port_error};
use crate::{api, signal};

const REPORTER: &str = "kbs-guard";

/// Shortest interval between two reports of the same outcome for a machine.
const QUIET: Duration = Duration::from_secs(30);
/// Events written per second.
const PER_SECOND: u32 = 20;
/// Outcomes that are kept; enough for a fleet of 10,000 machines that all boot at the same time.
const MOST_LINES: usize = 16_384;
/// The part of them for outcomes that anyone can cause.
const MOST_OF_NOBODY: usize = MOST_LINES / 8;

/// The outcome of an attempt, as reported to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The key was released.
    Released,
    Refused(Code),
}

impl Outcome {
    /// `None` while the evidence is examined. Evidence that nobody signed is reported as such and under no
    /// other code: the machine whose key it names had no part in it.
    fn of(attempt: &Attempt) -> Option<Self> {
        match attempt.ladder.code {
            Some(code) if attempt.unsigned && !is_of_nobody(code) => None,
            Some(code) => Some(Self::Refused(code)),
            // A node that attests while it runs requests no key; its status says so.
            None => {
                attempt.ladder.is_released().then_some(Self::Released).filter(|_| !attempt.unsigned)
            }
        }
    }

    fn event(self) -> signal::Event {
        match self {
            Self::Released => signal::Event::AttestationSucceeded,
            Self::Refused(Code::ReleaseDenied) => signal::Event::ResourcePolicyDenied,
            Self::Refused(_) => signal::Event::AttestationFailed,
        }
    }

    /// Must be the same for each attempt with this outcome: the API server does not allow it to change.
    fn note(self) -> String {
        match self {
            Self::Released => self.event().help().to_owned(),
            Self::Refused(code) => format!("{code} {}", code.title()),
        }
    }

    /// Whether anyone can make attempts with this outcome.
    fn is_of_nobody(self) -> bool {
        matches!(self, Self::Refused(code) if is_of_nobody(code))
    }

    /// Used as part of an object's name.
    fn word(self) -> String {
        match self {
            Self::Released => "released".to_owned(),
            Self::Refused(code) => code.as_str().to_ascii_lowercase(),
        }
    }
}

/// Codes of evidence that nobody signed.
fn is_of_nobody(code: Code) -> bool {
    matches!(code, Code::EvidenceMalformed | Code::QuoteInvalid)
}

/// An [`AttemptLog`] that also reports attempts to the cluster.
#[derive(Debug)]
pub struct AttemptEvents {
    log: Arc<dyn AttemptLog>,
    registry: KubeRegistry,
    /// Never held across an await.
    tally: Mutex<Tally>,
    changed: Notify,
}

impl AttemptEvents {
    /// Passes attempts on to `log`, and reports them in the namespace of `registry` while [`run`](Self::run)
    /// is polled.
    pub fn new(log: Arc<dyn AttemptLog>, registry: KubeRegistry) -> Self {
        Self { log, registry, tally: Mutex::default(), changed: Notify::new() }
    }

    /// Writes Events forever.
    ///
    /// # Cancel safety
    /// Events not written yet are written when it is polled again.
    pub async fn run(&self) {
        loop {
            let due = self.tally.lock().next(Instant::now());
            match due {
                Due::Now(line) => {
                    if let Err(error) = self.tell(&line).await {
                        let error = chain(&error);
                        tracing::warn!(machine.id = %line.machine, error, "an Event is not written");
                    } else {
                        self.tally.lock().told(&line);
                    }
                    tokio::time::sleep(Duration::from_secs(1) / PER_SECOND).await;
                }
                Due::At(then) => {
                    let sleep = tokio::time::sleep_until(then);
                    tokio::select! {
                        () = sleep => {}
                        () = self.changed.notified() => {}
                    }
                }
                Due::Never => self.changed.notified().await,
            }
        }
    }

    /// Increments the Event's count, or creates the Event.
    async fn tell(&self, line: &Line) -> Result<(), PortError> {
        let Some(machine) = self.registry.machine_object(&line.machine).await? else {
            return Ok(());
        };
        let operation = || format!("tell of an attempt of machine {}", line.machine);
        let object = event(&machine, line)
            .map_err(|error| PortError::new(PortErrorKind::Invalid, operation()).because(error))?;
        let events: Api<Event> = self.registry.objects();
        let patch = Patch::Merge(json!({
            // At least two (k8s.io/kubernetes, pkg/apis/core/validation/events.go).
            "series": {"count": line.count.max(2), "lastObservedTime": object.event_time},
        }));
        let (name, params) = (object.name_any(), PatchParams::default());
        match events.patch(&name, &params, &patch).await {
            Err(error) if is_not_found(&error) => {
                let made = events.create(&PostParams::default(), &object).await;
                made.map(drop).map_err(|error| port_error(operation(), error))
            }
            answer => answer.map(drop).map_err(|error| port_error(operation(), error)),
        }
    }
}

#[async_trait]
impl AttemptLog for AttemptEvents {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        self.log.record(attempt).await?;
        if let (Some(machine), Some(outcome)) = (attempt.machine, Outcome::of(attempt)) {
            let (attempt, at) = (attempt.id, attempt.at);
            let line = Line { machine, outcome, attempt, at, count: 1 };
            if self.tally.lock().add(line, Instant::now()) == News::Yes {
                self.changed.notify_one();
            }
        }
        Ok(())
    }

    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        self.log.find(id).await
    }

    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        self.log.latest(machine, limit).await
    }
}

/// The first Event of its series. Its name contains what makes two attempts the same, so that no search is
/// needed.
fn event(machine: &api::Machine, line: &Line) -> Result<Event, jiff::Error> {
    let kind = line.outcome.event();
    let time = MicroTime(jiff::Timestamp::from_second(line.at.unix_seconds())?);
    let uid = machine.uid().unwrap_or_default();
    Ok(Event {
        metadata: ObjectMeta {
            name: Some(format!("attempt-{uid}-{}", line.outcome.word())),
            ..ObjectMeta::default()
        },
        action: Some("Attest".to_owned()),
        event_time: Some(time),
        note: Some(line.outcome.note()),
        reason: Some(kind.as_str().to_owned()),
        regarding: Some(ObjectReference { uid: machine.uid(), ..machine.object_ref(&()) }),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(REPORTER.to_owned()),
        type_: Some(kind.event_type().as_str().to_owned()),
        ..Event::default()
    })
}
