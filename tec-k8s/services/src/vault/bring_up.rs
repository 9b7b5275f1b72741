//! Brings the vault from any state of pod, disk and Secret to unsealed, with its roles and policies.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tec_core::plan::Plan;
use tec_core::secret::{SecretArray, SecretBytes};

use super::keyring::{Keyring, Nonces, Opened};
use super::root::{RootWork, Step};
use super::{
    AesSecret, Effect, Event, Fresh, Ordinal, Outcome, Peers, Platform, Progress, Request,
    Response, RootPart, Rotation, SealKind, Sealed, Verdict, Wish, answer, call, desired,
};
use crate::Fatal;

/// First wait after a failure; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Number of checks for whether a follower has joined, which take about ten minutes.
const JOIN_TRIES: u32 = 60;
/// How many times a first pod that is a standby waits to become the leader before it continues.
const LEADER_TRIES: u32 = 5;

/// Brings the vault up. See the [module](super) for the order of steps.
#[derive(Debug)]
pub struct BringUp {
    platform: Platform,
    ordinal: Ordinal,
    root_part: RootPart,
    sealed: Sealed,
    /// The wrapping key to use if none exists yet.
    fresh: SecretArray<32>,
    nonces: Nonces,
    tries: u32,
    phase: Phase,
    secret: Option<AesSecret>,
    keyring: Option<Keyring>,
    /// How many times the vault did not open with one of the keys.
    refusals: u32,
    /// How many times work with a root token failed, perhaps because of the key.
    failures: u32,
    /// The root token from init, until it is refused.
    root: Option<SecretBytes>,
    unstored: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Phase {
    Probe,
    Secret(Seal),
    /// Whether a vault was set up before, although there is no Secret.
    Before(Seal),
    /// The next step reads the Secret again.
    Created(Seal),
    Intent,
    Removed,
    Noted,
    Init,
    File(Seal),
    /// Whether this volume records only that the vault was about to be initialized.
    Note(Seal),
    /// The volume no longer records that.
    Unnoted,
    Peer(Seal),
    /// Whether a peer knows other keys of the vault.
    Newer(Seal),
    /// The same, for a vault that refused all keys.
    Refused,
    /// Whether all other pods know the new wrapping key.
    Followers(Seal),
    Stored,
    /// The next step checks everything again.
    Again,
    Unseal,
    Health,
    Root(RootWork),
    Configured,
    Pause,
    End,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Seal {
    initialized: bool,
    sealed: bool,
}

#[derive(Deserialize)]
struct Initialized {
    #[serde(default)]
    keys_base64: Vec<String>,
    #[serde(default)]
    recovery_keys_base64: Vec<String>,
    #[serde(deserialize_with = "answer::secret")]
    root_token: SecretBytes,
}

impl Plan for BringUp {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, event: Event) -> Vec<Effect> {
        vec![self.next(event)].into_iter().flatten().collect()
    }
}

impl BringUp {
    /// A plan for this pod.
    pub fn new(platform: Platform, ordinal: Ordinal, root_part: RootPart, fresh: Fresh) -> Self {
        Self {
            platform,
            ordinal,
            root_part,
            sealed: Sealed::Open,
            fresh: fresh.key,
            nonces: Nonces::new(fresh.seed),
            tries: 0,
            phase: Phase::Probe,
            secret: None,
            keyring: None,
            refusals: 0,
            failures: 0,
            root: None,
            unstored: None,
        }
    }

    /// Sets how a sealed vault is handled (default: it is unsealed).
    pub fn with_sealed(mut self, sealed: Sealed) -> Self {
        self.sealed = sealed;
        self
    }

