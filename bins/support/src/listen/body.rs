//! Bodies: request bodies have deadlines, response bodies determine how long a request runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::activity::{Activity, Running};
use super::counts::{Counts, Reason};
use super::limits::Limits;
use super::watched::Timer;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request; it fails if it does not arrive in time.
#[derive(Debug)]
pub(super) struct Arriving<B> {
    body: B,
    activity: Arc<Activity>,
    counts: Arc<Counts>,
    limits: Limits,
    began: Instant,
    heard: Instant,
    timer: Timer,
}

impl<B: Body> Arriving<B> {
    pub(super) fn new(
        body: B,
        activity: Arc<Activity>,
        counts: Arc<Counts>,
        limits: Limits,
    ) -> Self {
        if !body.is_end_stream() {
            activity.receiving();
        }
        let now = Instant::now();
        Self { body, activity, counts, limits, began: now, heard: now, timer: Timer::default() }
    }
}

impl<B> Body for Arriving<B>
where
    B: Body + Unpin,
    B::Error: Into<Cause>,
{
    type Data = B::Data;
    type Error = Cause;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.heard = Instant::now();
            if frame.is_none() || this.body.is_end_stream() {
                this.activity.received();
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let whole = this.began + this.limits.body;
        let next = this.heard + this.limits.body_idle;
        ready!(this.timer.poll(whole.min(next), context));
        this.counts.close(Reason::BodyTimeout);
        let late = io::Error::new(io::ErrorKind::TimedOut, "the body did not come in time");
        Poll::Ready(Some(Err(late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Arriving<B> {
    fn drop(&mut self) {
        self.activity.received();
    }
}

/// The body of a response; its request runs until it is sent.
#[derive(Debug)]
pub(super) struct Answer<B> {
    body: B,
    _runs: Running,
}

impl<B> Answer<B> {
    pub(super) fn new(body: B, runs: Running) -> Self {
        Self { body, _runs: runs }
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
