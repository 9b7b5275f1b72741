//! What the controller does with its own login: everything but roles and policies.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::converge::{Converge, Mode, Turn};
use super::{Platform, Request, Response, Verdict, answer, call, desired, root};
use crate::plan::Plan;
use crate::secret::SecretBytes;
use crate::service::Fatal;
use crate::service::caller::Role;
use crate::service::tls::Material;

/// First wait after a failure; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Number of consecutive refusals of a login that count as drift. One refusal means little: the
/// vault gives the same answer while the API server, which it asks, is unavailable.
const LOGIN_REFUSALS: u32 = 6;

/// An event that the plan receives.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "shells make them")]
pub enum SetupEvent {
    /// Begin.
    Start,
    /// The wait is over.
    Elapsed,
    /// The controller's own service-account token.
    Token(SecretBytes),
    /// The vault answered.
    Answered(Response),
    /// The write is durable.
    Done,
    /// The write failed, or it is unknown whether it happened.
    Failed,
}

/// An effect that the plan requests.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "shells carry them out")]
pub enum SetupEffect {
    /// Read the controller's service-account token. Answered by `Token`.
    ReadToken,
    /// Call the vault. Answered by `Answered`.
    Call(Request),
    /// Publish certificate and CAs where callers find them. Answered by `Done`.
    Publish(Published),
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
        /// Its certificate and key.
        tls: Material,
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
    login: Option<Login>,
}

#[derive(Debug)]
enum Phase {
    Token,
    Login,
    Accessor,
    Audit(Converge, String),
    Objects(Converge),
    Issue,
    Publish(Material),
    Pause,
    End,
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Accessor => "list of login methods",
            Self::Audit(..) => "look at roles and policies",
            Self::Objects(_) => "engines, authorities and keys",
            Self::Issue => "certificate of the controller",
            Self::Token | Self::Publish(_) | Self::Pause | Self::End => "nothing",
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
            (Phase::Token, SetupEvent::Token(token)) => self.log_in(&token),
            (Phase::Publish(tls), SetupEvent::Done) => self.ready(tls),
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
        Self { platform, phase: Phase::Token, tries: 0, refusals: 0, login: None }
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

    fn log_in(&mut self, token: &SecretBytes) -> SetupEffect {
        let body = json!({
            "role": Role::Controller.as_str(),
            "jwt": answer::text(token, "to log in"),
        });
        self.call(Phase::Login, Request::post("auth/kubernetes/login", &body))
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
                let accessor = root::accessor(answer)?;
                let objects = desired::root_objects(&self.platform, &accessor);
                let mut audit = Converge::new(objects, Mode::Audit);
                let turn = audit.begin();
                self.turn(turn, |_| Phase::Audit(audit, accessor))
            }
            Phase::Audit(mut audit, accessor) => match audit.answer(answer) {
                Turn::Done => {
                    let objects = desired::runtime_objects(&self.platform, &accessor);
                    let mut objects = Converge::new(objects, Mode::Repair);
                    let turn = objects.begin();
                    self.turn(turn, |_| Phase::Objects(objects))
                }
                turn => self.turn(turn, |_| Phase::Audit(audit, accessor)),
            },
            Phase::Objects(mut objects) => match objects.answer(answer) {
                Turn::Done => Some(self.issue()),
                turn => self.turn(turn, |_| Phase::Objects(objects)),
            },
            Phase::Issue => {
                let tls = Material::from_issued(answer).ok()?;
                let published =
                    Published { chain: tls.chain.clone(), authorities: tls.authorities.clone() };
                Some(self.go(Phase::Publish(tls), SetupEffect::Publish(published)))
            }
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

    fn turn(&mut self, turn: Turn, phase: impl FnOnce(&Self) -> Phase) -> Option<SetupEffect> {
        match turn {
            Turn::Call(request) => {
                let phase = phase(self);
                Some(self.call(phase, request))
            }
            Turn::Drift(name) => Some(self.finish(SetupEnd::RootDrift(name))),
            Turn::Conflict(name) => Some(self.finish(SetupEnd::Fatal(Fatal::Conflict, name))),
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

    fn issue(&mut self) -> SetupEffect {
        let host = self.platform.controller.host();
        let subject = call::Subject {
            hosts: vec![host.clone(), "localhost".to_owned()],
            common_name: host,
            addresses: Vec::new(),
        };
        let request = call::issue(Role::Controller.as_str(), &subject);
        self.call(Phase::Issue, request)
    }

    fn ready(&mut self, tls: Material) -> SetupEffect {
        let Some(login) = self.login.take() else {
            return self.pause(None);
        };
        self.finish(SetupEnd::Ready {
            token: login.client_token,
            token_life: Duration::from_secs(login.lease_duration),
            tls,
        })
    }
}
