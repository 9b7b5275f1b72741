//! What only a root token may do: the token is created for this work, used, and revoked together
//! with all others.

use std::collections::VecDeque;

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use serde::Deserialize;
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;

use super::converge::{Converge, Mode, Turn};
use super::{Platform, Request, Response, Verdict, answer, desired};

/// With or without padding: the vault omits it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The next step.
#[derive(Debug)]
pub(super) enum Step {
    Call(Request),
    /// Everything is written, and no root token is left.
    Done,
    /// An object cannot be repaired.
    Conflict,
    /// Start over, with another root token.
    Failed,
}

/// The work, from a root token or from the key that creates one.
#[derive(Debug)]
pub(super) struct RootWork {
    state: State,
    token: Option<SecretBytes>,
}

#[derive(Debug)]
enum State {
    /// Cancels an attempt that a dead process began.
    Cancel,
    Begin,
    Update {
        otp: SecretBytes,
    },
    Auth(Converge),
    Accessor,
    Objects(Converge),
    Own,
    List {
        own: String,
    },
    Sweep {
        own: String,
        left: VecDeque<String>,
    },
    Revoke {
        own: String,
        left: VecDeque<String>,
    },
    RevokeSelf,
}

#[derive(Deserialize)]
struct Attempt {
    nonce: String,
    #[serde(deserialize_with = "answer::secret")]
    otp: SecretBytes,
}

#[derive(Deserialize)]
struct Made {
    /// The same answer also has it as `encoded_root_token`.
    encoded_token: String,
}

#[derive(Deserialize)]
struct Token {
    accessor: String,
    #[serde(default)]
    policies: Vec<String>,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<String>,
}

impl RootWork {
    /// Starts with this token, or creates one.
    pub(super) fn begin(token: Option<SecretBytes>) -> (Self, Request) {
        let Some(token) = token else {
            let state = State::Cancel;
            return (Self { state, token }, Request::delete("sys/generate-root/attempt"));
        };
        let mut work = Self { state: State::Cancel, token: Some(token) };
        let request = work.auth();
        (work, request)
    }

    fn auth(&mut self) -> Request {
        let mut converge = Converge::new(vec![desired::auth_method()], Mode::Repair);
        let turn = converge.begin();
        self.state = State::Auth(converge);
        match turn {
            Turn::Call(request) => self.signed(request),
            // A list of one object begins with a call.
            _ => self.signed(Request::get("sys/auth")),
        }
    }

    fn signed(&self, request: Request) -> Request {
        match &self.token {
            Some(token) => request.by(token),
            None => request,
        }
    }

    fn call(&mut self, state: State, request: Request) -> Step {
        self.state = state;
        Step::Call(self.signed(request))
    }

    /// The next call; `key` is the vault's key, which creates root tokens.
    pub(super) fn answer(
        &mut self,
        answer: &Response,
        platform: &Platform,
        key: &SecretBytes,
    ) -> Step {
        self.advance(answer, platform, key).unwrap_or(Step::Failed)
    }

    fn advance(
        &mut self,
        answer: &Response,
        platform: &Platform,
        key: &SecretBytes,
    ) -> Result<Step, Verdict> {
        match &mut self.state {
            State::Cancel => {
                Ok(self.call(State::Begin, Request::post("sys/generate-root/attempt", &json!({}))))
            }
            State::Begin => self.update(answer, key),
            State::Update { otp } => {
                let made: Made = answer.json().map_err(|_| refused(answer))?;
                self.token = Some(decode(&made.encoded_token, otp).ok_or(Verdict::Unavailable)?);
                let request = self.auth();
                Ok(Step::Call(request))
            }
            State::Auth(converge) => {
                let turn = converge.answer(answer);
                Ok(self.turn(turn, State::Accessor, || Request::get("sys/auth")))
            }
            State::Accessor => {
                let accessor = accessor(answer).ok_or_else(|| refused(answer))?;
                let objects = desired::root_objects(platform, &accessor);
                let mut converge = Converge::new(objects, Mode::Repair);
                let turn = converge.begin();
                self.state = State::Objects(converge);
                Ok(self.turn(turn, State::Own, || Request::get("auth/token/lookup-self")))
            }
            State::Objects(converge) => {
                let turn = converge.answer(answer);
                Ok(self.turn(turn, State::Own, || Request::get("auth/token/lookup-self")))
            }
            _ => self.sweep(answer),
        }
    }