    fn next(&mut self, event: Event) -> Option<Effect> {
        let phase = std::mem::replace(&mut self.phase, Phase::End);
        Some(match (phase, event) {
            (Phase::End, _) => return None,
            (_, Event::Start) | (Phase::Pause, Event::Elapsed) => self.probe(),
            (Phase::Stored, Event::Failed) => self.store(),
            (Phase::Probe, Event::Answered(answer)) => match answer.json::<Seal>() {
                Ok(seal) => self.go(Phase::Secret(seal), Effect::ReadSecret),
                Err(_) => self.pause(),
            },
            (Phase::Secret(seal), Event::Secret(secret)) => self.decide(seal, secret),
            (Phase::Before(seal), Event::Authorities(None)) => self.create(seal),
            // A vault that was set up and whose wrapping key is gone: never create a second one.
            (Phase::Before(_), Event::Authorities(Some(_))) => {
                self.finish(Err(Fatal::AesSecretMissing))
            }
            (Phase::Created(seal), Event::Done) => self.go(Phase::Secret(seal), Effect::ReadSecret),
            (Phase::Intent, Event::Done) => self.go(Phase::Removed, Effect::RemoveFile),
            (Phase::Removed, Event::Done) => self.note(),
            (Phase::Noted, Event::Done) => self.initialize(),
            (Phase::Init, Event::Answered(answer)) => self.initialized(&answer),
            (Phase::File(seal), Event::File(file)) => self.open(seal, file.as_deref()),
            (Phase::Note(seal), Event::File(note)) => self.judge_note(seal, note.as_deref()),
            (Phase::Unnoted, Event::Done) => self.advance(Phase::Again, Progress::KeyStored),
            (Phase::Peer(seal), Event::Files(files)) => self.take_from_peers(seal, files),
            (Phase::Newer(seal), Event::Files(files)) => match self.newer(files) {
                Some(file) => self.adopt(file),
                None => self.rotate(seal),
            },
            (Phase::Refused, Event::Files(files)) => match self.newer(files) {
                Some(file) => {
                    self.refusals = 0;
                    self.adopt(file)
                }
                None => self.finish(Err(Fatal::UnsealRefused)),
            },
            (Phase::Followers(seal), Event::Files(files)) => self.forget(seal, &files),
            (Phase::Stored | Phase::Again, Event::Done) => {
                self.unstored = None;
                self.probe()
            }
            (Phase::Unseal, Event::Answered(answer)) => self.unsealed(&answer),
            (Phase::Health, Event::Answered(answer)) => self.healthy(&answer),
            (Phase::Root(work), Event::Answered(answer)) => self.root(work, &answer),
            (Phase::Configured, Event::Done) => self.finish(Ok(Outcome::Up)),
            // It failed, or does not belong here: check everything again.
            _ => self.pause(),
        })
    }

    fn go(&mut self, phase: Phase, effect: Effect) -> Effect {
        self.phase = phase;
        effect
    }

    fn call(&mut self, phase: Phase, request: Request) -> Effect {
        self.go(phase, Effect::Call(request))
    }

    fn probe(&mut self) -> Effect {
        self.call(Phase::Probe, Request::get("sys/seal-status"))
    }

    fn pause(&mut self) -> Effect {
        let wait = FIRST_WAIT.saturating_mul(1 << self.tries.min(6));
        self.tries = self.tries.saturating_add(1);
        self.go(Phase::Pause, Effect::Wait(wait.min(LONGEST_WAIT)))
    }

    fn finish(&mut self, end: Result<Outcome, Fatal>) -> Effect {
        self.go(Phase::End, Effect::Finish(end))
    }

    fn advance(&mut self, phase: Phase, to: Progress) -> Effect {
        let from = self.progress().cloned().unwrap_or(Progress::Created);
        self.go(phase, Effect::Advance { from, to })
    }

    fn progress(&self) -> Option<&Progress> {
        self.secret.as_ref().map(|secret| &secret.progress)
    }

    /// The next effect for this seal status and Secret.
    fn decide(&mut self, seal: Seal, secret: Option<AesSecret>) -> Effect {
        self.secret = secret;
        match (seal.initialized, self.ordinal, self.progress()) {
            (false, Ordinal::Follower, _) => self.join(Fatal::NotFirst),
            // Peers cannot be asked: a pod without the Secret has no certificate to answer with
            // either.
            (false, Ordinal::First, None) => self.go(Phase::Before(seal), Effect::ReadAuthorities),
            (false, Ordinal::First, Some(Progress::Created | Progress::InitIntent)) => {
                self.advance(Phase::Intent, Progress::InitIntent)
            }
            (false, Ordinal::First, Some(_)) if self.platform.peers == Peers::Raft => {
                self.join(Fatal::StorageLost)
            }
            (false, Ordinal::First, Some(_)) => self.finish(Err(Fatal::StorageLost)),
            (true, _, Some(_)) if seal.sealed && self.sealed == Sealed::Leave => {
                self.finish(Ok(Outcome::LeftSealed))
            }
            (true, _, None) => self.lost(seal, Fatal::AesSecretMissing),
            (true, _, Some(_)) => self.go(Phase::File(seal), Effect::ReadFile),
        }
    }

