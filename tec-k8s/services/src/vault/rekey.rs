//! Replaces the key that opens the vault, so that a crash at any step leaves a file that opens it.

use serde::Deserialize;
use serde_json::json;
use tec_core::plan::Plan;
use tec_core::secret::{SecretArray, SecretBytes};

use super::keyring::{Keyring, Nonces, Opened};
use super::{
    AesSecret, Effect, Event, Outcome, Peers, Platform, Request, Response, Verdict, Wish, answer,
};
use crate::Fatal;

/// Calls of the vault that replace its key.
const ATTEMPT: &str = "sys/rotate/root/init";
const UPDATE: &str = "sys/rotate/root/update";
const VERIFY: &str = "sys/rotate/root/verify";

/// Replaces the vault's key, on request. Only the first pod does, with an open vault and the controller's own
/// login.
///
/// ```text
///   keys in the file    vault
///   A                   an attempt begins; A is proven, the vault names B and keeps A in use
///   A, B                every pod has the file; B is verified: from now on B is in use, and A is not
///   B
/// ```
/// A process that finds two keys cannot know which one is in use. It begins another attempt, which only that
/// one can prove: A leads to A and another B; B means that the replacement is done.
#[derive(Debug)]
pub struct Rekey {
    platform: Platform,
    token: SecretBytes,
    nonces: Nonces,
    phase: Phase,
    secret: Option<AesSecret>,
    keyring: Option<Keyring>,
    /// How many times the vault refused one of the keys.
    refusals: u32,
    /// How many attempts this process began.
    attempts: u32,
}

#[derive(Debug)]
enum Phase {
    Begin,
    Secret,
    File,
    /// Whether the vault waits for the next key to be verified.
    Pending,
    Cancelled,
    Attempt,
    Update,
    /// The file with both keys is durable.
    Both(String),
    Peers(String),
    Verify,
    /// The file with only the new key is durable.
    Replaced,
    /// The attempt that proved the new key is cancelled.
    Proven,
    Cleared,
    End,
}

#[derive(Deserialize)]
struct Attempt {
    #[serde(default)]
    nonce: String,
    #[serde(default)]
    started: bool,
}

#[derive(Deserialize)]
struct Updated {
    #[serde(default)]
    keys_base64: Vec<String>,
    #[serde(default)]
    verification_nonce: String,
}

impl Plan for Rekey {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let phase = std::mem::replace(&mut self.phase, Phase::End);
        let effect = match (phase, event) {
            (Phase::End, _) => return Vec::new(),
            (Phase::Begin, _) => Some(self.go(Phase::Secret, Effect::ReadSecret)),
            (Phase::Secret, Event::Secret(Some(secret))) => {
                self.secret = Some(secret);
                Some(self.go(Phase::File, Effect::ReadFile))
            }
            (Phase::File, Event::File(Some(file))) => self.open(&file),
            (Phase::Pending, Event::Answered(answer)) => Some(self.pending(&answer)),
            (Phase::Cancelled, Event::Answered(_)) => {
                let body = json!({
                    "secret_shares": 1, "secret_threshold": 1, "require_verification": true,
                });
                Some(self.call(Phase::Attempt, Request::post(ATTEMPT, &body)))
            }
            (Phase::Attempt, Event::Answered(answer)) => self.update(&answer),
            (Phase::Update, Event::Answered(answer)) => self.updated(&answer),
            (Phase::Both(nonce), Event::Done) => self.share(nonce),
            (Phase::Peers(nonce), Event::Files(files)) => self.shared(&nonce, &files),
            (Phase::Verify, Event::Answered(answer)) => self.verified(&answer),
            (Phase::Replaced, Event::Done) => {
                // There is one only if it proved the new key.
                Some(self.call(Phase::Proven, Request::delete(ATTEMPT)))
            }
            (Phase::Proven, Event::Answered(_)) => {
                Some(self.go(Phase::Cleared, Effect::ClearVaultKey))
            }
            _ => None,
        };
        // Done, or it failed: the next round continues.
        vec![effect.unwrap_or_else(|| self.finish(Outcome::Up))]
    }
}

impl Rekey {
    /// A plan for the first pod; `token` is the controller's own for the vault, `seed` fresh randomness.
    pub fn new(platform: Platform, token: SecretBytes, seed: SecretArray<32>) -> Self {
        Self {
            platform,
            token,
            nonces: Nonces::new(seed),
            phase: Phase::Begin,
            secret: None,
            keyring: None,
            refusals: 0,
            attempts: 0,
        }
    }

    fn go(&mut self, phase: Phase, effect: Effect) -> Effect {
        self.phase = phase;
        effect
    }

    fn call(&mut self, phase: Phase, request: Request) -> Effect {
        let request = request.by(&self.token);
        self.go(phase, Effect::Call(request))
    }

