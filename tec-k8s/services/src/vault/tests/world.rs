//! Everything that survives the controller: vault, Secret, disk.

use std::collections::BTreeMap;

use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::testing::World;
use tec_core::time::Timestamp;

use super::super::{
    AesSecret, BringUp, Effect, Event, Fresh, OnDrift, Ordinal, Outcome, Peers, Platform, Progress,
    Rekey, RootPart, Rotation, SealKind, Sealed, Setup, SetupEffect, SetupEnd, SetupEvent, Wish,
};
use super::fake::FakeVault;
use crate::Fatal;

pub(crate) fn platform() -> Platform {
    Platform {
        namespace: "platform".to_owned(),
        stateful_set: "vault".to_owned(),
        audience: "tec-services".to_owned(),
        kubernetes_host: "https://kubernetes.default.svc".to_owned(),
        kubernetes_ca: None,
        controller: "platform/controller".parse().unwrap(),
        nats: vec!["platform/nats".parse().unwrap()],
        opensearch: vec!["platform/opensearch".parse().unwrap()],
        collectors: vec!["platform/collector".parse().unwrap()],
        tracers: vec!["platform/tracer".parse().unwrap()],
        viewers: vec!["platform/dashboards".parse().unwrap()],
        component_namespaces: vec!["apps".to_owned()],
        certificate_life: std::time::Duration::from_hours(24),
        seal: SealKind::Shamir,
        peers: Peers::Alone,
    }
}

/// The Secret with the wrapping key.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) key: [u8; 32],
    pub(super) key_id: String,
    pub(super) progress: Progress,
}

impl Stored {
    /// What a process reads while nothing is requested.
    pub(super) fn read(&self) -> AesSecret {
        AesSecret {
            key: SecretArray::new(self.key),
            key_id: self.key_id.clone(),
            progress: self.progress.clone(),
            rotation: Rotation::None,
            vault_key: Wish::None,
        }
    }

    /// Whether the progress was `from`, and is `to` now.
    pub(super) fn advance(&mut self, from: &Progress, to: Progress) -> bool {
        let is_expected = self.progress == *from;
        if is_expected {
            self.progress = to;
        }
        is_expected
    }
}

#[derive(Debug)]
pub(super) struct Pod {
    pub(super) vault: FakeVault,
    pub(super) platform: Platform,
    pub(super) ordinal: Ordinal,
    pub(super) root_part: RootPart,
    pub(super) sealed: Sealed,
    pub(super) secret: Option<Stored>,
    pub(super) file: Option<Vec<u8>>,
    /// Someone requested another wrapping key.
    pub(super) rotate: bool,
    /// Someone requested another key of the vault.
    pub(super) rekey: Wish,
    /// The previous wrapping key.
    pub(super) before: Option<([u8; 32], String)>,
    pub(super) peer: Option<Vec<u8>>,
    /// What the volume records about an init.
    pub(super) intent: Option<Vec<u8>>,
    /// Someone published the CA certificates.
    pub(super) published: bool,
    pub(super) resets: u32,
    pub(super) end: Option<Result<Outcome, Fatal>>,
    boots: u8,
}

impl Pod {
    pub(super) fn new() -> Self {
        Self {
            vault: FakeVault::default(),
            platform: platform(),
            ordinal: Ordinal::First,
            root_part: RootPart::IfChanged,
            sealed: Sealed::Open,
            secret: None,
            file: None,
            rotate: false,
            rekey: Wish::None,
            before: None,
            peer: None,
            intent: None,
            published: false,
            resets: 0,
            end: None,
            boots: 0,
        }
    }
}

impl World for Pod {
    type Plan = BringUp;

    fn boot(&mut self) -> (BringUp, Event) {
        self.boots += 1;
        let fresh = Fresh {
            key: SecretArray::new([self.boots; 32]),
            seed: SecretArray::new([self.boots ^ 0xff; 32]),
        };
        // Only a process that saw drift repairs it: the next one knows nothing about it.
        let root_part = std::mem::replace(&mut self.root_part, RootPart::IfChanged);
        let plan = BringUp::new(self.platform.clone(), self.ordinal, root_part, fresh);
        (plan.with_sealed(self.sealed), Event::Start)
    }

