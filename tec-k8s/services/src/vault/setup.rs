//! What the controller does with its own login: everything but roles and policies.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use tec_core::plan::Plan;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::converge::{Converge, Mode, Turn};
use super::{
    NATS_ACCOUNTS, NATS_OPERATOR, Platform, Record, Request, Response, Signers, Stage, Stored,
    Verdict, Wish, answer, call, desired, overlap, root,
};
use crate::Fatal;
use crate::caller::Role;
use crate::tls;
use crate::tls::Material;

/// First wait after a failure; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Number of consecutive refusals of a login that count as drift. One refusal means little: the
/// vault gives the same answer while the API server, which it asks, is unavailable.
const LOGIN_REFUSALS: u32 = 6;

/// Number of attempts in which an object differs after it was written. Controllers with other flags, as during
/// a rolling update, may write the same object: the last one wins, and none of them stops.
const CONTESTS: u32 = 10;

/// Name of the record of the CAs.
const AUTHORITIES: &str = "authorities";

/// An event that the plan receives.
#[derive(Debug)]
pub enum SetupEvent {
    /// Begin.
    Start,
    /// The wait is over.
    Elapsed,
    /// The controller's own service-account token.
    Token(SecretBytes),
    /// The vault answered.
    Answered(Response),
    /// Whether other CAs are requested, and the time.
    Wished(Wish, Timestamp),
    /// The write is durable.
    Done,
    /// The write failed, or it is unknown whether it happened.
    Failed,
}

/// An effect that the plan requests.
#[derive(Debug)]
pub enum SetupEffect {
    /// Read the controller's service-account token. Answered by `Token`.
    ReadToken,
    /// Call the vault. Answered by `Answered`.
    Call(Request),
    /// Publish certificate and CAs where callers find them. Answered by `Done`.
    Publish(Published),
    /// Update the copies of the CA certificates that an admin made for components. Answered by `Done`.
    Copy(String),
    /// Read whether other CAs are requested. Answered by `Wished`.
    ReadWish,
    /// Remove that request, if there is one, because it is being carried out. Answered by `Done`.
    ClearWish,
    /// Wait; holds the vault's answer, if that is the reason. Answered by `Elapsed`.
    Wait(Duration, Option<Refused>),
    /// Finished. Not answered.
    Finish(SetupEnd),
}

/// An unusable answer of the vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The step that failed.
    pub step: &'static str,
    /// Status of the answer.
    pub status: u16,
}

/// Public data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The controller's certificate chain up to the root, in PEM.
    pub chain: String,
    /// The CA certificates, in PEM.
    pub authorities: String,
}

/// What to do if roles or policies differ, which this plan may not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrift {
    /// End with [`SetupEnd::RootDrift`].
    Report,
    /// Serve with those that the vault has, and name the first that differs.
    Accept,
}

/// Outcome.
#[derive(Debug)]
#[non_exhaustive]
pub enum SetupEnd {
    /// The controller can serve.
    Ready {
        /// Its vault token.
        token: SecretBytes,
        /// Lifetime of the token.
        token_life: Duration,
        /// Its certificate and key, and the CAs that signed it.
        tls: Material,
        /// The CA certificates that everyone trusts, in PEM.
        trusted: String,
        /// How far the replacement of the CAs has come.
        stage: Stage,
        /// The generations of the keys that sign for NATS.
        signers: Signers,
        /// A role or policy that differs, and was accepted.
        drift: Option<String>,
    },
    /// The vault is sealed, for example after a restart: bring it up again.
    Sealed,
    /// Roles or policies differ from their desired state: bring the vault up again with the root
    /// part.
    RootDrift(String),
    /// An admin must intervene.
    Fatal(Fatal, String),
}

/// Creates and maintains what the controller may write, and obtains its certificate.
#[derive(Debug)]
pub struct Setup {
    platform: Platform,
    phase: Phase,
    tries: u32,
    /// Number of consecutive refused logins.
    refusals: u32,
    /// Number of attempts in which an object differed after it was repaired.
    contests: u32,
    on_drift: OnDrift,
    /// What differs, and was accepted.
    drift: Option<String>,
    login: Option<Login>,
    /// Accessor of the login method.
    accessor: String,
    signers: Signers,
}

