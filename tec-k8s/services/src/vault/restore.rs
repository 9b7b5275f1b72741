//! Brings an empty vault to the state of a snapshot.
//!
//! *What it is*: a [`Plan`]. A backup is a snapshot, the wrapped key that belongs to it, and the Secret with
//! the wrapping key. The vault is initialized with a temporary key, takes the snapshot, seals itself, and
//! opens with the key of the snapshot.
//!
//! *What it is not*: a merge. A vault that holds something is refused, and is not changed.
//!
//! ```text
//!   volume: note, wrapped key     Secret: progress     vault
//!   1                                                  not initialized
//!   2 note                                             initialized, empty, temporary key in memory
//!   3 note                                             snapshot, sealed
//!   4 note                        key-stored           snapshot, unsealed with its own key
//!   5 note, wrapped key           key-stored           the same
//!   6 wrapped key                 key-stored           the same: the controller continues
//! ```
//! A vault next to the note and without a wrapped key was opened by nobody else: whatever it holds is in the
//! snapshot, too, so it is reset and the plan starts over. After step 4 the controller writes roles and
//! policies again, and revokes every root token that was in the snapshot.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tec_core::code::Code;
use tec_core::plan::Plan;
use tec_core::secret::SecretBytes;

pub use super::effect::Event;
use super::keyring::Keyring;
use super::{
    AesSecret, Binding, Progress, Request, Response, Rotation, Verdict, WrappedKey, answer, call,
};

/// First wait after a failure; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Number of waits before the restore fails: about two minutes.
const TRIES: u32 = 30;
/// The only seal whose vault closes after it took a snapshot, and opens with the key that is wrapped.
const SHAMIR: &str = "shamir";

/// An effect that the plan requests.
#[derive(Debug)]
pub enum Effect {
    /// Read the wrapped key on the volume. Answered by `File`.
    ReadFile,
    /// Read the note of a restore on the volume. Answered by `File`.
    ReadNote,
    /// Read the Secret. Answered by `Secret`.
    ReadSecret,
    /// Call the vault. Answered by `Answered`.
    Call(Request),
    /// Write the note, durably. Answered by `Done`.
    WriteNote(String),
    /// Send the snapshot to this path of the vault. Answered by `Answered`.
    Send(Request),
    /// Change the progress, if it is still `from`. Answered by `Done`.
    Advance {
        /// The current progress.
        from: Progress,
        /// The new progress.
        to: Progress,
    },
    /// Write the wrapped key to the volume, durably. Answered by `Done`.
    WriteFile(Vec<u8>),
    /// Remove the note, if it exists. Answered by `Done`.
    RemoveNote,
    /// Stop the vault, empty its storage, and start it. Requested only next to the note and without a wrapped
    /// key. Answered by `Done`.
    ResetStorage,
    /// Wait. Answered by `Elapsed`.
    Wait(Duration),
    /// Finished. Not answered.
    Finish(Result<(), RestoreError>),
}

/// Why nothing was restored. The vault is as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The vault is initialized.
    #[error("the vault holds something already")]
    Occupied,
    /// The volume has another wrapped key.
    #[error("the volume has the wrapped key of a vault already")]
    KeyOnVolume,
    /// The vault has a seal other than Shamir.
    #[error("only a vault with the Shamir seal can be restored")]
    Seal,
    /// The Secret is that of a vault that was never set up.
    #[error("the Secret does not say that a vault was set up")]
    NeverSetUp,
    /// There is no Secret.
    #[error("the Secret with the wrapping key is missing")]
    SecretMissing,
    /// The wrapped key cannot be opened.
    #[error("the wrapped key does not open with the key of the Secret")]
    KeyBroken,
    /// The vault does not take the snapshot.
    #[error("the vault refused the snapshot with status {0}")]
    Refused(u16),
    /// The key does not open the vault that the snapshot made.
    #[error("the wrapped key does not open the snapshot")]
    Foreign,
    /// The vault, the API server or the disk did not do what was asked in time.
    #[error("the vault, the API server or the disk failed too often")]
    Unavailable,
}

