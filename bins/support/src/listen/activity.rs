//! What a connection is doing, and how long it may take.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::counts::Reason;
use super::limits::Limits;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// In the TLS handshake.
    Handshake,
    /// Nothing has arrived yet.
    New,
    /// The head of a request has begun to arrive.
    Head,
    /// The head of a request has arrived, but not its body.
    Receiving,
    /// A request is being answered.
    Serving,
    /// A request has been answered.
    Idle,
}

/// Order in which connections make room for others; those of the first variant are closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// The connection waits for its client, which has not sent a request.
    Waiting,
    /// The connection waits for the rest of a request.
    Receiving,
    /// A request on the connection is being served.
    Serving,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    in_flight: usize,
    /// The reader, which must be woken when there is a deadline again.
    reader: Option<Waker>,
}

/// The state of one connection, shared by its parts and the connection table.
#[derive(Debug)]
pub struct Activity(Mutex<State>);

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            phase: Phase::Handshake,
            since: Instant::now(),
            in_flight: 0,
            reader: None,
        })))
    }

    /// The handshake is done, or not needed.
    pub fn shaken(&self) {
        self.0.lock().go(Phase::New);
    }

    /// Data has arrived.
    pub(super) fn heard(&self) {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::New | Phase::Idle) {
            state.go(Phase::Head);
        }
    }

    /// A request has arrived. It runs as long as its response lives, which may be a stream.
    pub fn request(self: &Arc<Self>) -> Running {
        let mut state = self.0.lock();
        state.in_flight = state.in_flight.saturating_add(1);
        state.go(Phase::Serving);
        Running(Arc::clone(self))
    }

    /// The body of a request is expected.
    pub(super) fn receiving(&self) {
        let mut state = self.0.lock();
        if state.phase == Phase::Serving && state.in_flight == 1 {
            state.go(Phase::Receiving);
        }
    }

    /// The body of a request has arrived, or is not wanted.
    pub(super) fn received(&self) {
        let mut state = self.0.lock();
        if state.phase == Phase::Receiving {
            state.go(Phase::Serving);
        }
    }

    /// The deadline for data to arrive, and what it means if none does. Without a deadline, the reader is
    /// woken once there is one.
    pub(super) fn deadline(&self, limits: &Limits, reader: &Waker) -> Option<(Instant, Reason)> {
        let mut state = self.0.lock();
        let (limit, reason) = match state.phase {
            Phase::Handshake => (limits.handshake, Reason::HandshakeTimeout),
            Phase::New => (limits.first_byte, Reason::FirstByteTimeout),
            Phase::Head => (limits.head, Reason::HeadTimeout),
            Phase::Idle => (limits.idle, Reason::IdleTimeout),
            Phase::Receiving | Phase::Serving => {
                state.reader = Some(reader.clone());
                return None;
            }
        };
        Some((state.since + limit, reason))
    }

    /// Whether closing the connection loses nothing.
    pub(super) fn is_unused(&self) -> bool {
        matches!(self.0.lock().phase, Phase::Handshake | Phase::New | Phase::Idle)
    }

    /// The worth of the connection, and since when it has been in this state.
    pub(super) fn worth(&self) -> (Worth, Instant) {
        let state = self.0.lock();
        let worth = match state.phase {
            Phase::Handshake | Phase::New | Phase::Head | Phase::Idle => Worth::Waiting,
            Phase::Receiving => Worth::Receiving,
            Phase::Serving => Worth::Serving,
        };
        (worth, state.since)
    }
}

impl State {
    fn go(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = Instant::now();
    }
}

/// A request that is being served.
#[derive(Debug)]
pub struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.in_flight == 0 {
            state.go(Phase::Idle);
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
    }
}
