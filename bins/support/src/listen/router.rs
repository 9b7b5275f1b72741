//! A router behind a listener.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::http::{Conversation, Protocol};
use super::{Counts, Limits, Place, Places, Reason, accept};
use crate::shared::SharedSources;
use crate::shutdown::Shutdown;

/// How a listener talks to its clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Transport {
    /// TLS.
    Tls(Arc<rustls::ServerConfig>),
    /// Plain HTTP, for tests and behind a proxy that terminates TLS.
    DangerousPlain,
}

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";

/// What to serve, and how. HTTP/2 is available only if the TLS configuration offers it.
#[derive(Clone, Debug)]
pub struct Server {
    transport: Transport,
    router: Router,
    limits: Limits,
    shared: SharedSources,
    counts: Arc<Counts>,
}

impl Server {
    /// A server with the default limits.
    pub fn new(transport: Transport, router: Router) -> Self {
        let (limits, shared) = (Limits::default(), SharedSources::default());
        Self { transport, router, limits, shared, counts: Counts::new("default") }
    }

    /// Sets the limits.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets a single address in these networks have all connections.
    pub fn shared_by(mut self, shared: SharedSources) -> Self {
        self.shared = shared;
        self
    }

    /// Counts connections with these counters.
    pub fn counted_by(mut self, counts: &Arc<Counts>) -> Self {
        self.counts = Arc::clone(counts);
        self
    }

    /// Serves until `shutdown`; requests in flight get a few seconds to finish.
    pub async fn run(
        self,
        listener: std::net::TcpListener,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::from_std(listener).context("serve")?;
        let limits = self.limits.within_descriptors();
        let places = Places::shared_by(self.shared, limits.total, limits.per_peer, self.counts);
        let server = Connections {
            tls: Tls::of(self.transport),
            router: self.router,
            limits,
            shutdown: shutdown.clone(),
        };
        let mut stop = shutdown;
        accept(listener, places, stop.triggered(), |stream, peer, place| {
            server.clone().connection(stream, peer, place)
        })
        .await;
        Ok(())
    }
}

#[derive(Clone)]
struct Tls {
    acceptor: TlsAcceptor,
    offers_http2: bool,
}

impl Tls {
    fn of(transport: Transport) -> Option<Self> {
        match transport {
            Transport::DangerousPlain => None,
            Transport::Tls(config) => Some(Self {
                offers_http2: config.alpn_protocols.iter().any(|name| name == H2),
                acceptor: TlsAcceptor::from(config),
            }),
        }
    }

    /// The negotiated protocol. A client that names none gets the protocol the server is meant for.
    fn protocol(&self, stream: &TlsStream<TcpStream>) -> Protocol {
        let agreed = stream.get_ref().1.alpn_protocol();
        match agreed {
            Some(H2) => Protocol::Http2,
            None if self.offers_http2 => Protocol::Http2,
            _ => Protocol::Http1,
        }
    }
}

#[derive(Clone)]
struct Connections {
    tls: Option<Tls>,
    router: Router,
    limits: Limits,
    shutdown: Shutdown,
}

impl Connections {
    async fn connection(self, stream: TcpStream, peer: SocketAddr, place: Place) {
        tokio::select! {
            () = place.displaced() => {}
            () = self.speak(stream, peer, &place) => {}
        }
    }

    async fn speak(self, stream: TcpStream, peer: SocketAddr, place: &Place) {
        let conversation = Conversation {
            router: self.router,
            peer,
            limits: self.limits,
            activity: Arc::clone(place.activity()),
            counts: Arc::clone(place.counts()),
        };
        let Some(tls) = self.tls else {
            place.activity().shaken();
            return conversation.run(stream, Protocol::Http1, self.shutdown).await;
        };
        let mut stop = self.shutdown.clone();
        let shaken = tokio::select! {
            shaken = timeout(self.limits.handshake, tls.acceptor.accept(stream)) => shaken,
            () = stop.triggered() => return,
        };
        let counts = place.counts();
        match shaken {
            Ok(Ok(stream)) => {
                place.activity().shaken();
                let protocol = tls.protocol(&stream);
                conversation.run(stream, protocol, self.shutdown).await;
            }
            Ok(Err(error)) => {
                counts.close(Reason::HandshakeFailed);
                tracing::debug!(%error, "a handshake failed");
            }
            Err(_) => counts.close(Reason::HandshakeTimeout),
        }
    }
}