impl RestoreError {
    /// The page that says what to do; `None` if a later try may succeed.
    pub const fn code(self) -> Option<Code> {
        match self {
            Self::Occupied | Self::KeyOnVolume | Self::Seal | Self::NeverSetUp => {
                Some(Code::VaultNotEmpty)
            }
            Self::SecretMissing => Some(Code::VaultSecretMissing),
            Self::KeyBroken => Some(Code::VaultKeyBroken),
            Self::Refused(_) => Some(Code::VaultSnapshotBroken),
            Self::Foreign => Some(Code::VaultSnapshotForeign),
            Self::Unavailable => None,
        }
    }
}

/// Restores a vault.
#[derive(Debug)]
pub struct Restore {
    namespace: String,
    stateful_set: String,
    wrapped: Vec<u8>,
    tries: u32,
    phase: Phase,
    /// The phase that a wait repeats.
    paused: Phase,
    is_on_volume: bool,
    is_noted: bool,
    progress: Option<Progress>,
    /// The keys of the snapshot.
    keys: Option<Keyring>,
    /// How often the vault of the snapshot refused one of them.
    refusals: u32,
    /// The root token of the vault before it took the snapshot.
    root: Option<SecretBytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    File,
    Note,
    Probe,
    Secret(Found),
    Noted,
    Init,
    /// The vault opens with the temporary key.
    Opening,
    Leading,
    Sending,
    /// The vault closes, since its key is another one now.
    Closing,
    Unsealing,
    /// The vault of the snapshot is ready.
    Ready,
    Advanced,
    Stored,
    Tidied,
    Reset(After),
    /// The reset vault needs no note.
    Cleared(RestoreError),
    Pause,
    End,
}

/// What an empty vault or one of an interrupted restore needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Empty,
    Restored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Begin,
    Fail(RestoreError),
}

#[derive(Debug, Deserialize)]
struct Seal {
    initialized: bool,
    sealed: bool,
    #[serde(rename = "type", default)]
    kind: String,
}

#[derive(Deserialize)]
struct Initialized {
    keys_base64: Vec<String>,
    #[serde(deserialize_with = "answer::secret")]
    root_token: SecretBytes,
}

impl Plan for Restore {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, event: Event) -> Vec<Effect> {
        vec![self.next(event)].into_iter().flatten().collect()
    }
}

impl Restore {
    /// A plan for the vault of this StatefulSet, and the wrapped key that belongs to the snapshot.
    pub fn new(namespace: String, stateful_set: String, wrapped: Vec<u8>) -> Self {
        Self {
            namespace,
            stateful_set,
            wrapped,
            tries: 0,
            phase: Phase::File,
            paused: Phase::File,
            is_on_volume: false,
            is_noted: false,
            progress: None,
            keys: None,
            refusals: 0,
            root: None,
        }
    }

    fn next(&mut self, event: Event) -> Option<Effect> {
        let phase = std::mem::replace(&mut self.phase, Phase::End);
        Some(match (phase, event) {
            (Phase::End, _) => return None,
            (_, Event::Start) | (Phase::Reset(After::Begin), Event::Done) => self.begin(),
            (Phase::Pause, Event::Elapsed) => self.resume(),
            (Phase::File, Event::File(file)) => {
                self.is_on_volume = file.as_ref() == Some(&self.wrapped);
                match file {
                    Some(_) if !self.is_on_volume => self.finish(Err(RestoreError::KeyOnVolume)),
                    _ => self.go(Phase::Note, Effect::ReadNote),
                }
            }
            (Phase::Note, Event::File(note)) => {
                self.is_noted = note.as_deref() == Some(self.note().as_bytes());
                self.call(Phase::Probe, Request::get("sys/seal-status"))
            }
            (Phase::Probe, Event::Answered(answer)) => match answer.json::<Seal>() {
                Ok(seal) => self.judge(&seal),
                Err(_) => self.pause(Phase::File),
            },
            (Phase::Secret(found), Event::Secret(secret)) => self.unwrap(found, secret),
            (Phase::Noted, Event::Done) => {
                let body = json!({"secret_shares": 1, "secret_threshold": 1});
                self.call(Phase::Init, Request::post("sys/init", &body))
            }
            (Phase::Init, Event::Answered(answer)) => self.initialized(&answer),
            (
                phase @ (Phase::Opening | Phase::Leading | Phase::Sending),
                Event::Answered(answer),
            ) => self.temporary(phase, &answer),
            (
                phase @ (Phase::Closing | Phase::Unsealing | Phase::Ready),
                Event::Answered(answer),
            ) => self.restored(phase, &answer),
            (Phase::Advanced, Event::Done) => {
                let wrapped = self.wrapped.clone();
                self.go(Phase::Stored, Effect::WriteFile(wrapped))
            }
            (Phase::Stored, Event::Done) => self.go(Phase::Tidied, Effect::RemoveNote),
            (Phase::Tidied, Event::Done) => self.finish(Ok(())),
            (Phase::Reset(After::Fail(error)), Event::Done) => {
                self.go(Phase::Cleared(error), Effect::RemoveNote)
            }
            (Phase::Cleared(error), Event::Done) => self.finish(Err(error)),
            // It failed, or does not belong here.
            (phase, _) => self.pause(phase),
        })
    }