    fn join(&mut self, otherwise: Fatal) -> Effect {
        if self.tries >= JOIN_TRIES {
            return self.finish(Err(otherwise));
        }
        self.pause()
    }

    /// A vault that unsealed itself continues to serve without the key, which is needed only for root tokens.
    fn lost(&mut self, seal: Seal, fatal: Fatal) -> Effect {
        let is_set_up = matches!(self.progress(), None | Some(Progress::Configured(_)));
        match self.platform.seal {
            SealKind::Static if !seal.sealed && is_set_up => {
                self.finish(Ok(Outcome::WithoutKey(fatal)))
            }
            _ => self.finish(Err(fatal)),
        }
    }

    fn create(&mut self, seal: Seal) -> Effect {
        let (key, key_id) = self.fresh_key();
        self.go(Phase::Created(seal), Effect::CreateSecret { key, key_id })
    }

    fn fresh_key(&self) -> (SecretArray<32>, String) {
        let key = *self.fresh.expose("to put it in the Secret");
        let digest = Sha256::new_with_prefix(b"tec vault wrapping key id v1\0").chain_update(key);
        let key_id = hex::encode(digest.finalize()).chars().take(16).collect();
        (SecretArray::new(key), key_id)
    }

    /// The volume itself records, before init, that the vault is still empty: the Secret may come
    /// from yesterday's backup.
    fn note(&mut self) -> Effect {
        match &self.secret {
            Some(secret) => {
                let key_id = secret.key_id.clone();
                self.go(Phase::Noted, Effect::WriteIntent { key_id })
            }
            None => self.pause(),
        }
    }

    fn initialize(&mut self) -> Effect {
        let body = match self.platform.seal {
            SealKind::Shamir => json!({"secret_shares": 1, "secret_threshold": 1}),
            // Without a recovery key a static seal can never be rotated.
            SealKind::Static => json!({"recovery_shares": 1, "recovery_threshold": 1}),
        };
        self.call(Phase::Init, Request::post("sys/init", &body))
    }

    /// The key is written to disk before anything else happens.
    fn initialized(&mut self, answer: &Response) -> Effect {
        let Ok(made) = answer.json::<Initialized>() else {
            return self.pause();
        };
        let keys = made.keys_base64.into_iter().chain(made.recovery_keys_base64);
        let Some(key) = keys.map(|key| SecretBytes::new(key.into_bytes())).next() else {
            return self.pause();
        };
        self.root = Some(made.root_token);
        self.wrap(&Keyring::new(key))
    }

    /// Wraps the vault's keys with the current wrapping key, and stores them.
    fn wrap(&mut self, keyring: &Keyring) -> Effect {
        let Some(secret) = &self.secret else {
            return self.pause();
        };
        match keyring.wrap(&self.platform, secret, &mut self.nonces) {
            Ok(file) => self.adopt(file),
            Err(_) => self.pause(),
        }
    }

    fn adopt(&mut self, file: Vec<u8>) -> Effect {
        self.unstored = Some(file);
        self.store()
    }

    fn store(&mut self) -> Effect {
        match self.unstored.clone() {
            Some(bytes) => self.go(Phase::Stored, Effect::WriteFile(bytes)),
            None => self.probe(),
        }
    }

