//! Whether the Trustee behind the guard answers.

use super::*;

/// A server that answers `GET /healthz` with this status, and a guard in front of it.
async fn guard_before(status: StatusCode) -> Guard {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(async move || status);
    tokio::spawn(async move { axum::serve(listener, router).await });
    guard_of(address).await
}

async fn guard_of(upstream: SocketAddr) -> Guard {
    let world = World::with(|mut config| {
        config.upstream = upstream.to_string().parse().unwrap();
        config
    });
    world.await.guard
}

#[tokio::test]
async fn a_trustee_is_ready_once_it_answers() {
    // Recorded: /healthz came with v0.21; earlier servers have no such path.
    for healthz in [StatusCode::OK, StatusCode::NOT_FOUND] {
        assert!(guard_before(healthz).await.is_ready().await, "{healthz}");
    }
}

#[tokio::test]
async fn a_trustee_that_fails_or_is_gone_is_not_ready() {
    let failing = guard_before(StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(!failing.is_ready().await);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let gone = guard_of(address).await;
    assert!(!gone.is_ready().await);
}
