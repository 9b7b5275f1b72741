//! gRPC over attested TLS: HTTP/2 on the connections of an [`Endpoint`].

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use http::Request;
use http::Response;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::port::chain;
use tec_k8s::rpc::Caller;
use tec_tpm::atls::AtlsError;
use tec_tpm::atls::AtlsStream;
use tec_tpm::atls::Connector;
use tec_tpm::atls::Endpoint;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::Service;
use tower::ServiceExt as _;

/// A client that waits for an init shall know that the node lives (contract, 1.3).
const PING: Duration = Duration::from_secs(15);
/// Connections at once; a node that is full turns the next away.
const MAX_CONNECTIONS: usize = 64;
/// Calls at once on a connection; each may hold a message of 4 MiB.
const MAX_STREAMS: u32 = 4;
/// A connection, its handshake and two documents: quotes take seconds on discrete TPMs.
const CONNECT_LIMIT: Duration = Duration::from_mins(1);
/// Calls that run may end until then.
const GRACE: Duration = Duration::from_secs(10);
/// After a failure to accept, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` says so; then calls that run may end.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn serve<S>(
    endpoint: Endpoint,
    listener: TcpListener,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    let one = connection(endpoint.clone(), stream, service.clone(), stop.clone());
                    connections.spawn(one);
                }
                Ok(_) => tracing::warn!("a connection was turned away: too many at once"),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            () = told(&mut stop) => break,
        }
    }
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("connections did not end in time and are closed");
    }
}

async fn told(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone says so, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection<S>(
    endpoint: Endpoint,
    stream: TcpStream,
    service: S,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let stream = tokio::select! {
        accepted = endpoint.accept(stream) => match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(error = chain(&error), "a connection was refused");
                return;
            }
        },
        () = told(&mut stop) => return,
    };
    let caller = caller(&stream);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        if let Some(caller) = &caller {
            request.extensions_mut().insert(caller.clone());
        }
        service.clone().oneshot(request)
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .max_concurrent_streams(MAX_STREAMS);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = told(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = chain(&error), "a connection broke");
    }
}

/// Whoever attested with a key is known by it.
fn caller<IO>(stream: &AtlsStream<IO>) -> Option<Caller> {
    let ak = stream.peer()?.ak()?;
    Some(Caller::dangerous_assume(ak.clone()))
}

/// What the other end proved was judged, and refused; anything else may be different next time.
fn kind(error: &(dyn Error + 'static)) -> PortErrorKind {
    let mut cause = Some(error);
    let mut atls = None;
    while let Some(error) = cause {
        atls = atls.or_else(|| error.downcast_ref::<AtlsError>());
        cause = error.source();
    }
    match atls {
        Some(
            AtlsError::NoCertificate
            | AtlsError::Certificate(_)
            | AtlsError::Document(_)
            | AtlsError::OtherKey
            | AtlsError::Unbound
            | AtlsError::NoEvidence
            | AtlsError::OtherVariant { .. }
            | AtlsError::Relayed,
        ) => PortErrorKind::Denied,
        _ => PortErrorKind::Unavailable,
    }
}

/// Connects to `host:port`.
///
/// # Errors
/// Kind `Unavailable` when there is nobody, and `Denied` for somebody whose evidence is refused.
pub async fn dial(endpoint: &Endpoint, address: &str) -> Result<Channel, PortError> {
    let to = address.to_owned();
    let connect = tower::service_fn(move |_: http::Uri| TcpStream::connect(to.clone()));
    let connector = Connector::new(connect, endpoint.clone()).map_response(TokioIo::new);
    // The name is of no meaning: evidence says who is there.
    let channel = tonic::transport::Endpoint::from_static("http://atls.invalid")
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(PING);
    channel
        .connect_with_connector(connector)
        .await
        .map_err(|error| {
            PortError::new(kind(&error), format!("connect to {address}")).because(error)
        })
}
