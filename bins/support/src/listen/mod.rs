//! Listeners: every server of the project accepts its connections here.
//!
//! ```text
//! accept ─► Places: bounded, fair shares ─► handshake ─► Watched stream ─► requests ─► Router
//!              ▲                              deadline      deadlines        bodies: deadlines
//!              └── a connection that must make room ends
//! ```
//! *What it is*: the limits on what unauthenticated clients can hold. *What it is not*: a limit on the rate
//! of requests, see [`limit`](crate::limit).

pub mod activity;
#[cfg(feature = "server")]
mod body;
pub mod counts;
#[cfg(feature = "server")]
mod http;
pub mod limits;
pub mod places;
#[cfg(feature = "server")]
mod router;
#[cfg(feature = "server")]
mod watched;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub use self::activity::{Activity, Running};
pub use self::counts::{Counts, Reason, render};
pub use self::limits::Limits;
pub use self::places::{Place, Places};
#[cfg(feature = "server")]
pub use self::router::{Server, Transport};

/// How long requests in flight may take after a shutdown begins.
const GRACE: Duration = Duration::from_secs(10);
/// Pause after a failure to accept, for example when out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until `stop`, then waits a while for open ones.
///
/// `connection` gets a stream that sends without delay: a gRPC response consists of several small frames, and
/// a kernel that gathers them waits for the client's acknowledgement, which the client holds back for 40 ms.
/// Its future is dropped when the connection has to make room for another one.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn accept<F>(
    listener: TcpListener,
    places: Arc<Places>,
    stop: impl Future<Output = ()>,
    mut connection: impl FnMut(TcpStream, SocketAddr, Place) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut stop = std::pin::pin!(stop);
    let mut connections = JoinSet::new();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.as_mut() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                if let Ok(place) = places.admit(peer.ip()) {
                    // Fails if the connection is already gone.
                    let _ = stream.set_nodelay(true);
                    connections.spawn(connection(stream, peer, place));
                }
            }
            Err(error) if is_of_a_connection(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections, will retry");
                }
                places.shed();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, ended).await.is_err() {
        tracing::warn!("connections did not end in time and are closed");
    }
}

/// Whether only this client is gone, which does not affect the next one.
fn is_of_a_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

#[cfg(test)]
mod tests;
