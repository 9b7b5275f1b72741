//! Requests over one connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tec_core::ak::SourceNetwork;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use super::activity::Activity;
use super::body::{Answer, Arriving};
use super::counts::Counts;
use super::limits;
use super::limits::Limits;
use super::watched::Watched;
use crate::shutdown::Shutdown;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// For gRPC.
    Http2,
}

/// What answers the requests of one connection.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) router: Router,
    pub(super) peer: SocketAddr,
    pub(super) limits: Limits,
    pub(super) activity: Arc<Activity>,
    pub(super) counts: Arc<Counts>,
}

impl Conversation {
    /// Answers requests until the connection ends. On shutdown, an unused connection closes immediately, and
    /// others after their requests.
    pub(super) async fn run<IO>(self, stream: IO, protocol: Protocol, mut shutdown: Shutdown)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (activity, counts) = (Arc::clone(&self.activity), Arc::clone(&self.counts));
        let stream = Watched::new(stream, Arc::clone(&activity), counts, self.limits);
        let stream = TokioIo::new(stream);
        let service = service_fn(move |request| self.clone().answer(request));
        // Drives one of the two kinds of connection, which share no trait.
        macro_rules! drive {
            ($connection:expr) => {{
                let mut connection = std::pin::pin!($connection);
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = shutdown.triggered() => {
                        if activity.is_unused() {
                            return;
                        }
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                }
            }};
        }
        let ended = match protocol {
            Protocol::Http1 => drive!(
                http1::Builder::new()
                    .header_read_timeout(None)
                    .max_buf_size(limits::HEAD_BYTES)
                    .serve_connection(stream, service)
            ),
            Protocol::Http2 => drive!(
                http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .keep_alive_interval(limits::PING)
                    .keep_alive_timeout(limits::PING)
                    .max_concurrent_streams(limits::STREAMS)
                    .max_header_list_size(limits::HTTP2_HEAD_BYTES)
                    .max_pending_accept_reset_streams(limits::RESETS)
                    .max_local_error_reset_streams(limits::RESETS)
                    .initial_stream_window_size(limits::HTTP2_WINDOW)
                    .initial_connection_window_size(limits::HTTP2_WINDOW)
                    .serve_connection(stream, service)
            ),
        };
        if let Err(error) = ended {
            tracing::debug!(error = tec_core::port::chain(&error), "a connection broke");
        }
    }

    async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Answer<Body>>, Infallible> {
        let runs = self.activity.request();
        let Self { router, peer, limits, activity, counts } = self;
        let mut request =
            request.map(|body| Body::new(Arriving::new(body, activity, counts, limits)));
        // For limits per address, and for those per network.
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(SourceNetwork::of(peer.ip()));
        let response = router.oneshot(request).await?;
        Ok(response.map(|body| Answer::new(body, runs)))
    }
}