    fn apply(&mut self, effect: Effect) -> Option<Event> {
        Some(match effect {
            Effect::Call(request) => Event::Answered(self.vault.answer(&request)),
            Effect::ReadSecret => Event::Secret(self.secret.as_ref().map(|secret| AesSecret {
                vault_key: self.rekey,
                rotation: match &self.before {
                    Some((key, key_id)) => {
                        Rotation::Under { key: SecretArray::new(*key), key_id: key_id.clone() }
                    }
                    None if self.rotate => Rotation::Wanted,
                    None => Rotation::None,
                },
                ..secret.read()
            })),
            Effect::Rotate { from, key, key_id } => match &mut self.secret {
                Some(now) if now.key_id == from => {
                    self.before = Some((now.key, std::mem::replace(&mut now.key_id, key_id)));
                    now.key = *key.expose("fake");
                    self.rotate = false;
                    Event::Done
                }
                _ => Event::Failed,
            },
            Effect::Forget { key_id } => {
                let now = self.secret.as_ref().map(|secret| &secret.key_id);
                assert_eq!(now, Some(&key_id));
                self.before = None;
                Event::Done
            }
            Effect::ClearVaultKey => {
                self.rekey = Wish::None;
                Event::Done
            }
            Effect::CreateSecret { key, key_id } => {
                let key = *key.expose("fake");
                let progress = Progress::Created;
                self.secret.get_or_insert(Stored { key, key_id, progress });
                Event::Done
            }
            Effect::Advance { from, to } => {
                let secret = self.secret.as_mut();
                let is_done = secret.is_some_and(|secret| secret.advance(&from, to));
                if is_done { Event::Done } else { Event::Failed }
            }
            Effect::ReadFile => Event::File(self.file.clone()),
            Effect::ReadAuthorities => Event::Authorities(self.published.then(|| "PEM".to_owned())),
            Effect::WriteIntent { key_id } => {
                self.intent = Some(key_id.into_bytes());
                Event::Done
            }
            Effect::ReadIntent => Event::File(self.intent.clone()),
            Effect::RemoveIntent => {
                self.intent = None;
                Event::Done
            }
            Effect::FetchFromPeers => Event::Files(vec![self.peer.clone()]),
            Effect::WriteFile(bytes) => {
                self.file = Some(bytes);
                Event::Done
            }
            Effect::RemoveFile => {
                self.file = None;
                Event::Done
            }
            Effect::ResetStorage => {
                assert!(self.vault.objects.is_empty(), "a vault that holds something was reset");
                self.vault.wipe();
                self.resets += 1;
                Event::Done
            }
            Effect::Wait(_) => Event::Elapsed,
            Effect::Finish(end) => {
                self.end = Some(end);
                return None;
            }
        })
    }

    fn failure(&self, effect: &Effect) -> Option<Event> {
        match effect {
            Effect::Wait(_) | Effect::Finish(_) => None,
            _ => Some(Event::Failed),
        }
    }

    fn name(&self, effect: &Effect) -> String {
        match effect {
            Effect::Call(request) => request.path.clone(),
            Effect::Advance { to, .. } => format!("progress {to}").chars().take(24).collect(),
            effect => format!("{effect:?}").chars().take(12).collect(),
        }
    }
}

/// The same pod, while its vault is open and another key is requested.
#[derive(Debug)]
pub(super) struct Rekeyer(pub(super) Pod);

impl World for Rekeyer {
    type Plan = Rekey;

    fn boot(&mut self) -> (Rekey, Event) {
        self.0.boots += 1;
        let token = "s.controller".to_owned();
        self.0.vault.controllers.insert(token.clone());
        let token = SecretBytes::new(token.into_bytes());
        let seed = SecretArray::new([self.0.boots ^ 0xff; 32]);
        (Rekey::new(self.0.platform.clone(), token, seed), Event::Start)
    }

    fn apply(&mut self, effect: Effect) -> Option<Event> {
        self.0.apply(effect)
    }

    fn failure(&self, effect: &Effect) -> Option<Event> {
        self.0.failure(effect)
    }

    fn name(&self, effect: &Effect) -> String {
        self.0.name(effect)
    }
}

