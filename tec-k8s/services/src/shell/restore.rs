//! Carries out the effects of a restore.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use crate::vault::restore::{Effect, Event, Restore, RestoreError};
use async_trait::async_trait;
use tec_core::plan::Shell;
use tec_core::port::{PortError, chain};

use super::effect::{found, io_failed, on_disk, reset};
use super::{ApiServer, Disk, Note, Vault};

/// The effects of [`Restore`].
#[derive(Debug)]
pub struct RestoreShell {
    vault: Vault,
    cluster: Arc<ApiServer>,
    disk: Arc<dyn Disk>,
    snapshot: PathBuf,
    end: Option<Result<(), RestoreError>>,
}

impl RestoreShell {
    /// Uses these parts; `snapshot` is the file, which was checked before.
    pub fn new(
        vault: Vault,
        cluster: Arc<ApiServer>,
        disk: Arc<dyn Disk>,
        snapshot: PathBuf,
    ) -> Self {
        Self { vault, cluster, disk, snapshot, end: None }
    }

    /// How the plan ended, once it has.
    pub fn end(&self) -> Option<Result<(), RestoreError>> {
        self.end
    }

    async fn send(&self, request: &crate::vault::Request) -> Event {
        let file = match File::open(&self.snapshot) {
            Ok(file) => file,
            Err(error) => return io_failed("read the snapshot", &error),
        };
        match self.vault.send(request, file).await {
            Ok(answer) => Event::Answered(answer),
            Err(error) => failed(&error),
        }
    }
}

fn failed(error: &PortError) -> Event {
    tracing::warn!(error = %chain(error), "a step of the restore failed");
    Event::Failed
}

#[async_trait]
impl Shell<Restore> for RestoreShell {
    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        Some(match effect {
            Effect::ReadFile => found("read the wrapped key", self.disk.read(Note::Key)),
            Effect::ReadNote => found("read the note", self.disk.read(Note::Restore)),
            Effect::ReadSecret => match self.cluster.read().await {
                Ok(secret) => Event::Secret(secret),
                Err(error) => failed(&error),
            },
            Effect::Call(request) => match self.vault.call(&request).await {
                Ok(answer) => Event::Answered(answer),
                Err(error) => failed(&error),
            },
            Effect::WriteNote(note) => {
                on_disk("write the note", self.disk.write(Note::Restore, note.as_bytes()))
            }
            Effect::Send(request) => {
                tracing::info!("the vault takes the snapshot");
                self.send(&request).await
            }
            Effect::Advance { from, to } => match self.cluster.advance(&from, &to).await {
                Ok(()) => Event::Done,
                Err(error) => failed(&error),
            },
            Effect::WriteFile(bytes) => {
                on_disk("write the wrapped key", self.disk.write(Note::Key, &bytes))
            }
            Effect::RemoveNote => on_disk("remove the note", self.disk.remove(Note::Restore)),
            Effect::ResetStorage => reset(&*self.disk).await,
            Effect::Wait(time) => {
                tokio::time::sleep(time).await;
                Event::Elapsed
            }
            Effect::Finish(end) => {
                self.end = Some(end);
                return None;
            }
        })
    }
}
