//! Tests over real sockets, with short deadlines.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::serve::{Shutdown, Transport, bind};

/// The deadline under test.
const SHORT: Duration = Duration::from_millis(100);
/// Longer than any test may take.
const LONG: Duration = Duration::from_mins(1);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Limits without any relevant deadline, except those that a test shortens.
fn patient() -> Limits {
    Limits {
        handshake: LONG,
        first_byte: LONG,
        head: LONG,
        body: LONG,
        body_idle: LONG,
        idle: LONG,
        write: LONG,
        ..Limits::default()
    }
}

struct Served {
    address: SocketAddr,
    client: Option<Arc<ClientConfig>>,
    counts: Arc<Counts>,
    /// Lets `GET /wait` return.
    go_on: Arc<Notify>,
    /// Number of requests for `/wait`.
    asked: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    task: JoinSet<anyhow::Result<()>>,
}

fn certificate(alpn: &[&[u8]]) -> (Transport, Arc<ClientConfig>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![chain.clone()], PrivateKeyDer::try_from(key).unwrap())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let mut roots = RootCertStore::empty();
    roots.add(chain).unwrap();
    let mut client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols.clone_from(&config.alpn_protocols);
    (Transport::Tls(Arc::new(config)), Arc::new(client))
}

impl Served {
    fn plain(limits: Limits) -> Self {
        Self::start((Transport::DangerousPlain, None), limits)
    }

    fn tls(limits: Limits) -> Self {
        let (transport, client) = certificate(&[]);
        Self::start((transport, Some(client)), limits)
    }

    fn start((transport, client): (Transport, Option<Arc<ClientConfig>>), limits: Limits) -> Self {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let (counts, go_on) = (Counts::new("test"), Arc::new(Notify::new()));
        let (stop, shutdown) = Shutdown::by_hand();
        let asked = Arc::new(AtomicUsize::new(0));
        let (waits, counter) = (Arc::clone(&go_on), Arc::clone(&asked));
        let wait = async move || {
            counter.fetch_add(1, Ordering::Relaxed);
            waits.notified().await;
        };
        let router = Router::new()
            .route(
                "/",
                get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()),
            )
            .route("/wait", get(wait))
            .route("/large", get(async || vec![b'a'; 64 << 20]))
            .route("/body", post(take));
        let server = Server::new(transport, router).with_limits(limits).counted_by(&counts);
        let mut task = JoinSet::new();
        task.spawn(server.run(listener, shutdown));
        Self { address, client, counts, go_on, asked, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        self.connect_from(1).await
    }

