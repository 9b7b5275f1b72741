//! Carries out the effects of the plans.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Fatal;
use crate::vault::{
    BringUp, Effect, Event, Outcome, Refused, Rekey, Request, Response, Setup, SetupEffect,
    SetupEnd, SetupEvent, Wish,
};
use async_trait::async_trait;
use tec_core::plan::Shell;
use tec_core::port::{Clock, PortError, chain};
use tec_core::secret::SecretBytes;

use super::{ApiServer, Disk, Note, Replaceable, Vault};

/// Interval between checks of a reset.
const POLL: Duration = Duration::from_millis(200);
/// Number of checks before the plan examines everything again.
const POLLS: u32 = 150;

/// The controllers of the vault's other pods.
///
/// *Contract*: one answer for each; `None` if the pod has no key or does not answer. *Implementations*: the
/// controller's own client.
#[async_trait]
pub trait Peers: fmt::Debug + Send + Sync {
    /// The wrapped key, as stored on the disk of each.
    async fn wrapped_keys(&self) -> Vec<Option<Vec<u8>>>;
}

/// The effects of [`BringUp`] and [`Rekey`].
#[derive(Debug)]
pub struct BringUpShell {
    vault: Vault,
    cluster: Arc<ApiServer>,
    disk: Arc<dyn Disk>,
    peers: Arc<dyn Peers>,
    end: Option<Result<Outcome, Fatal>>,
}

impl BringUpShell {
    /// Uses these parts.
    pub fn new(
        vault: Vault,
        cluster: Arc<ApiServer>,
        disk: Arc<dyn Disk>,
        peers: Arc<dyn Peers>,
    ) -> Self {
        Self { vault, cluster, disk, peers, end: None }
    }

    /// How the plan ended, once it has.
    pub fn end(&self) -> Option<Result<Outcome, Fatal>> {
        self.end
    }
}

/// Has the vault's storage emptied.
pub(super) async fn reset(disk: &dyn Disk) -> Event {
    match empty(disk).await {
        Ok(true) => Event::Done,
        Ok(false) => Event::Failed,
        Err(error) => io_failed("reset the vault", &error),
    }
}

/// Returns whether the storage was emptied: a request that nobody carries out is withdrawn.
async fn empty(disk: &dyn Disk) -> std::io::Result<bool> {
    disk.write(Note::Reset, b"")?;
    for _ in 0..POLLS {
        if disk.read(Note::Reset)?.is_none() {
            return Ok(true);
        }
        tokio::time::sleep(POLL).await;
    }
    // Whoever carries it out later may find a vault in use.
    disk.remove(Note::Reset)?;
    Ok(false)
}

pub(super) fn io_failed(what: &'static str, error: &std::io::Error) -> Event {
    tracing::warn!(what, %error, "the disk failed");
    Event::Failed
}

/// The event for something that was written to the disk.
pub(super) fn on_disk(what: &'static str, result: std::io::Result<()>) -> Event {
    match result {
        Ok(()) => Event::Done,
        Err(error) => io_failed(what, &error),
    }
}

/// The event for something that was read from the disk.
pub(super) fn found(what: &'static str, result: std::io::Result<Option<Vec<u8>>>) -> Event {
    match result {
        Ok(file) => Event::File(file),
        Err(error) => io_failed(what, &error),
    }
}

fn failed<E>(error: &PortError, event: E) -> E {
    tracing::warn!(error = %chain(error), "a step failed");
    event
}

/// Waits, and logs it: a single wait is normal while the vault starts, repeated waits are not.
async fn wait(time: Duration) {
    let wait_millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(wait_millis, "the vault is not as it shall be yet");
    tokio::time::sleep(time).await;
}

async fn call(vault: &Vault, request: &Request) -> Option<Response> {
    match vault.call(request).await {
        Ok(answer) => Some(answer),
        Err(error) => failed(&error, None),
    }
}

