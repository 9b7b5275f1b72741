//! gRPC over attested TLS: HTTP/2 on the connections of an [`Endpoint`].

mod connect;

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tec_core::pcr::PcrIndex;
use tec_core::port::chain;
use tec_node::atls::{AtlsStream, AttestedPeer, Endpoint};
use tec_node::lock::MarkerState;
use tec_node::rpc::Caller;
use tec_support::listen::{Activity, Counts, Places, accept};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::error::Elapsed;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

pub use self::connect::{dial, reach};

/// Interval between pings: a client that waits for an init should see that the node is alive (Constellation).
const PING: Duration = Duration::from_secs(15);
/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of concurrent connections from one network: all nodes of a cluster may share one address.
const MAX_OF_A_NETWORK: usize = 32;
/// Maximum size of a call's header block in bytes, decompressed.
const MAX_HEAD: u32 = 16 << 10;
/// Maximum number of calls that a client reset and that are still kept.
const MAX_RESETS: usize = 32;
/// After this time a connection accepts no more calls, and ends with its last one, so that nobody holds an
/// idle connection.
const IDLE_LIMIT: Duration = Duration::from_mins(1);
/// After this time, a call that is still running is canceled: its caller may have stopped reading.
const LAST_LIMIT: Duration = Duration::from_hours(1);
/// Number of permits, more than the calls allowed on a connection: taking all of them waits until no call
/// runs.
const CALLS: u32 = 1024;
/// Until then, running calls may finish.
const GRACE: Duration = Duration::from_secs(10);

/// Limits on the resources that a client, possibly a stranger, can make a server hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum size of a message in bytes, with its frame.
    pub message: usize,
    /// Maximum number of concurrent calls on a connection.
    pub calls: u32,
    /// Time by which a message that was begun must be complete. In the older implementation, Recover was a
    /// stream: its clients wait for an answer before they end the stream, and get one that explains this.
    pub time: Duration,
}

impl Bounds {
    /// Limits for Init: older clients also send the charts of a cluster, which are no longer read.
    pub const INIT: Self = Self {
        message: 4 << 20,
        // One that runs, and one that is told so.
        calls: 2,
        time: Duration::from_mins(1),
    };
    /// Limits for Recover, with two URIs, and for the join service, with a certificate request.
    pub const SMALL: Self = Self { message: 64 << 10, calls: 4, time: Duration::from_secs(10) };
}

type Message = Request<Full<Bytes>>;
type Cause = Box<dyn Error + Send + Sync>;

/// Serves until `stop` turns true; then running calls may finish. `current` gives the parts that check a
/// connection and answer its calls; they may change from one connection to the next.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn serve<S>(
    listener: TcpListener,
    current: impl Fn() -> (Endpoint, S),
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Message, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let places = Places::new(MAX_CONNECTIONS, MAX_OF_A_NETWORK, Counts::new("transport"));
    let stopped = stop.clone();
    accept(listener, places, told(&mut stop), |stream, _, place| {
        let (endpoint, service) = current();
        let stop = stopped.clone();
        async move {
            tokio::select! {
                () = place.displaced() => tracing::warn!("a connection made room for another one"),
                () = connection(endpoint, stream, (service, place.activity()), bounds, stop) => {}
            }
        }
    })
    .await;
}

pub(super) async fn told(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone means stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection<S>(
    endpoint: Endpoint,
    stream: TcpStream,
    (service, activity): (S, &Arc<Activity>),
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) where
    S: Service<Message, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
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
    tell_warnings(&stream);
    let caller = caller(&stream);
    activity.shaken();
    let service = Lasting { service, activity: Arc::clone(activity) };
    converse(stream, caller, service, bounds, stop).await;
}

/// A service whose calls mark the connection as in use.
#[derive(Clone)]
struct Lasting<S> {
    service: S,
    activity: Arc<Activity>,
}

