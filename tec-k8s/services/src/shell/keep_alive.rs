//! Connections that outlive a call.
//!
//! Each is driven by the call that uses it and needs no task. Between calls, nothing notices when the other
//! end closes it, so this is checked before a request is sent.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::Reply;

/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Maximum number of idle connections that are kept. More are open only while there are more calls.
const IDLE: usize = 16;
/// Maximum lifetime of a connection: one authenticated by a certificate must not outlive the certificate for
/// long, and servers close idle connections only later (OpenBao after five minutes).
const LIFE: Duration = Duration::from_secs(30);

pub(super) type Request = ::http::Request<Full<Bytes>>;

/// Connections to one target that are currently unused.
#[derive(Default)]
pub(super) struct Idle(Mutex<Vec<Connection>>);

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Idle")
    }
}

impl Idle {
    /// The connection used last, if it is recent enough.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| connection.opened.elapsed() < LIFE);
        idle.pop()
    }

    pub(super) fn keep(&self, connection: Connection) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }
}

/// A connection, and the driver that must be polled for it to make progress.
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    opened: Instant,
}

/// A call over a connection failed.
pub(super) enum Failure {
    /// Nothing of the request was sent; it is returned here.
    Unsent(Box<Request>, hyper::Error),
    /// The connection broke.
    Broken(hyper::Error),
    /// The answer is too long, or its end is missing.
    Answer(Box<dyn std::error::Error + Send + Sync>),
}

impl Connection {
    /// Opens a connection over this stream.
    pub(super) async fn over<S>(stream: S) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver: Box::pin(driver), opened: Instant::now() })
    }

    /// Makes a call. Returns the connection if it may be used again.
    pub(super) async fn call(self, request: Request) -> Result<(Reply, Option<Self>), Failure> {
        let Self { mut sender, mut driver, opened } = self;
        let reply = {
            let mut exchange = pin!(exchange(&mut sender, request));
            tokio::select! {
                biased;
                reply = &mut exchange => reply?,
                // The answer may have arrived with the end of the connection. Without its driver the call
                // ends in any case.
                _ = &mut driver => {
                    drop(driver);
                    return Ok((exchange.await?, None));
                }
            }
        };
        let connection = Self { sender, driver, opened };
        Ok((reply, Some(connection)))
    }
}

async fn exchange(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    request: Request,
) -> Result<Reply, Failure> {
    if let Err(error) = sender.ready().await {
        return Err(Failure::Unsent(Box::new(request), error));
    }
    let answer = sender.try_send_request(request).await;
    let answer = answer.map_err(|mut refused| match refused.take_message() {
        Some(request) => Failure::Unsent(Box::new(request), refused.into_error()),
        None => Failure::Broken(refused.into_error()),
    })?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_ANSWER);
    let body = body.collect().await.map_err(Failure::Answer)?;
    let body = body.to_bytes().to_vec();
    Ok(Reply { status, body })
}
