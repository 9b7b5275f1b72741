//! Connections that do nothing but stay open.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Connections to one server.
const CONNECTIONS: u64 = 1000;
/// Addresses that they come from: 127.0.0.2 and following.
const ADDRESSES: u8 = 16;
/// A closed connection is reopened after this time.
const AGAIN: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
const HALF: &[u8] =
    b"POST /kbs/v0/auth HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60\r\n\r\n{\"ver";
/// The header of a ClientHello (RFC 8446, section 5.1) of 512 bytes that never arrive.
const HALF_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01";

/// A thousand idle connections, closed when the value is dropped.
pub(crate) struct Crowd {
    opened: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Member {
    number: u64,
    server: SocketAddr,
    tls: Option<TlsConnector>,
    opened: Arc<AtomicU64>,
}

impl Crowd {
    /// Keeps idle connections open to `server`, with TLS if `ca` is given.
    pub(crate) fn around(server: SocketAddr, ca: Option<&str>) -> anyhow::Result<Self> {
        let tls = ca.map(connector).transpose()?;
        let (opened, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for number in 0..CONNECTIONS {
            let member = Member { number, server, tls: tls.clone(), opened: Arc::clone(&opened) };
            tasks.spawn(async move {
                loop {
                    // It was closed, as the server should do.
                    let _ = member.linger().await;
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        Ok(Self { opened, _tasks: tasks })
    }

    /// Connections opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

fn connector(ca: &str) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(ca.as_bytes());
    roots.add(certificate.ok().context("the CA is not a certificate")?)?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Member {
    async fn linger(&self) -> anyhow::Result<()> {
        let socket = TcpSocket::new_v4()?;
        let last = 2 + u8::try_from(self.number % u64::from(ADDRESSES))?;
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        socket.bind((from, 0).into())?;
        let mut stream = socket.connect(self.server).await?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        let kind = self.number / u64::from(ADDRESSES) % 4;
        match (kind, &self.tls) {
            (0, _) => silence(stream).await,
            (1, Some(_)) => {
                stream.write_all(HALF_HELLO).await?;
                silence(stream).await
            }
            (kind, Some(tls)) => speak(kind, shake(tls, stream).await?).await,
            (kind, None) => speak(kind, stream).await,
        }
    }
}

async fn shake(
    tls: &TlsConnector,
    stream: TcpStream,
) -> anyhow::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    Ok(tls.connect("localhost".try_into()?, stream).await?)
}

/// Sends half a request, or one byte of it per second.
async fn speak(kind: u64, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<()> {
    if kind != 3 {
        stream.write_all(HALF).await?;
        stream.flush().await?;
        return silence(stream).await;
    }
    for byte in HALF {
        stream.write_all(&[*byte]).await?;
        stream.flush().await?;
        // Ends when the server closes it.
        let closed = tokio::time::timeout(SECOND, stream.read_u8()).await;
        if matches!(closed, Ok(Err(_))) {
            return Ok(());
        }
    }
    silence(stream).await
}

/// Waits until the server closes it.
async fn silence(mut stream: impl AsyncRead + Unpin) -> anyhow::Result<()> {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}
