//! The connecting side.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tec_core::port::{PortError, PortErrorKind};
use tec_node::atls::{AtlsError, AtlsStream, ConnectError, Connector, Endpoint};
use tec_node::rpc::Reached;
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tower::ServiceExt as _;

use super::{Cause, PING, marker, tell_warnings};

/// Time limit of a connection with its handshake and two documents: quotes take seconds on discrete TPMs.
const CONNECT_LIMIT: Duration = Duration::from_mins(1);

/// The peer's evidence was evaluated and refused; any other failure may be different next time.
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
            | AtlsError::NoNonce
            | AtlsError::ExchangeSize(_)
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
/// Errors: kind `Unavailable` if nobody answers, and `Denied` if the peer's evidence is refused.
pub async fn dial(endpoint: &Endpoint, address: &str) -> Result<Channel, PortError> {
    connect(endpoint, address, |_| true).await
}

/// Connects to `host:port`, only once: what the other end proved applies to the whole channel.
/// Errors: as for [`dial`]; also `Denied` for evidence without registers.
pub async fn reach(endpoint: &Endpoint, address: &str) -> Result<Reached, PortError> {
    let met = Arc::new(OnceLock::new());
    let note = Arc::clone(&met);
    let first = move |stream: &AtlsStream<TcpStream>| {
        let peer = stream.peer();
        peer.is_some_and(|peer| note.set(Arc::clone(peer)).is_ok())
    };
    let channel = connect(endpoint, address, first).await?;
    let marker = met.get().and_then(|peer| marker(peer)).ok_or_else(|| {
        let operation = format!("learn in which cluster {address} is");
        PortError::new(PortErrorKind::Denied, operation)
    })?;
    Ok(Reached { channel, marker })
}

/// Connects over streams that `admits` accepts.
async fn connect(
    endpoint: &Endpoint,
    address: &str,
    admits: impl Fn(&AtlsStream<TcpStream>) -> bool + Clone + Send + 'static,
) -> Result<Channel, PortError> {
    let to = address.to_owned();
    let connect = tower::service_fn(move |_: http::Uri| TcpStream::connect(to.clone()));
    let take = move |connected: Result<AtlsStream<TcpStream>, ConnectError>| {
        let stream = connected?;
        if !admits(&stream) {
            return Err(Cause::from("a channel is not made anew to somebody else"));
        }
        tell_warnings(&stream);
        Ok(TokioIo::new(stream))
    };
    let connector = Connector::new(connect, endpoint.clone()).map_result(take);
    // The name has no meaning: evidence proves who is there.
    let channel = tonic::transport::Endpoint::from_static("http://atls.invalid")
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(PING);
    channel.connect_with_connector(connector).await.map_err(|error| {
        PortError::new(kind(&error), format!("connect to {address}")).because(error)
    })
}