    fn update(&mut self, answer: &Response, key: &SecretBytes) -> Result<Step, Verdict> {
        let attempt: Attempt = answer.json().map_err(|_| refused(answer))?;
        let body = json!({
            "key": answer::text(key, "to make a root token"),
            "nonce": attempt.nonce,
        });
        let request = Request::post("sys/generate-root/update", &body);
        Ok(self.call(State::Update { otp: attempt.otp }, request))
    }

    fn turn(&mut self, turn: Turn, then: State, request: impl FnOnce() -> Request) -> Step {
        match turn {
            Turn::Call(request) => Step::Call(self.signed(request)),
            Turn::Done => self.call(then, request()),
            // Only one pod writes these.
            Turn::Conflict(_) | Turn::Contested(_) | Turn::Drift(_) => Step::Conflict,
            Turn::Failed(_) => Step::Failed,
        }
    }

    /// Finds and revokes every root token except its own, and then its own.
    fn sweep(&mut self, answer: &Response) -> Result<Step, Verdict> {
        match &mut self.state {
            State::Own => {
                let own: Token = answer.data().map_err(|_| refused(answer))?;
                let state = State::List { own: own.accessor };
                Ok(self.call(state, Request::list("auth/token/accessors")))
            }
            State::List { own } => {
                let Keys { keys } = answer.data().map_err(|_| refused(answer))?;
                let own = std::mem::take(own);
                Ok(self.look_up(own, keys.into()))
            }
            State::Sweep { own, left } => {
                let (own, mut left) = (std::mem::take(own), std::mem::take(left));
                let accessor = left.pop_front().unwrap_or_default();
                let is_root = match answer.verdict() {
                    Verdict::Good => answer
                        .data::<Token>()
                        .map_err(|_| Verdict::Unavailable)?
                        .policies
                        .iter()
                        .any(|policy| policy == "root"),
                    // It expired in the meantime.
                    Verdict::Absent | Verdict::Denied | Verdict::Invalid => false,
                    verdict => return Err(verdict),
                };
                if !is_root || accessor == own {
                    return Ok(self.look_up(own, left));
                }
                let request = by_accessor("auth/token/revoke-accessor", &accessor);
                Ok(self.call(State::Revoke { own, left }, request))
            }
            State::Revoke { own, left } => {
                if answer.verdict() != Verdict::Good {
                    return Err(refused(answer));
                }
                let (own, left) = (std::mem::take(own), std::mem::take(left));
                Ok(self.look_up(own, left))
            }
            State::RevokeSelf if answer.verdict() == Verdict::Good => Ok(Step::Done),
            _ => Err(refused(answer)),
        }
    }

    fn look_up(&mut self, own: String, left: VecDeque<String>) -> Step {
        match left.front() {
            Some(accessor) => {
                let request = by_accessor("auth/token/lookup-accessor", accessor);
                self.call(State::Sweep { own, left }, request)
            }
            None => {
                self.call(State::RevokeSelf, Request::post("auth/token/revoke-self", &json!({})))
            }
        }
    }
}

fn by_accessor(path: &str, accessor: &str) -> Request {
    Request::post(path, &json!({"accessor": accessor}))
}

/// The verdict for an unusable answer.
fn refused(answer: &Response) -> Verdict {
    match answer.verdict() {
        Verdict::Good => Verdict::Unavailable,
        verdict => verdict,
    }
}

/// Accessor of the Kubernetes auth method, from the list of methods.
pub(super) fn accessor(answer: &Response) -> Option<String> {
    let methods: Value = answer.data().ok()?;
    let accessor = methods.get("kubernetes/")?.get("accessor")?.as_str()?;
    Some(accessor.to_owned())
}

/// Decodes the new root token, which is masked by a one-time pad of the same length.
fn decode(encoded: &str, otp: &SecretBytes) -> Option<SecretBytes> {
    let encoded = BASE64.decode(encoded).ok()?;
    let otp = otp.expose("to read the new root token");
    (encoded.len() == otp.len())
        .then(|| SecretBytes::new(encoded.iter().zip(otp).map(|(a, b)| a ^ b).collect()))
}