    /// The next step for an initialized vault with or without this file.
    fn open(&mut self, seal: Seal, file: Option<&[u8]>) -> Effect {
        let is_intent = self.progress() == Some(&Progress::InitIntent);
        let is_raft = self.platform.peers == Peers::Raft;
        let opened = file.map(|bytes| self.unwrap(bytes));
        match opened {
            Some(Opened::Current(keyring)) if is_intent => {
                self.keyring = Some(keyring);
                self.go(Phase::Unnoted, Effect::RemoveIntent)
            }
            Some(Opened::Current(keyring)) => {
                let is_changing = keyring.next.is_some() || self.is_vault_key_wished();
                self.keyring = Some(keyring);
                if is_changing && is_raft && self.ordinal == Ordinal::Follower {
                    return self.go(Phase::Newer(seal), Effect::FetchFromPeers);
                }
                self.rotate(seal)
            }
            Some(Opened::Before(keyring)) => self.wrap(&keyring),
            // Nobody can have filled a vault that only its key would have opened; a static seal
            // opens by itself.
            None if is_intent
                && self.ordinal == Ordinal::First
                && (seal.sealed || self.platform.seal == SealKind::Static) =>
            {
                self.go(Phase::Note(seal), Effect::ReadIntent)
            }
            // The wrapping key was replaced while this pod was away.
            Some(Opened::Foreign) if is_raft => self.go(Phase::Peer(seal), Effect::FetchFromPeers),
            Some(_) => self.lost(seal, Fatal::DecryptFailed),
            None => self.missing(seal),
        }
    }

    /// The file is missing: a peer may have it.
    fn missing(&mut self, seal: Seal) -> Effect {
        if self.ordinal == Ordinal::Follower || self.platform.peers == Peers::Raft {
            self.go(Phase::Peer(seal), Effect::FetchFromPeers)
        } else {
            self.lost(seal, Fatal::KeyFileMissing)
        }
    }

    /// Whether an initialized vault without a file is one whose init was interrupted on this very
    /// volume.
    fn judge_note(&mut self, seal: Seal, note: Option<&[u8]>) -> Effect {
        let key_id = self.secret.as_ref().map(|secret| secret.key_id.as_bytes());
        if note.is_some() && note == key_id {
            // Its key is lost, and it is still empty: start over.
            self.root = None;
            self.go(Phase::Again, Effect::ResetStorage)
        } else {
            self.missing(seal)
        }
    }

    /// Replaces the wrapping key if requested; the file uses the current one. At any time, each pod's file
    /// can be opened by one of the keys in the Secret.
    fn rotate(&mut self, seal: Seal) -> Effect {
        let (Ordinal::First, Some(secret)) = (self.ordinal, &self.secret) else {
            return self.unseal(seal);
        };
        let from = secret.key_id.clone();
        match secret.rotation {
            Rotation::None => self.unseal(seal),
            Rotation::Under { .. } if self.platform.peers == Peers::Raft => {
                self.go(Phase::Followers(seal), Effect::FetchFromPeers)
            }
            Rotation::Under { .. } => self.go(Phase::Again, Effect::Forget { key_id: from }),
            Rotation::Wanted => {
                let (key, key_id) = self.fresh_key();
                if key_id == from {
                    // This process created the current key: the next process has another.
                    return self.unseal(seal);
                }
                self.go(Phase::Again, Effect::Rotate { from, key, key_id })
            }
        }
    }

    /// The previous key is needed until every pod has rewrapped its file.
    fn forget(&mut self, seal: Seal, files: &[Option<Vec<u8>>]) -> Effect {
        let is_current = |file: &Option<Vec<u8>>| {
            let opened = file.as_deref().map(|bytes| self.unwrap(bytes));
            matches!(opened, Some(Opened::Current(_)))
        };
        match &self.secret {
            Some(secret) if files.iter().all(is_current) => {
                let key_id = secret.key_id.clone();
                self.go(Phase::Again, Effect::Forget { key_id })
            }
            _ => self.unseal(seal),
        }
    }

    fn is_vault_key_wished(&self) -> bool {
        self.secret.as_ref().is_some_and(|secret| secret.vault_key == Wish::Next)
    }

    fn unwrap(&self, bytes: &[u8]) -> Opened {
        Opened::of(bytes, &self.platform, self.secret.as_ref())
    }