#[async_trait]
impl Shell<BringUp> for BringUpShell {
    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        let done = |result: Result<(), PortError>| match result {
            Ok(()) => Event::Done,
            Err(error) => failed(&error, Event::Failed),
        };
        Some(match effect {
            Effect::Call(request) => match call(&self.vault, &request).await {
                Some(answer) => Event::Answered(answer),
                None => Event::Failed,
            },
            Effect::ReadSecret => match self.cluster.read().await {
                Ok(secret) => Event::Secret(secret),
                Err(error) => failed(&error, Event::Failed),
            },
            Effect::ReadAuthorities => match self.cluster.authorities().await {
                Ok(authorities) => Event::Authorities(authorities),
                Err(error) => failed(&error, Event::Failed),
            },
            Effect::CreateSecret { key, key_id } => done(self.cluster.create(&key, &key_id).await),
            Effect::Advance { from, to } => {
                tracing::info!(%from, %to, "bootstrap advances");
                done(self.cluster.advance(&from, &to).await)
            }
            Effect::Rotate { from, key, key_id } => {
                tracing::info!(from, to = key_id, "the wrapping key is replaced");
                done(self.cluster.rotate(&from, &key, &key_id).await)
            }
            Effect::Forget { key_id } => done(self.cluster.forget(&key_id).await),
            Effect::ClearVaultKey => {
                tracing::info!("the vault has another key");
                done(self.cluster.clear_request(Replaceable::VaultKey).await)
            }
            Effect::ReadFile => found("read the wrapped key", self.disk.read(Note::Key)),
            Effect::ReadIntent => found("read the intent", self.disk.read(Note::Intent)),
            Effect::FetchFromPeers => Event::Files(self.peers.wrapped_keys().await),
            Effect::WriteFile(bytes) => {
                on_disk("write the wrapped key", self.disk.write(Note::Key, &bytes))
            }
            Effect::RemoveFile => {
                let removed =
                    self.disk.remove(Note::Reset).and_then(|()| self.disk.remove(Note::Key));
                on_disk("remove the wrapped key", removed)
            }
            Effect::WriteIntent { key_id } => {
                on_disk("write the intent", self.disk.write(Note::Intent, key_id.as_bytes()))
            }
            Effect::RemoveIntent => on_disk("remove the intent", self.disk.remove(Note::Intent)),
            Effect::ResetStorage => {
                tracing::warn!("the vault's key was lost before it held anything: it begins anew");
                reset(&*self.disk).await
            }
            Effect::Wait(time) => {
                wait(time).await;
                Event::Elapsed
            }
            Effect::Finish(end) => {
                self.end = Some(end);
                return None;
            }
        })
    }
}

#[async_trait]
impl Shell<Rekey> for BringUpShell {
    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        Shell::<BringUp>::perform(self, effect).await
    }
}

/// The effects of [`Setup`].
#[derive(Debug)]
pub struct SetupShell {
    vault: Vault,
    cluster: Arc<ApiServer>,
    token: PathBuf,
    clock: Arc<dyn Clock>,
    end: Option<SetupEnd>,
}

impl SetupShell {
    /// Uses these; `token` is the file with the controller's own token, for its own audience.
    pub fn new(
        vault: Vault,
        cluster: Arc<ApiServer>,
        token: PathBuf,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { vault, cluster, token, clock, end: None }
    }

    /// How the plan ended, once it has.
    pub fn into_end(self) -> Option<SetupEnd> {
        self.end
    }
}

#[async_trait]
impl Shell<Setup> for SetupShell {
    async fn perform(&mut self, effect: SetupEffect) -> Option<SetupEvent> {
        let done = |result: Result<(), PortError>| match result {
            Ok(()) => SetupEvent::Done,
            Err(error) => failed(&error, SetupEvent::Failed),
        };
        Some(match effect {
            SetupEffect::ReadToken => match std::fs::read(&self.token) {
                Ok(token) => SetupEvent::Token(SecretBytes::new(token.trim_ascii().to_vec())),
                Err(error) => {
                    let file = self.token.display();
                    tracing::warn!(%file, %error, "cannot read the own token");
                    SetupEvent::Failed
                }
            },
            SetupEffect::Call(request) => match call(&self.vault, &request).await {
                Some(answer) => SetupEvent::Answered(answer),
                None => SetupEvent::Failed,
            },
            SetupEffect::Publish(published) => done(self.cluster.publish(&published).await),
            SetupEffect::Copy(authorities) => done(self.cluster.update_copies(&authorities).await),
            SetupEffect::ReadWish => {
                match self.cluster.is_requested(Replaceable::Authorities).await {
                    Ok(true) => SetupEvent::Wished(Wish::Next, self.clock.now()),
                    Ok(false) => SetupEvent::Wished(Wish::None, self.clock.now()),
                    Err(error) => failed(&error, SetupEvent::Failed),
                }
            }
            SetupEffect::ClearWish => {
                done(self.cluster.clear_request(Replaceable::Authorities).await)
            }
            SetupEffect::Wait(time, refused) => {
                if let Some(Refused { step, status, .. }) = refused {
                    tracing::warn!(step, status, "the vault does not do what is asked of it");
                }
                wait(time).await;
                SetupEvent::Elapsed
            }
            SetupEffect::Finish(end) => {
                self.end = Some(end);
                return None;
            }
        })
    }
}