    /// Connects from 127.0.0.`last`.
    async fn connect_from(&self, last: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        let from = IpAddr::from([127, 0, 0, last]);
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn shake(&self, stream: TcpStream) -> TlsStream<TcpStream> {
        let config = Arc::clone(self.client.as_ref().unwrap());
        let name = "localhost".try_into().unwrap();
        TlsConnector::from(config).connect(name, stream).await.unwrap()
    }

    async fn open(&self, count: u64) {
        until(|| self.counts.open() == count).await;
    }

    /// Waits until this many clients wait for an answer.
    async fn asked(&self, count: usize) {
        until(|| self.asked.load(Ordering::Relaxed) == count).await;
    }
}

async fn until(reached: impl Fn() -> bool) {
    let polled = async {
        while !reached() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG / 6, polled).await.expect("not reached");
}

async fn take(body: Result<Bytes, axum::extract::rejection::BytesRejection>) -> Response {
    match body {
        Ok(body) => body.len().to_string().into_response(),
        Err(error) => error.into_response(),
    }
}

/// Everything received until the server closes the connection.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // Reset or closed: either way the connection is gone.
    let _ = timeout(LONG / 6, stream.read_to_end(&mut bytes))
        .await
        .expect("the connection is still open");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends a request, and waits for the head of the response.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &[u8]) -> String {
    stream.write_all(request).await.unwrap();
    let mut bytes = vec![0; 4096];
    let length = timeout(LONG / 6, stream.read(&mut bytes)).await;
    let length = length.expect("no answer").unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[tokio::test]
async fn a_handshake_that_does_not_begin_or_does_not_end_is_cut_off() {
    let served = Served::tls(Limits { handshake: SHORT, ..patient() });
    // The start of a handshake record (RFC 8446, section 5.1) whose rest never arrives.
    for said in [&b""[..], b"\x16\x03\x01\x01\x00"] {
        let mut stream = served.connect().await;
        stream.write_all(said).await.unwrap();
        assert_eq!(rest(&mut stream).await, "");
    }
    assert_eq!(served.counts.closed(Reason::HandshakeTimeout), 2);
}

#[tokio::test]
async fn a_connection_that_says_nothing_after_its_handshake_is_closed() {
    let limits = Limits { first_byte: SHORT, ..patient() };
    let served = Served::tls(limits);
    let mut stream = served.shake(served.connect().await).await;
    assert_eq!(rest(&mut stream).await, "");
    assert_eq!(served.counts.closed(Reason::FirstByteTimeout), 1);
    let served = Served::plain(limits);
    assert_eq!(rest(&mut served.connect().await).await, "");
    assert_eq!(served.counts.closed(Reason::FirstByteTimeout), 1);
}

#[tokio::test]
async fn one_byte_or_half_a_head_is_not_waited_for() {
    let served = Served::tls(Limits { head: SHORT, ..patient() });
    for said in [&b"P"[..], b"GET / HTTP/1.1\r\nHost"] {
        let mut stream = served.shake(served.connect().await).await;
        stream.write_all(said).await.unwrap();
        assert_eq!(rest(&mut stream).await, "");
    }
    assert_eq!(served.counts.closed(Reason::HeadTimeout), 2);
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_must_come_whole_in_time() {
    let served = Served::plain(Limits { head: SHORT * 5, ..patient() });
    let mut stream = served.connect().await;
    let dribble = async {
        while stream.write_all(b"G").await.is_ok() {
            tokio::time::sleep(SHORT / 2).await;
        }
    };
    timeout(LONG / 6, dribble).await.unwrap();
    assert_eq!(served.counts.closed(Reason::HeadTimeout), 1);
}

#[tokio::test]
async fn http_2_is_spoken_only_where_it_is_offered() {
    let served = Served::plain(patient());
    let mut stream = served.connect().await;
    stream.write_all(PREFACE).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    let (transport, client) = certificate(&[b"h2"]);
    let limits = Limits { idle: SHORT, head: SHORT, ..patient() };
    let served = Served::start((transport, Some(client)), limits);
    let mut stream = served.shake(served.connect().await).await;
    stream.write_all(PREFACE).await.unwrap();
    let settings = rest(&mut stream).await;
    assert!(!settings.is_empty(), "the server has spoken");
    assert_eq!(served.counts.closed(Reason::HeadTimeout), 1);
}

#[tokio::test]
async fn a_body_must_not_pause_and_must_come_whole_in_time() {
    let head = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n";
    let served = Served::plain(Limits { body_idle: SHORT, ..patient() });
    let mut stream = served.connect().await;
    let answer = ask(&mut stream, head).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    rest(&mut stream).await;
    assert_eq!(served.counts.closed(Reason::BodyTimeout), 1);

    let served = Served::plain(Limits { body: SHORT * 5, ..patient() });
    let mut stream = served.connect().await;
    stream.write_all(head).await.unwrap();
    let dribble = async {
        while stream.write_all(b"a").await.is_ok() {
            tokio::time::sleep(SHORT / 2).await;
        }
    };
    timeout(LONG / 6, dribble).await.unwrap();
    assert_eq!(served.counts.closed(Reason::BodyTimeout), 1);
}

#[tokio::test]
async fn requests_may_follow_each_other_until_none_comes() {
    let served = Served::tls(Limits { idle: SHORT * 3, ..patient() });
    let mut stream = served.shake(served.connect().await).await;
    for _ in 0..3 {
        let answer = ask(&mut stream, GET).await;
        assert!(answer.ends_with("127.0.0.1"), "{answer}");
    }
    let body = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    assert!(ask(&mut stream, body).await.ends_with('3'));
    assert_eq!(rest(&mut stream).await, "");
    assert_eq!(served.counts.closed(Reason::IdleTimeout), 1);
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_not_kept() {
    let served = Served::plain(Limits { write: SHORT, ..patient() });
    let mut stream = served.connect().await;
    let request = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).await.unwrap();
    served.open(1).await;
    served.open(0).await;
    assert_eq!(served.counts.closed(Reason::WriteTimeout), 1);
}

#[tokio::test]
async fn a_head_has_a_largest_size() {
    let served = Served::plain(patient());
    let mut stream = served.connect().await;
    let begin = b"GET / HTTP/1.1\r\nHost: a\r\nX: ";
    stream.write_all(begin).await.unwrap();
    // The server may close the connection before everything is sent.
    let _ = stream.write_all(&vec![b'a'; limits::HEAD_BYTES * 2]).await;
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    served.open(0).await;
}

#[tokio::test]
async fn silent_connections_of_ten_addresses_lock_out_no_eleventh() {
    let served = Served::plain(Limits { total: 40, per_peer: 20, ..patient() });
    let mut silent = Vec::new();
    for number in 0..200 {
        let mut stream = served.connect_from(2 + number % 10).await;
        if number % 2 == 0 {
            stream.write_all(b"GET / HT").await.unwrap();
        }
        silent.push(stream);
    }
    for _ in 0..5 {
        let mut stream = served.connect_from(100).await;
        assert!(ask(&mut stream, GET).await.ends_with("127.0.0.100"));
    }
    assert!(served.counts.open() <= 45, "{}", served.counts.open());
    assert!(served.counts.closed(Reason::Displaced) >= 160);
}

#[tokio::test]
async fn one_address_has_its_share_and_no_more() {
    let served = Served::plain(Limits { per_peer: 3, ..patient() });
    let mut served_now = Vec::new();
    for _ in 0..3 {
        let mut stream = served.connect().await;
        let wait = b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(wait).await.unwrap();
        served_now.push(stream);
    }
    served.asked(3).await;
    let mut refused = served.connect().await;
    assert_eq!(rest(&mut refused).await, "");
    assert_eq!(served.counts.closed(Reason::PeerLimit), 1);
    let mut other = served.connect_from(2).await;
    assert!(ask(&mut other, GET).await.ends_with("127.0.0.2"));
}

#[tokio::test]
async fn requests_in_flight_end_after_a_shutdown_and_unused_connections_at_once() {
    let served = Served::plain(patient());
    let mut silent = served.connect().await;
    let mut waits = served.connect().await;
    let request = b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n";
    waits.write_all(request).await.unwrap();
    let mut used = served.connect().await;
    ask(&mut used, GET).await;
    served.open(3).await;
    served.asked(1).await;
    served.stop.send_replace(true);
    assert_eq!(rest(&mut silent).await, "");
    assert_eq!(rest(&mut used).await, "");
    served.go_on.notify_one();
    let answer = rest(&mut waits).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {}", StatusCode::OK.as_u16())));
    let mut task = served.task;
    let ended = timeout(LONG / 6, task.join_next()).await.unwrap();
    ended.unwrap().unwrap().unwrap();
}