    /// The file of a peer that knows later keys than this pod, if there is one.
    fn newer(&self, files: Vec<Option<Vec<u8>>>) -> Option<Vec<u8>> {
        let own = self.keyring.as_ref().map(|keyring| keyring.serial);
        let opened = files.into_iter().flatten().filter_map(|bytes| {
            let serial = self.unwrap(&bytes).keyring()?.serial;
            (Some(serial) > own).then_some((serial, bytes))
        });
        opened.max_by_key(|(serial, _)| *serial).map(|(_, bytes)| bytes)
    }

    /// Takes a file that opens; some peers may not know the new wrapping key yet.
    fn take_from_peers(&mut self, seal: Seal, files: Vec<Option<Vec<u8>>>) -> Effect {
        let end = match files.iter().flatten().next() {
            Some(_) => Fatal::DecryptFailed,
            None => Fatal::KeyFileMissing,
        };
        self.keyring = None;
        if let Some(file) = self.newer(files) {
            return self.adopt(file);
        }
        if !seal.sealed && self.platform.seal == SealKind::Static {
            return self.lost(seal, end);
        }
        self.join(end)
    }

    fn unseal(&mut self, seal: Seal) -> Effect {
        match (&self.keyring, seal.sealed, self.platform.seal) {
            (Some(keyring), true, SealKind::Shamir) => {
                let request = call::unseal(keyring.candidate(self.refusals));
                self.call(Phase::Unseal, request)
            }
            // A static seal opens by itself, a little later.
            (_, true, _) => self.pause(),
            (_, false, _) => self.call(Phase::Health, Request::get("sys/health")),
        }
    }

    fn unsealed(&mut self, answer: &Response) -> Effect {
        match (answer.json::<Seal>(), answer.verdict()) {
            (Ok(Seal { sealed: false, .. }), _) => {
                self.call(Phase::Health, Request::get("sys/health"))
            }
            // Not initialized: it was wiped in the meantime; the next check will tell.
            (_, Verdict::Invalid) if !answer.says(&["not initialized"]) => self.unseal_refused(),
            _ => self.pause(),
        }
    }

    /// Tries the next key; if both are refused, a peer may have one that was taken in use meanwhile.
    fn unseal_refused(&mut self) -> Effect {
        self.refusals += 1;
        let has_next = self.keyring.as_ref().is_some_and(|keyring| keyring.next.is_some());
        match self.platform.peers {
            _ if has_next && self.refusals == 1 => self.probe(),
            Peers::Raft => self.go(Phase::Refused, Effect::FetchFromPeers),
            Peers::Alone => self.finish(Err(Fatal::UnsealRefused)),
        }
    }

    fn healthy(&mut self, answer: &Response) -> Effect {
        let is_standby = answer.status == 429;
        match (answer.status, self.ordinal) {
            (200 | 429, Ordinal::Follower) => self.finish(Ok(Outcome::Up)),
            (200, Ordinal::First) => self.configure(),
            (429, Ordinal::First) if is_standby && self.tries >= LEADER_TRIES => self.configure(),
            _ => self.pause(),
        }
    }

    fn configure(&mut self) -> Effect {
        let wanted = Progress::Configured(desired::root_digest(&self.platform));
        if self.progress() == Some(&wanted) && self.root_part == RootPart::IfChanged {
            return self.finish(Ok(Outcome::Up));
        }
        if matches!(self.progress(), Some(Progress::Configured(_))) {
            // A process that dies with a root token leaves a progress that makes the next one
            // revoke it.
            return self.advance(Phase::Again, Progress::KeyStored);
        }
        let (work, request) = RootWork::begin(self.root.take());
        self.call(Phase::Root(work), request)
    }

    fn root(&mut self, mut work: RootWork, answer: &Response) -> Effect {
        let Some(keyring) = &self.keyring else {
            return self.pause();
        };
        let key = keyring.candidate(self.refusals + self.failures);
        match work.answer(answer, &self.platform, key) {
            Step::Call(request) => self.call(Phase::Root(work), request),
            Step::Done => {
                let wanted = Progress::Configured(desired::root_digest(&self.platform));
                self.advance(Phase::Configured, wanted)
            }
            Step::Conflict => self.finish(Err(Fatal::Conflict)),
            // The next attempt creates its own token, and revokes this one. The key may have been replaced.
            Step::Failed => {
                self.failures += 1;
                self.pause()
            }
        }
    }
}
