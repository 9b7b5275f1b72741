//! Observers of an init.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::port::Pause;
use async_trait::async_trait;
use tec_core::port::{PortError, chain};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

use super::Reason;
use super::generated::init::init_progress::Item;
use super::generated::init::{InitFailure, InitProgress, InitResponse};

/// Maximum number of items that wait for a slow caller; beyond this, steps are left out.
const WAITING: usize = 64;
/// Maximum size of a piece of the log (Constellation).
const PIECE: usize = 1024;

/// Reports the progress of an init to a caller, if there is one.
#[derive(Clone, Debug, Default)]
pub struct Watcher(Option<mpsc::Sender<Result<InitProgress, Status>>>);

/// The reports of a [`Watcher`], as a stream.
#[derive(Debug)]
pub struct Progress(mpsc::Receiver<Result<InitProgress, Status>>);

impl Stream for Progress {
    type Item = Result<InitProgress, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().0.poll_recv(cx)
    }
}

impl Watcher {
    /// A watcher, and its reports.
    pub fn new() -> (Self, Progress) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(Some(sender)), Progress(receiver))
    }

    /// No process listens.
    pub fn nobody() -> Self {
        Self(None)
    }

    /// Reports the end. False if nobody received it.
    pub async fn end(&self, answer: Result<InitResponse, Status>) -> bool {
        let item = answer.map(|response| progress(Item::Success(response)));
        match &self.0 {
            Some(sender) => sender.send(item).await.is_ok(),
            None => false,
        }
    }

    pub(super) async fn failed(&self, status: &Status, log: &[u8]) {
        let Some(sender) = &self.0 else { return };
        let reason = Reason::of(status).unwrap_or(Reason::Defect);
        let failure =
            InitFailure { error: status.message().to_owned(), reason: reason.to_string() };
        let pieces = log.chunks(PIECE).map(|piece| Item::Log(piece.to_vec()));
        for item in std::iter::once(Item::Failure(failure)).chain(pieces) {
            if sender.send(Ok(progress(item))).await.is_err() {
                return;
            }
        }
    }

    fn tell(&self, item: Item) {
        if let Some(sender) = &self.0 {
            // Nobody listens, or too slowly: what counts is the end.
            let _ = sender.try_send(Ok(progress(item)));
        }
    }
}

fn progress(item: Item) -> InitProgress {
    InitProgress { item: Some(item) }
}

/// Waits like another pause, and reports the events that it is notified of.
#[derive(derive_more::Debug)]
#[debug("Told {{ .. }}")]
pub(super) struct Told<'w> {
    pub(super) inner: Arc<dyn Pause>,
    pub(super) watcher: &'w Watcher,
}

#[async_trait]
impl Pause for Told<'_> {
    fn began(&self, step: &dyn fmt::Display) {
        self.inner.began(step);
        self.watcher.tell(Item::Began(step.to_string()));
    }

    fn failed(&self, step: &dyn fmt::Debug, error: &PortError) {
        self.inner.failed(step, error);
        self.watcher.tell(Item::Failed(chain(error)));
    }

    async fn pause(&self, doublings: u32) {
        self.inner.pause(doublings).await;
    }
}
