//! Servers: TLS or, only when explicitly requested, plain HTTP; graceful shutdown.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::Router;

use crate::listen::Server;
pub use crate::listen::Transport;
pub use crate::shutdown::Shutdown;

/// Binds a listener; port 0 picks a free one.
///
/// # Errors
/// The address is taken, or does not belong to this host.
pub fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true).with_context(|| format!("cannot listen on {address}"))?;
    Ok(listener)
}

/// Serves until `shutdown` with the default limits, see [`Server`].
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: std::net::TcpListener,
    transport: Transport,
    router: Router,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    Server::new(transport, router).run(listener, shutdown).await
}
