//! Limits on what the clients of a listener may hold, in time and in number.

use std::time::Duration;

/// Deadline of a TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Deadline of the first byte of the first request.
pub const FIRST_BYTE: Duration = Duration::from_secs(10);
/// Deadline of a complete request head, from its first byte.
pub const HEAD: Duration = Duration::from_secs(10);
/// Deadline of a complete request body, from the end of its head. Evidence of 2 MiB needs 70 KiB/s.
pub const BODY: Duration = Duration::from_secs(30);
/// Longest silence within a body. Longer than the time services wait for a body, because they answer with a
/// code.
pub const BODY_IDLE: Duration = Duration::from_secs(15);
/// Longest silence between two requests.
pub const IDLE: Duration = Duration::from_mins(1);
/// Longest time during which a client reads nothing of a response.
pub const WRITE: Duration = Duration::from_secs(30);
/// Maximum number of connections at a time.
pub const TOTAL: usize = 1024;
/// Maximum number of connections of one client network at a time. Enough for a rack behind one address.
pub const PER_PEER: usize = 256;
/// Largest request head, in bytes. Attestation tokens travel in heads and are about 8 KiB.
pub const HEAD_BYTES: usize = 32 << 10;
/// Maximum number of concurrent requests on an HTTP/2 connection.
pub const STREAMS: u32 = 64;
/// Largest request head in HTTP/2, in bytes, uncompressed.
pub const HTTP2_HEAD_BYTES: u32 = 16 << 10;
/// Maximum number of streams that are kept after the client has reset them.
pub const RESETS: usize = 32;
/// Bytes that a client may send ahead on an HTTP/2 stream.
pub const HTTP2_WINDOW: u32 = 256 << 10;
/// Ping interval for a silent HTTP/2 peer, and its deadline to answer.
pub const PING: Duration = Duration::from_secs(20);
/// Maximum number of connections at a time to a listener for probes and metrics.
pub const PROBES: usize = 64;
/// Maximum number of bytes that a connection uses in addition to request bodies: a head, a TLS
/// record in each direction (RFC 8446, section 5.2), and its state.
pub const CONNECTION_BYTES: usize = HEAD_BYTES + 2 * (18 << 10) + (12 << 10);
/// Share of the process's file descriptors that one listener may use, as a divisor: the largest program has
/// three listeners and needs some descriptors for its files.
const SHARE_OF_DESCRIPTORS: usize = 4;

/// Limits of a listener; [`Limits::default`] are the constants of this module.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// See [`HANDSHAKE`].
    pub handshake: Duration,
    /// See [`FIRST_BYTE`].
    pub first_byte: Duration,
    /// See [`HEAD`].
    pub head: Duration,
    /// See [`BODY`].
    pub body: Duration,
    /// See [`BODY_IDLE`].
    pub body_idle: Duration,
    /// See [`IDLE`].
    pub idle: Duration,
    /// See [`WRITE`].
    pub write: Duration,
    /// See [`TOTAL`].
    pub total: usize,
    /// See [`PER_PEER`].
    pub per_peer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: HANDSHAKE,
            first_byte: FIRST_BYTE,
            head: HEAD,
            body: BODY,
            body_idle: BODY_IDLE,
            idle: IDLE,
            write: WRITE,
            total: TOTAL,
            per_peer: PER_PEER,
        }
    }
}

impl Limits {
    /// For probes and metrics: few clients, all within the cluster.
    pub fn probes() -> Self {
        Self { total: PROBES, per_peer: PROBES, ..Self::default() }
    }

    /// Maximum number of bytes that all connections together use in addition to request bodies.
    pub fn most_bytes(&self) -> usize {
        self.total.saturating_mul(CONNECTION_BYTES)
    }

    /// Reduces the connections to what the process's file descriptors allow.
    pub fn within_descriptors(self) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        match limit.current {
            Some(limit) => self.within(usize::try_from(limit).unwrap_or(usize::MAX)),
            None => self,
        }
    }

    fn within(mut self, descriptors: usize) -> Self {
        let total = (descriptors / SHARE_OF_DESCRIPTORS).max(1);
        if total < self.total {
            let share = self.per_peer.saturating_mul(total) / self.total;
            self.per_peer = share.max(1);
            self.total = total;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_file_descriptors_mean_few_connections_in_the_same_shares() {
        let few = Limits::default().within(1024);
        assert_eq!((few.total, few.per_peer), (256, 64));
        let many = Limits::default().within(1 << 20);
        assert_eq!((many.total, many.per_peer), (TOTAL, PER_PEER));
        let none = Limits::default().within(0);
        assert_eq!((none.total, none.per_peer), (1, 1));
    }
}