    fn go(&mut self, phase: Phase, effect: Effect) -> Effect {
        self.phase = phase;
        effect
    }

    fn call(&mut self, phase: Phase, request: Request) -> Effect {
        self.go(phase, Effect::Call(request))
    }

    fn finish(&mut self, end: Result<(), RestoreError>) -> Effect {
        self.go(Phase::End, Effect::Finish(end))
    }

    fn begin(&mut self) -> Effect {
        self.root = None;
        self.go(Phase::File, Effect::ReadFile)
    }

    fn pause(&mut self, phase: Phase) -> Effect {
        if self.tries >= TRIES {
            return self.finish(Err(RestoreError::Unavailable));
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.tries.min(5));
        self.tries += 1;
        self.paused = phase;
        self.go(Phase::Pause, Effect::Wait(wait.min(LONGEST_WAIT)))
    }

    fn resume(&mut self) -> Effect {
        match self.paused {
            phase @ (Phase::Leading | Phase::Ready) => self.call(phase, Request::get("sys/health")),
            Phase::Closing => self.call(Phase::Closing, Request::get("sys/seal-status")),
            Phase::Unsealing => self.unseal(),
            phase @ (Phase::Tidied | Phase::Cleared(_)) => self.go(phase, Effect::RemoveNote),
            Phase::Reset(after @ After::Fail(_)) => self.reset(after),
            // Check everything again.
            _ => self.begin(),
        }
    }

    fn reset(&mut self, after: After) -> Effect {
        self.go(Phase::Reset(after), Effect::ResetStorage)
    }

    /// Names this restore.
    fn note(&self) -> String {
        let digest = Sha256::new_with_prefix(b"tec vault restore v1\0").chain_update(&self.wrapped);
        hex::encode(digest.finalize())
    }

    /// The next step for a vault in this state.
    fn judge(&mut self, seal: &Seal) -> Effect {
        if seal.kind != SHAMIR {
            return self.finish(Err(RestoreError::Seal));
        }
        let found = match (seal.initialized, self.is_noted, self.is_on_volume) {
            // The supervisor empties no storage next to a wrapped key.
            (false, _, true) => return self.finish(Err(RestoreError::KeyOnVolume)),
            (false, _, false) => Found::Empty,
            (true, true, true) => Found::Restored,
            (true, true, false) => return self.reset(After::Begin),
            (true, false, _) => return self.finish(Err(RestoreError::Occupied)),
        };
        self.go(Phase::Secret(found), Effect::ReadSecret)
    }

    fn unwrap(&mut self, found: Found, secret: Option<AesSecret>) -> Effect {
        let Some(secret) = secret else {
            return self.finish(Err(RestoreError::SecretMissing));
        };
        let Some(keys) = self.open(&secret) else {
            return self.finish(Err(RestoreError::KeyBroken));
        };
        self.keys = Some(keys);
        let progress = secret.progress;
        match (found, &progress) {
            // The controller would initialize the vault at the same time.
            (_, Progress::Created | Progress::InitIntent) => {
                self.finish(Err(RestoreError::NeverSetUp))
            }
            (Found::Empty, _) => {
                self.progress = Some(progress);
                let note = self.note();
                self.go(Phase::Noted, Effect::WriteNote(note))
            }
            (Found::Restored, _) => self.go(Phase::Tidied, Effect::RemoveNote),
        }
    }