#[derive(Debug)]
enum Phase {
    Token,
    Login,
    Accessor,
    Audit(Converge),
    Engines(Converge),
    /// How far the replacement of the keys for NATS has come.
    Operator,
    Accounts,
    /// How far the replacement of the CAs has come.
    Record,
    Objects(Converge, Stored),
    /// The CA certificates of each generation.
    Authorities(Stored, Trusted),
    Issue(Stored, Trusted),
    Publish(Issued),
    Copy(Issued),
    Wish(Issued),
    Clear(Issued, Record),
    Advance,
    Pause,
    End,
}

/// The CA certificates that everyone trusts, and the generations whose certificates are still to be read.
#[derive(Debug, Default)]
struct Trusted {
    pem: String,
    left: VecDeque<u32>,
}

/// What the controller has once its certificate is issued.
#[derive(Debug)]
struct Issued {
    stored: Stored,
    trusted: String,
    tls: Material,
}

#[derive(Deserialize)]
struct Chain {
    ca_chain: Vec<String>,
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Accessor => "list of login methods",
            Self::Audit(_) => "look at roles and policies",
            Self::Engines(_) => "engines",
            Self::Operator | Self::Accounts => "records of keys for NATS",
            Self::Record | Self::Advance => "record of the authorities",
            Self::Objects(..) => "authorities and keys",
            Self::Authorities(..) => "certificates of the authorities",
            Self::Issue(..) => "certificate of the controller",
            Self::Token
            | Self::Publish(_)
            | Self::Copy(_)
            | Self::Wish(_)
            | Self::Clear(..)
            | Self::Pause
            | Self::End => "nothing",
        }
    }
}

#[derive(Debug, Deserialize)]
struct Login {
    #[serde(deserialize_with = "answer::secret")]
    client_token: SecretBytes,
    lease_duration: u64,
}

#[derive(Deserialize)]
struct Auth {
    auth: Login,
}

impl Plan for Setup {
    type Event = SetupEvent;
    type Effect = SetupEffect;

    fn step(&mut self, event: SetupEvent) -> Vec<SetupEffect> {
        let phase = std::mem::replace(&mut self.phase, Phase::End);
        vec![match (phase, event) {
            (Phase::End, _) => return Vec::new(),
            (_, SetupEvent::Start) | (Phase::Pause, SetupEvent::Elapsed) => {
                self.go(Phase::Token, SetupEffect::ReadToken)
            }
            (Phase::Token, SetupEvent::Token(token)) => {
                self.call(Phase::Login, call::log_in(Role::Controller, &token))
            }
            (Phase::Publish(issued), SetupEvent::Done) => {
                let copy = SetupEffect::Copy(issued.trusted.clone());
                self.go(Phase::Copy(issued), copy)
            }
            (Phase::Copy(issued), SetupEvent::Done) => {
                self.go(Phase::Wish(issued), SetupEffect::ReadWish)
            }
            // A component may not have them yet: no stage ends now.
            (Phase::Copy(issued), SetupEvent::Failed) => self.ready(issued),
            (Phase::Wish(issued), SetupEvent::Wished(wish, now)) => self.proceed(issued, wish, now),
            (Phase::Clear(issued, next), SetupEvent::Done) => self.advance(&issued, next),
            // Nobody else unseals it: waiting here would mean waiting forever.
            (_, SetupEvent::Answered(answer)) if answer.status == 503 => {
                self.finish(SetupEnd::Sealed)
            }
            (phase, SetupEvent::Answered(answer)) => {
                let (step, status) = (phase.name(), answer.status);
                self.answered(phase, &answer)
                    .unwrap_or_else(|| self.pause(Some(Refused { step, status })))
            }
            _ => self.pause(None),
        }]
    }
}

impl Setup {
    /// A plan for this platform.
    pub fn new(platform: Platform) -> Self {
        Self {
            platform,
            phase: Phase::Token,
            tries: 0,
            refusals: 0,
            contests: 0,
            on_drift: OnDrift::Report,
            drift: None,
            login: None,
            accessor: String::new(),
            signers: Signers::FIRST,
        }
    }

    /// What to do if roles or policies differ; by default, it is reported.
    pub fn with_drift(self, on_drift: OnDrift) -> Self {
        Self { on_drift, ..self }
    }

