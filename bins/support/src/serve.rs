//! Servers: TLS or, only when explicitly requested, plain HTTP; graceful shutdown.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::task::JoinSet;

use crate::exit::OK;
use crate::listen::Server;
pub use crate::listen::Transport;
pub use crate::shutdown::Shutdown;

/// Binds a listener; port 0 picks a free one.
pub fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true).with_context(|| format!("cannot listen on {address}"))?;
    Ok(listener)
}

/// Serves until `shutdown` with the default limits, see [`Server`].
pub async fn serve(
    listener: std::net::TcpListener,
    transport: Transport,
    router: Router,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    Server::new(transport, router).run(listener, shutdown).await
}

/// Waits for the end of a program: of its tasks, which `signals` causes, or of the first one that fails.
/// Dropping the others ends them, but after success only once requests in flight had their grace period.
pub async fn until_ended(
    mut tasks: JoinSet<anyhow::Result<()>>,
    signals: impl Future<Output = ()> + Send + 'static,
    program: &str,
) -> anyhow::Result<u8> {
    tasks.spawn(async {
        signals.await;
        Ok(())
    });
    while let Some(ended) = tasks.join_next().await {
        ended.with_context(|| format!("a task of the {program} ended unexpectedly"))??;
    }
    Ok(OK)
}

/// `/livez`, and `/readyz`, which reports what the program waits for, if anything.
pub fn probes<F: Future<Output = Option<&'static str>> + Send + 'static>(
    waits: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> Router {
    let readiness = async move || match waits().await {
        None => (StatusCode::OK, "ready"),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    };
    Router::new().route("/livez", get(async || "alive")).route("/readyz", get(readiness))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_program_ends_with_the_error_of_the_task_that_failed_and_not_with_that_of_another() {
        let mut tasks = JoinSet::new();
        tasks.spawn(pending());
        tasks.spawn(async { Err(anyhow::anyhow!("the leadership is lost")) });
        let error = until_ended(tasks, pending(), "operator").await.unwrap_err();
        assert_eq!(error.to_string(), "the leadership is lost");
    }
}