    fn open(&self, secret: &AesSecret) -> Option<Keyring> {
        let wrapped = WrappedKey::parse(&self.wrapped).ok()?;
        let open = |key, key_id| {
            let (namespace, stateful_set) = (&*self.namespace, &*self.stateful_set);
            wrapped.open(key, &Binding { namespace, stateful_set, key_id }).ok()
        };
        let plain = open(&secret.key, &secret.key_id).or_else(|| match &secret.rotation {
            Rotation::Under { key, key_id } => open(key, key_id),
            Rotation::None | Rotation::Wanted => None,
        })?;
        Keyring::parse(&plain)
    }

    /// Opening a vault that is open changes nothing.
    fn unseal(&mut self) -> Effect {
        match &self.keys {
            Some(keys) => {
                let request = call::unseal(keys.candidate(self.refusals));
                self.call(Phase::Unsealing, request)
            }
            None => self.pause(Phase::File),
        }
    }

    fn initialized(&mut self, answer: &Response) -> Effect {
        let Ok(Initialized { keys_base64, root_token }) = answer.json() else {
            return self.pause(Phase::File);
        };
        let Some(key) = keys_base64.into_iter().next() else {
            return self.pause(Phase::File);
        };
        let request = call::unseal(&SecretBytes::new(key.into_bytes()));
        self.root = Some(root_token);
        self.call(Phase::Opening, request)
    }

    /// The vault with the temporary key: opens it, waits until it leads, and sends the snapshot.
    fn temporary(&mut self, phase: Phase, answer: &Response) -> Effect {
        match (phase, &self.root, answer.verdict()) {
            (Phase::Opening, _, Verdict::Good) => {
                self.call(Phase::Leading, Request::get("sys/health"))
            }
            (Phase::Leading, Some(root), Verdict::Good) => {
                let request = Request::post(super::snapshot::RESTORE, &json!({})).by(root);
                self.go(Phase::Sending, Effect::Send(request))
            }
            (Phase::Leading, Some(_), _) => self.pause(Phase::Leading),
            (Phase::Sending, _, Verdict::Good) => {
                self.call(Phase::Closing, Request::get("sys/seal-status"))
            }
            (Phase::Sending, _, Verdict::Invalid | Verdict::Denied | Verdict::Exists) => {
                self.reset(After::Fail(RestoreError::Refused(answer.status)))
            }
            _ => self.pause(Phase::File),
        }
    }

    /// The vault of the snapshot: waits until it closes, and opens it with its own key.
    fn restored(&mut self, phase: Phase, answer: &Response) -> Effect {
        let seal = answer.json::<Seal>();
        match (phase, seal, answer.verdict()) {
            (Phase::Closing, Ok(Seal { sealed: true, .. }), _) => self.unseal(),
            (Phase::Unsealing, Ok(Seal { sealed: false, .. }), _) => {
                self.call(Phase::Ready, Request::get("sys/health"))
            }
            (Phase::Unsealing, _, Verdict::Invalid) => self.refused(),
            (Phase::Unsealing, ..) => self.pause(Phase::Unsealing),
            (Phase::Ready, _, Verdict::Good) => match self.progress.clone() {
                Some(from) => {
                    self.go(Phase::Advanced, Effect::Advance { from, to: Progress::KeyStored })
                }
                None => self.pause(Phase::File),
            },
            (Phase::Ready, ..) => self.pause(Phase::Ready),
            _ => self.pause(Phase::Closing),
        }
    }

    /// A snapshot that was taken while the vault's key was replaced opens with either of two.
    fn refused(&mut self) -> Effect {
        self.refusals += 1;
        let has_next = self.keys.as_ref().is_some_and(|keys| keys.next.is_some());
        if has_next && self.refusals == 1 {
            self.unseal()
        } else {
            self.reset(After::Fail(RestoreError::Foreign))
        }
    }
}
