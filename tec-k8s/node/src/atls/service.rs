//! The client's side as a tower service, in the form that gRPC clients use.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use super::{AtlsError, AtlsStream, Endpoint};

type Connecting<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// No attested connection to a server could be established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The underlying transport failed.
    #[error("cannot connect to the server")]
    Transport(#[source] Box<dyn Error + Send + Sync>),
    /// The handshake failed.
    #[error("cannot exchange evidence")]
    Atls(#[source] AtlsError),
}

/// Connects with `C`, then performs the handshake over it.
#[derive(Clone, Debug)]
pub struct Connector<C> {
    transport: C,
    endpoint: Endpoint,
}

impl<C> Connector<C> {
    /// Uses this endpoint, over connections of `transport`.
    pub fn new(transport: C, endpoint: Endpoint) -> Self {
        Self { transport, endpoint }
    }
}

impl<C, T, IO> Service<T> for Connector<C>
where
    C: Service<T, Response = IO>,
    C::Error: Into<Box<dyn Error + Send + Sync>>,
    C::Future: Send + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Response = AtlsStream<IO>;
    type Error = ConnectError;
    type Future = Connecting<AtlsStream<IO>, ConnectError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.transport.poll_ready(cx).map_err(|error| ConnectError::Transport(error.into()))
    }

    fn call(&mut self, target: T) -> Self::Future {
        let connecting = self.transport.call(target);
        let endpoint = self.endpoint.clone();
        Box::pin(async move {
            let io = connecting.await.map_err(|error| ConnectError::Transport(error.into()))?;
            endpoint.connect(io).await.map_err(ConnectError::Atls)
        })
    }
}