impl<S> Service<Message> for Lasting<S>
where
    S: Service<Message, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        let (service, runs) = (self.service.clone(), self.activity.request());
        Box::pin(async move {
            let answer = service.oneshot(message).await?;
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _lasts = &runs;
                    frame
                }))
            }))
        })
    }
}

/// Answers calls over a stream until it ends, must stop, or was open for long enough.
async fn converse<IO, S>(
    stream: IO,
    caller: Option<Caller>,
    service: S,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Message, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let running = Arc::new(Semaphore::new(CALLS as usize));
    let calls = Arc::clone(&running);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (service, caller) = (service.clone(), caller.clone());
        let call = Arc::clone(&calls).try_acquire_owned();
        async move {
            let Ok(call) = call else {
                return Ok(Status::unavailable("the connection ends").into_http());
            };
            let answer = match arrived(request, bounds).await {
                Ok(mut message) => {
                    if let Some(caller) = caller {
                        message.extensions_mut().insert(caller);
                    }
                    service.oneshot(message).await?
                }
                Err(status) => status.into_http(),
            };
            Ok::<_, Infallible>(answer.map(|body| whole(body, call)))
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .max_concurrent_streams(bounds.calls)
        .max_header_list_size(MAX_HEAD)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => Ok(ended),
        () = async {
            tokio::select! {
                () = told(&mut stop) => {}
                () = tokio::time::sleep(IDLE_LIMIT) => {}
            }
        } => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served => Ok(ended),
                cut_off = unused(&running) => cut_off,
            }
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error = chain(&error), "a connection broke"),
        Err(_) => tracing::warn!("a call that did not end was cut off"),
    }
}

/// A call lasts until its answer was sent, which may be a stream.
fn whole(body: Body, call: OwnedSemaphorePermit) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _lasts = &call;
        frame
    }))
}

/// Waits until no call runs, and none can begin. It does not wait for peers that do not say goodbye.
async fn unused(running: &Semaphore) -> Result<hyper::Result<()>, Elapsed> {
    let calls = tokio::time::timeout(LAST_LIMIT, running.acquire_many(CALLS)).await?;
    tokio::time::sleep(GRACE).await;
    drop(calls);
    Ok(Ok(()))
}

/// Reads the whole message of a call, before anything else does; each of our calls has exactly one.
async fn arrived<B>(request: Request<B>, bounds: Bounds) -> Result<Message, Status>
where
    B: hyper::body::Body,
    B::Error: Into<Cause>,
{
    let (head, body) = request.into_parts();
    let largest = bounds.message;
    if body.size_hint().lower() > largest as u64 {
        return Err(too_large());
    }
    let whole = Limited::new(body, largest).collect();
    match tokio::time::timeout(bounds.time, whole).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Status::cancelled("the message broke off")),
        Err(_) => {
            let sentence = "the message did not end in time; this call takes one, and no stream";
            Err(Status::invalid_argument(sentence))
        }
    }
}

fn too_large() -> Status {
    Status::resource_exhausted("the message is too large for this call")
}

/// A peer that attested with a key is identified by the key, and by the cluster that it is in.
fn caller<IO>(stream: &AtlsStream<IO>) -> Option<Caller> {
    let peer = stream.peer()?;
    Some(Caller::dangerous_assume(peer.ak()?.clone(), marker(peer)?))
}

/// Mismatches in registers that only cause warnings are logged; the peer is accepted anyway.
fn tell_warnings<IO>(stream: &AtlsStream<IO>) {
    let Some(peer) = stream.peer() else { return };
    for one in peer.warnings() {
        tracing::warn!(
            ak = peer.ak().map(|ak| tracing::field::display(ak.fingerprint())),
            pcr = u8::from(one.index),
            found = %one.found,
            expected = %one.expected,
            "a peer is taken whose register differs"
        );
    }
}

/// The cluster that an attested peer is in.
fn marker(peer: &AttestedPeer) -> Option<MarkerState> {
    let value = peer.pcrs()?.value(PcrIndex::CLUSTER);
    Some(MarkerState::of(*value))
}

#[cfg(test)]
mod tests;
