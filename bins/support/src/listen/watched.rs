//! A stream that fails if its client is silent for too long.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::Activity;
use super::counts::{Counts, Reason};
use super::limits::Limits;

/// One timer, created when needed.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready when `deadline` has passed.
    pub(super) fn poll(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(context)
    }
}

/// A stream with the deadlines of [`Limits`].
#[derive(Debug)]
pub(super) struct Watched<IO> {
    stream: IO,
    activity: Arc<Activity>,
    counts: Arc<Counts>,
    limits: Limits,
    reading: Timer,
    writing: Timer,
    /// Since when the client has read nothing.
    stalled: Option<Instant>,
}

impl<IO> Watched<IO> {
    pub(super) fn new(
        stream: IO,
        activity: Arc<Activity>,
        counts: Arc<Counts>,
        limits: Limits,
    ) -> Self {
        Self {
            stream,
            activity,
            counts,
            limits,
            reading: Timer::default(),
            writing: Timer::default(),
            stalled: None,
        }
    }

    fn late(&self, reason: Reason) -> io::Error {
        self.counts.close(reason);
        io::ErrorKind::TimedOut.into()
    }

    /// Handles the outcome of a write; the stream fails if a write stalls too long.
    fn written<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        ready!(self.writing.poll(since + self.limits.write, context));
        Poll::Ready(Err(self.late(Reason::WriteTimeout)))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            this.activity.heard();
        }
        if read.is_ready() {
            return read;
        }
        let Some((deadline, reason)) = this.activity.deadline(&this.limits, context.waker()) else {
            return Poll::Pending;
        };
        ready!(this.reading.poll(deadline, context));
        Poll::Ready(Err(this.late(reason)))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.written(written, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        this.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.written(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = Pin::new(&mut this.stream).poll_shutdown(context);
        this.written(ended, context)
    }
}