    fn finish(&mut self, outcome: Outcome) -> Effect {
        self.go(Phase::End, Effect::Finish(Ok(outcome)))
    }

    /// Continues if another key is requested, or if its replacement began.
    fn open(&mut self, file: &[u8]) -> Option<Effect> {
        let secret = self.secret.as_ref()?;
        let is_wished = secret.vault_key == Wish::Next;
        let Opened::Current(keyring) = Opened::of(file, &self.platform, Some(secret)) else {
            return None;
        };
        let has_begun = keyring.next.is_some();
        self.keyring = Some(keyring);
        match (has_begun, is_wished) {
            (true, _) => Some(self.call(Phase::Pending, Request::get(VERIFY))),
            (false, true) => Some(self.attempt()),
            (false, false) => None,
        }
    }

    /// An attempt whose new key is in the file goes on; otherwise another one begins.
    fn pending(&mut self, answer: &Response) -> Effect {
        match answer.data::<Attempt>() {
            Ok(Attempt { nonce, started: true }) if !nonce.is_empty() => {
                self.share(nonce).unwrap_or_else(|| self.attempt())
            }
            _ => self.attempt(),
        }
    }

    /// First cancels what a dead process, or an admin, began.
    fn attempt(&mut self) -> Effect {
        self.attempts += 1;
        self.call(Phase::Cancelled, Request::delete(ATTEMPT))
    }

    fn update(&mut self, answer: &Response) -> Option<Effect> {
        let nonce = answer.data::<Attempt>().ok()?.nonce;
        let key = self.keyring.as_ref()?.candidate(self.refusals);
        let body = json!({"key": answer::text(key, "to replace it"), "nonce": nonce});
        Some(self.call(Phase::Update, Request::post(UPDATE, &body)))
    }

    /// Whether the vault accepted the key: only the one in use is.
    fn updated(&mut self, answer: &Response) -> Option<Effect> {
        let keyring = self.keyring.as_ref()?;
        let is_next = keyring.next.is_some() && self.refusals % 2 == 1;
        match answer.verdict() {
            Verdict::Good if is_next => self.settle(),
            Verdict::Good => {
                let Updated { mut keys_base64, verification_nonce } = answer.data().ok()?;
                let new = SecretBytes::new(keys_base64.pop()?.into_bytes());
                let both = keyring.then(&keyring.first, Some(new));
                self.write(both, Phase::Both(verification_nonce))
            }
            Verdict::Invalid if keyring.next.is_some() && self.refusals == 0 => {
                self.refusals += 1;
                Some(self.attempt())
            }
            // The vault will not open with the file.
            Verdict::Invalid => Some(self.finish(Outcome::WithoutKey(Fatal::UnsealRefused))),
            _ => None,
        }
    }

    fn write(&mut self, keyring: Keyring, then: Phase) -> Option<Effect> {
        let secret = self.secret.as_ref()?;
        let file = keyring.wrap(&self.platform, secret, &mut self.nonces).ok()?;
        self.keyring = Some(keyring);
        Some(self.go(then, Effect::WriteFile(file)))
    }

    /// Every pod must have both keys before the new one is in use.
    fn share(&mut self, nonce: String) -> Option<Effect> {
        match self.platform.peers {
            Peers::Alone => self.verify(&nonce),
            Peers::Raft => Some(self.go(Phase::Peers(nonce), Effect::FetchFromPeers)),
        }
    }

    fn shared(&mut self, nonce: &str, files: &[Option<Vec<u8>>]) -> Option<Effect> {
        let own = self.keyring.as_ref()?.next.as_ref()?;
        let has_both = |file: &Option<Vec<u8>>| {
            let opened = Opened::of(file.as_deref()?, &self.platform, self.secret.as_ref());
            Some(opened.keyring()?.next?.ct_eq(own))
        };
        let is_shared = files.iter().all(|file| has_both(file) == Some(true));
        is_shared.then(|| self.verify(nonce))?
    }

    fn verify(&mut self, nonce: &str) -> Option<Effect> {
        let next = self.keyring.as_ref()?.next.as_ref()?;
        let body = json!({"key": answer::text(next, "to take it in use"), "nonce": nonce});
        Some(self.call(Phase::Verify, Request::post(VERIFY, &body)))
    }

    fn verified(&mut self, answer: &Response) -> Option<Effect> {
        match answer.verdict() {
            Verdict::Good => self.settle(),
            // It waits for the key of an attempt whose process died before it was in the file.
            Verdict::Invalid if self.attempts == 0 => Some(self.attempt()),
            _ => None,
        }
    }

    /// The vault accepted the new key as the one in use: the old one is no longer needed.
    fn settle(&mut self) -> Option<Effect> {
        let keyring = self.keyring.as_ref()?;
        let only = keyring.then(keyring.next.as_ref()?, None);
        self.write(only, Phase::Replaced)
    }
}