    fn go(&mut self, phase: Phase, effect: SetupEffect) -> SetupEffect {
        self.phase = phase;
        effect
    }

    fn call(&mut self, phase: Phase, request: Request) -> SetupEffect {
        let request = match &self.login {
            Some(login) => request.by(&login.client_token),
            None => request,
        };
        self.go(phase, SetupEffect::Call(request))
    }

    fn pause(&mut self, refused: Option<Refused>) -> SetupEffect {
        let wait = FIRST_WAIT.saturating_mul(1 << self.tries.min(6));
        self.tries = self.tries.saturating_add(1);
        self.login = None;
        self.go(Phase::Pause, SetupEffect::Wait(wait.min(LONGEST_WAIT), refused))
    }

    /// `None`: start over after a wait.
    fn answered(&mut self, phase: Phase, answer: &Response) -> Option<SetupEffect> {
        match phase {
            Phase::Login if answer.says(&["invalid role name"]) => {
                Some(self.finish(SetupEnd::RootDrift("the controller's login role".to_owned())))
            }
            Phase::Login => {
                let Ok(Auth { auth }) = answer.json() else {
                    return self.refused(answer);
                };
                self.refusals = 0;
                self.login = Some(auth);
                Some(self.call(Phase::Accessor, Request::get("sys/auth")))
            }
            Phase::Accessor => {
                self.accessor = root::accessor(answer)?;
                let objects = desired::root_objects(&self.platform, &self.accessor);
                let mut audit = Converge::new(objects, Mode::Audit);
                let turn = audit.begin();
                self.turn(turn, || Phase::Audit(audit))
            }
            Phase::Audit(mut audit) => match audit.answer(answer) {
                Turn::Done => {
                    self.drift = None;
                    self.engines()
                }
                Turn::Drift(name) if self.on_drift == OnDrift::Accept => {
                    self.drift = Some(name);
                    self.engines()
                }
                turn => self.turn(turn, || Phase::Audit(audit)),
            },
            Phase::Engines(mut engines) => match engines.answer(answer) {
                Turn::Done => Some(self.call(Phase::Operator, Stored::read(NATS_OPERATOR))),
                turn => self.turn(turn, || Phase::Engines(engines)),
            },
            phase @ (Phase::Operator | Phase::Accounts | Phase::Record) => {
                match Stored::from_answer(answer)? {
                    Ok(stored) => self.recorded(&phase, stored),
                    Err(damaged) => {
                        let end = SetupEnd::Fatal(Fatal::Conflict, damaged.to_string());
                        Some(self.finish(end))
                    }
                }
            }
            Phase::Objects(mut objects, stored) => match objects.answer(answer) {
                Turn::Done => {
                    let left = stored.record.trusted().into();
                    Some(self.authorities(stored, Trusted { left, ..Trusted::default() }))
                }
                turn => self.turn(turn, || Phase::Objects(objects, stored)),
            },
            Phase::Authorities(stored, mut trusted) => {
                let Chain { ca_chain } = answer.data().ok()?;
                for authority in &ca_chain {
                    tls::push(&mut trusted.pem, authority);
                }
                trusted.left.pop_front();
                Some(self.authorities(stored, trusted))
            }
            Phase::Issue(stored, Trusted { pem: trusted, .. }) => {
                let tls = Material::from_issued(answer).ok()?;
                let published =
                    Published { chain: tls.chain.clone(), authorities: trusted.clone() };
                let issued = Issued { stored, trusted, tls };
                Some(self.go(Phase::Publish(issued), SetupEffect::Publish(published)))
            }
            Phase::Advance => match answer.verdict() {
                // Now, or by another pod: it is carried out.
                Verdict::Good | Verdict::Exists => Some(self.record()),
                _ => None,
            },
            _ => None,
        }
    }

    /// A login that the vault keeps refusing: its role, the method or the method's configuration
    /// has changed.
    fn refused(&mut self, answer: &Response) -> Option<SetupEffect> {
        match answer.status {
            400 | 403 | 404 => self.refusals += 1,
            _ => self.refusals = 0,
        }
        let is_drift = self.refusals >= LOGIN_REFUSALS;
        is_drift.then(|| self.finish(SetupEnd::RootDrift("the controller's login".to_owned())))
    }

