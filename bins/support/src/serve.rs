//! Servers: TLS or, only on explicit demand, plain HTTP; time limits; graceful shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::RustlsAcceptor;
use axum_server::tls_rustls::RustlsConfig;
use hyper_util::rt::TokioTimer;
use tokio::sync::watch;

use crate::program::stopped;

/// A client must have sent its request's head by then.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests in flight may end until then.
const GRACE: Duration = Duration::from_secs(10);

/// Tells every loop of a program to end.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A shutdown that SIGTERM and SIGINT trigger.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn on_signals() -> anyhow::Result<(Self, impl Future<Output = ()>)> {
        let (sender, receiver) = watch::channel(false);
        let stopped = stopped()?;
        let wait = async move {
            stopped.await;
            let _ = sender.send(true);
        };
        Ok((Self(receiver), wait))
    }

    /// One that a test triggers.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Whether the program shall end.
    pub fn is_triggered(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs something that would go on for ever, until the program shall end.
    ///
    /// # Errors
    /// Never; the type is that of a part of a program.
    pub async fn until(mut self, endless: impl Future<Output = ()>) -> anyhow::Result<()> {
        tokio::select! {
            () = endless => {},
            () = self.triggered() => {},
        }
        Ok(())
    }

    /// Resolves when the program shall end.
    pub async fn triggered(&mut self) {
        // A dropped sender ends the program, too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// How a listener speaks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Transport {
    /// TLS.
    Tls(Arc<rustls::ServerConfig>),
    /// Plain HTTP, for tests and behind a proxy that terminates TLS.
    DangerousPlain,
}

/// Binds a listener; port 0 takes a free one.
///
/// # Errors
/// The address is taken or not ours.
pub fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listener =
        std::net::TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    listener
        .set_nonblocking(true)
        .with_context(|| format!("listen on {address}"))?;
    Ok(listener)
}

/// Serves until `shutdown`; requests in flight get some seconds to end.
///
/// Answers are sent at once: an answer of gRPC is several small frames, and a kernel that gathers them
/// waits for the client's acknowledgement, which the client holds back for 40 ms.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: std::net::TcpListener,
    transport: Transport,
    router: Router,
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    let handle = Handle::new();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let stop = async {
        shutdown.triggered().await;
        handle.graceful_shutdown(Some(GRACE));
        std::future::pending::<()>().await;
    };
    let run = async {
        match transport {
            Transport::Tls(config) => {
                let tls = RustlsAcceptor::new(RustlsConfig::from_config(config));
                let mut server = axum_server::from_tcp(listener)?
                    .acceptor(tls.acceptor(NoDelayAcceptor::new()))
                    .handle(handle.clone());
                server
                    .http_builder()
                    .http1()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT);
                server.serve(service).await
            }
            Transport::DangerousPlain => {
                let mut server = axum_server::from_tcp(listener)?
                    .acceptor(NoDelayAcceptor::new())
                    .handle(handle.clone());
                server
                    .http_builder()
                    .http1()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT);
                server.serve(service).await
            }
        }
    };
    tokio::select! {
        result = run => result.context("serve"),
        () = stop => Ok(()),
    }
}