/// The same vault, as seen by the controller's own login.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) vault: FakeVault,
    /// When each set of CAs was published.
    pub(super) published: Vec<(i64, String)>,
    /// When each issuer could last sign.
    signed: BTreeMap<String, i64>,
    pub(super) now: i64,
    pub(super) end: Option<SetupEnd>,
    /// Someone requested other CAs.
    pub(super) wish: bool,
    /// The copies of the CAs cannot be updated.
    pub(super) is_copy_stuck: bool,
    pub(super) on_drift: OnDrift,
}

impl Controller {
    pub(super) fn new(vault: FakeVault) -> Self {
        Self {
            vault,
            published: Vec::new(),
            signed: BTreeMap::new(),
            now: 1_700_000_000,
            end: None,
            wish: false,
            is_copy_stuck: false,
            on_drift: OnDrift::Report,
        }
    }

    /// The same state, before anything else happens.
    pub(super) fn again(&self) -> Self {
        Self {
            vault: self.vault.clone(),
            published: self.published.clone(),
            signed: self.signed.clone(),
            end: None,
            ..*self
        }
    }

    /// Certificates may be issued at any time, by whatever the roles name.
    fn note_signers(&mut self) {
        for issuer in self.vault.issuers().into_values() {
            self.signed.insert(issuer, self.now);
        }
    }

    /// Everyone who has what was published within the lifetime of a certificate can verify every certificate
    /// that has not expired, because a role named its issuer within that time.
    fn assert_verifiable(&mut self) {
        self.note_signers();
        let since = self.now - i64::try_from(platform().certificate_life.as_secs()).unwrap();
        let ends = self.published.iter().skip(1).map(|(at, _)| *at).chain([i64::MAX]);
        for ((_, trusted), end) in self.published.iter().zip(ends) {
            for (issuer, last) in &self.signed {
                // Held by someone after it was replaced, or about to verify what is still valid.
                let meets = end > since && *last > since;
                let was_known = trusted.contains(&format!("<{issuer}>"));
                assert!(!meets || was_known, "{issuer} signed for holders of {trusted}");
            }
        }
    }
}

impl World for Controller {
    type Plan = Setup;

    fn boot(&mut self) -> (Setup, SetupEvent) {
        (Setup::new(platform()).with_drift(self.on_drift), SetupEvent::Start)
    }

    fn apply(&mut self, effect: SetupEffect) -> Option<SetupEvent> {
        self.now += 1;
        // In between, signers and what is published stay.
        let changes = match &effect {
            SetupEffect::Publish(_) => true,
            SetupEffect::Call(request) => {
                request.path.contains("/roles/") && request.body.is_some()
            }
            _ => false,
        };
        if changes {
            self.note_signers();
        }
        let event = match effect {
            SetupEffect::ReadToken => SetupEvent::Token(SecretBytes::new(b"jwt".to_vec())),
            SetupEffect::Call(request) => SetupEvent::Answered(self.vault.answer(&request)),
            SetupEffect::Publish(published) => {
                self.published.push((self.now, published.authorities));
                SetupEvent::Done
            }
            SetupEffect::Copy(_) if self.is_copy_stuck => SetupEvent::Failed,
            SetupEffect::Copy(_) => SetupEvent::Done,
            SetupEffect::ReadWish => {
                let wish = if self.wish { Wish::Next } else { Wish::None };
                SetupEvent::Wished(wish, Timestamp::from_unix_seconds(self.now))
            }
            SetupEffect::ClearWish => {
                self.wish = false;
                SetupEvent::Done
            }
            SetupEffect::Wait(..) => SetupEvent::Elapsed,
            SetupEffect::Finish(end) => {
                self.end = Some(end);
                return None;
            }
        };
        if changes {
            self.assert_verifiable();
        }
        Some(event)
    }

    fn failure(&self, effect: &SetupEffect) -> Option<SetupEvent> {
        match effect {
            SetupEffect::Wait(..) | SetupEffect::Finish(_) => None,
            _ => Some(SetupEvent::Failed),
        }
    }

    fn name(&self, effect: &SetupEffect) -> String {
        match effect {
            SetupEffect::Call(request) => request.path.clone(),
            effect => format!("{effect:?}").chars().take(12).collect(),
        }
    }
}