    fn engines(&mut self) -> Option<SetupEffect> {
        let mut engines = Converge::new(desired::engines(), Mode::Repair);
        let turn = engines.begin();
        self.turn(turn, || Phase::Engines(engines))
    }

    fn turn(&mut self, turn: Turn, phase: impl FnOnce() -> Phase) -> Option<SetupEffect> {
        match turn {
            Turn::Call(request) => Some(self.call(phase(), request)),
            Turn::Drift(name) => Some(self.finish(SetupEnd::RootDrift(name))),
            Turn::Conflict(name) => Some(self.finish(SetupEnd::Fatal(Fatal::Conflict, name))),
            Turn::Contested(name) => {
                self.contests += 1;
                let is_over = self.contests > CONTESTS;
                is_over.then(|| self.finish(SetupEnd::Fatal(Fatal::Conflict, name)))
            }
            // A removed policy is also drift of the root part.
            Turn::Failed(Verdict::Denied) => {
                Some(self.finish(SetupEnd::RootDrift("the controller's policy".to_owned())))
            }
            Turn::Failed(_) | Turn::Done => None,
        }
    }

    fn finish(&mut self, end: SetupEnd) -> SetupEffect {
        self.go(Phase::End, SetupEffect::Finish(end))
    }

    fn recorded(&mut self, phase: &Phase, stored: Stored) -> Option<SetupEffect> {
        match phase {
            Phase::Operator => {
                self.signers.operator = stored.record;
                Some(self.call(Phase::Accounts, Stored::read(NATS_ACCOUNTS)))
            }
            Phase::Accounts => {
                self.signers.accounts = stored.record;
                Some(self.record())
            }
            _ => {
                let (platform, accessor) = (&self.platform, &self.accessor);
                let objects = desired::runtime_objects(platform, accessor, stored.record);
                let mut objects = Converge::new(objects, Mode::Repair);
                let turn = objects.begin();
                self.turn(turn, || Phase::Objects(objects, stored))
            }
        }
    }

    fn record(&mut self) -> SetupEffect {
        self.call(Phase::Record, Stored::read(AUTHORITIES))
    }

    /// Reads the certificates of the next generation; has the controller's own issued after the last one.
    fn authorities(&mut self, stored: Stored, trusted: Trusted) -> SetupEffect {
        match trusted.left.front() {
            Some(&generation) => {
                let request = desired::read_authority(generation);
                self.call(Phase::Authorities(stored, trusted), request)
            }
            None => self.issue(stored, trusted),
        }
    }

    fn issue(&mut self, stored: Stored, trusted: Trusted) -> SetupEffect {
        let host = self.platform.controller.host();
        let subject = call::Subject {
            hosts: vec![host.clone(), "localhost".to_owned()],
            common_name: host,
            addresses: Vec::new(),
        };
        let request = call::issue(Role::Controller.as_str(), &subject);
        self.call(Phase::Issue(stored, trusted), request)
    }

    /// Everything is as the record says, and published: begins the next stage if it is due.
    fn proceed(&mut self, issued: Issued, wish: Wish, now: Timestamp) -> SetupEffect {
        let record = issued.stored.record;
        match record.next(wish, now, overlap(self.platform.certificate_life)) {
            // It asked for this generation. A request that comes later asks for another one.
            Some(next) if record.stage == Stage::Made && wish == Wish::Next => {
                self.go(Phase::Clear(issued, next), SetupEffect::ClearWish)
            }
            Some(next) => self.advance(&issued, next),
            None => self.ready(issued),
        }
    }

    fn advance(&mut self, issued: &Issued, next: Record) -> SetupEffect {
        let request = issued.stored.replace(AUTHORITIES, next);
        self.call(Phase::Advance, request)
    }

    fn ready(&mut self, Issued { stored, trusted, tls }: Issued) -> SetupEffect {
        let Some(login) = self.login.take() else {
            return self.pause(None);
        };
        let drift = self.drift.take();
        self.finish(SetupEnd::Ready {
            token: login.client_token,
            token_life: Duration::from_secs(login.lease_duration),
            tls,
            trusted,
            stage: stored.record.stage,
            signers: self.signers,
            drift,
        })
    }
}
