//! Counters of a listener, in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection was rejected or closed by this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Its network already has the most connections allowed, all of them in use.
    PeerLimit,
    /// The listener already has the most connections allowed, and none can be closed for this one.
    TotalLimit,
    /// It made room for another connection.
    Displaced,
    /// The handshake did not complete in time.
    HandshakeTimeout,
    /// The handshake failed.
    HandshakeFailed,
    /// Nothing arrived.
    FirstByteTimeout,
    /// The head of a request did not arrive completely.
    HeadTimeout,
    /// A body did not arrive completely, or was cut off.
    BodyTimeout,
    /// No further request arrived.
    IdleTimeout,
    /// The client did not read the response.
    WriteTimeout,
}

impl Reason {
    const ALL: [Self; 10] = [
        Self::PeerLimit,
        Self::TotalLimit,
        Self::Displaced,
        Self::HandshakeTimeout,
        Self::HandshakeFailed,
        Self::FirstByteTimeout,
        Self::HeadTimeout,
        Self::BodyTimeout,
        Self::IdleTimeout,
        Self::WriteTimeout,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::PeerLimit => "peer_limit",
            Self::TotalLimit => "total_limit",
            Self::Displaced => "displaced",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::HandshakeFailed => "handshake_failed",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::HeadTimeout => "head_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::WriteTimeout => "write_timeout",
        }
    }
}

/// The counters of a listener. Nothing about clients is kept.
#[derive(Debug)]
pub struct Counts {
    name: &'static str,
    accepted: AtomicU64,
    ended: AtomicU64,
    closed: [AtomicU64; Reason::ALL.len()],
}

impl Counts {
    /// Counters of the listener with this name.
    pub fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            accepted: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            closed: Default::default(),
        })
    }

    /// Number of open connections.
    pub fn open(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.accepted.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// Number of connections rejected or closed for this reason.
    pub fn closed(&self, reason: Reason) -> u64 {
        self.counter(reason).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self, reason: Reason) {
        if let Some(counter) = self.counter(reason) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counter(&self, reason: Reason) -> Option<&AtomicU64> {
        let index = Reason::ALL.iter().position(|known| *known == reason)?;
        self.closed.get(index)
    }
}

/// The counters of these listeners, as text.
pub fn render(listeners: &[Arc<Counts>]) -> String {
    let mut text = String::from(
        "# HELP tec_connections_open Open connections.\n\
         # TYPE tec_connections_open gauge\n",
    );
    // Writing to a string cannot fail.
    for counts in listeners {
        let (name, open) = (counts.name, counts.open());
        let _ = writeln!(text, "tec_connections_open{{listener=\"{name}\"}} {open}");
    }
    text.push_str(
        "# HELP tec_connections_accepted_total Accepted connections.\n\
         # TYPE tec_connections_accepted_total counter\n",
    );
    for counts in listeners {
        let (name, count) = (counts.name, counts.accepted.load(Ordering::Relaxed));
        let _ = writeln!(text, "tec_connections_accepted_total{{listener=\"{name}\"}} {count}");
    }
    text.push_str(
        "# HELP tec_connections_refused_total Connections refused or closed by the server, by reason.\n\
         # TYPE tec_connections_refused_total counter\n",
    );
    for counts in listeners {
        for reason in Reason::ALL {
            let (name, why) = (counts.name, reason.as_str());
            let count = counts.closed(reason);
            let _ = writeln!(
                text,
                "tec_connections_refused_total{{listener=\"{name}\",reason=\"{why}\"}} {count}"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_listener_and_reason() {
        let (one, other) = (Counts::new("kbs"), Counts::new("ak"));
        one.accept();
        one.accept();
        one.end();
        one.close(Reason::HeadTimeout);
        let text = render(&[one, other]);
        for line in [
            "tec_connections_open{listener=\"kbs\"} 1",
            "tec_connections_open{listener=\"ak\"} 0",
            "tec_connections_accepted_total{listener=\"kbs\"} 2",
            "tec_connections_refused_total{listener=\"kbs\",reason=\"head_timeout\"} 1",
            "tec_connections_refused_total{listener=\"ak\",reason=\"head_timeout\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
