//! 100,000 strangers connect to the key broker of `tec serve`, including some that send too much or too
//! slowly. Memory stays bounded, and the service continues.
#![expect(clippy::unwrap_used, reason = "clippy takes helpers of tests for library code")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

const AUTH: &str = "POST /kbs/v0/auth HTTP/1.1\r\nhost: localhost\r\n";
/// Largest body, and largest `auth` body.
const MAX_BODY: usize = 2 * 1024 * 1024;
const MAX_AUTH: usize = 64 * 1024;
/// Number of concurrent connections that send slowly.
const SLOW: usize = 200;
/// Requests from each of the three addresses; one more than a third.
const REQUESTS: usize = 33_334;
/// Maximum number of sessions of one address: a quarter of 65,536.
const SHARE: usize = 16_384;
/// Sessions expire after this time, and their memory is released.
const SESSION: Duration = Duration::from_mins(5);
/// Maximum resident memory of the server at any time, in KiB; 50,000 sessions take about 20 MiB of it.
const MAX_RESIDENT: u64 = 96 * 1024;

struct Server {
    child: Child,
    kbs: SocketAddr,
    _state: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    async fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("state");
        let child = Command::new(env!("CARGO_BIN_EXE_tec"))
            .args(["--log", "error", "--state-dir"])
            .arg(&dir)
            .args(["serve", "--dangerous-plain-http", "--kbs-rate", "10000000"])
            .args(["--public-host", "127.0.0.1", "--register-addr", "127.0.0.1:0"])
            .args(["--ak-addr", "127.0.0.1:0", "--kbs-addr", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_mins(1);
        let endpoints = loop {
            if let Ok(text) = fs::read_to_string(dir.join("endpoints.json")) {
                break text;
            }
            assert!(Instant::now() < end, "the server does not become ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let endpoints: serde_json::Value = serde_json::from_str(&endpoints).unwrap();
        let kbs = endpoints.pointer("/kbs/0/url").unwrap().as_str().unwrap();
        Self { child, kbs: kbs.strip_prefix("http://").unwrap().parse().unwrap(), _state: state }
    }

    fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Connects from one of the loopback network's addresses.
async fn connect(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// Requests a session; returns the answer.
async fn ask(stream: &mut TcpStream) -> String {
    let body = r#"{"version":"0.4.0","tee":"tpm","extra-params":{}}"#;
    let request = format!("{AUTH}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    // Answers are short: head and body end with the first closing brace.
    let mut answer = Vec::new();
    while answer.last() != Some(&b'}') {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    String::from_utf8(answer).unwrap()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

async fn auth(stream: &mut TcpStream) -> u16 {
    status(&ask(stream).await)
}

async fn flood(last: u8, to: SocketAddr) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    let mut stream = connect(last, to).await;
    for _ in 0..REQUESTS {
        *statuses.entry(auth(&mut stream).await).or_default() += 1;
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_sessions_is_bounded_in_memory_and_leaves_room_for_others() {
    let server = Server::start().await;
    let begin = Instant::now();
    let mut floods = JoinSet::new();
    for last in 2..5 {
        floods.spawn(flood(last, server.kbs));
    }
    for statuses in floods.join_all().await {
        let known = statuses.keys().all(|status| matches!(status, 200 | 503));
        assert!(known, "{statuses:?}");
        // On a host so slow that sessions expire in the meantime, others take their place.
        if begin.elapsed() < SESSION {
            let expected = BTreeMap::from([(200, SHARE), (503, REQUESTS - SHARE)]);
            assert_eq!(statuses, expected);
        }
    }
    let mut other = connect(1, server.kbs).await;
    assert_eq!(auth(&mut other).await, 200);
    let peak = server.peak_kib();
    assert!(peak < MAX_RESIDENT, "{peak} KiB were resident");
}

/// Sends a head and as much of a body as the server accepts; returns the resulting status.
async fn pour(to: SocketAddr, head: &str, chunk: &[u8]) -> u16 {
    let (mut read, mut write) = connect(1, to).await.into_split();
    write.write_all(head.as_bytes()).await.unwrap();
    let pouring = async { while write.write_all(chunk).await.is_ok() {} };
    let mut answer = Vec::new();
    let reading = async {
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            // The server may close while much is still in transit, which resets the connection.
            if read.read_buf(&mut answer).await.unwrap_or(0) == 0 {
                break;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        // The data sent last may have hit a closed connection before the answer was read.
        () = async { pouring.await; std::future::pending().await } => {}
    }
    status(&String::from_utf8(answer).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_too_much_is_told_so_and_takes_no_memory() {
    let server = Server::start().await;
    let answer = ask(&mut connect(1, server.kbs).await).await;
    let (_, session) = answer.split_once("set-cookie: ").unwrap();
    let session = session.split(';').next().unwrap();
    let attest = "POST /kbs/v0/attest HTTP/1.1\r\nhost: localhost\r\n";
    let with_session = format!("{attest}cookie: {session}\r\n");
    // A chunk of 0x10000 blanks.
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for (head, max, without_end) in
        [(AUTH, MAX_AUTH, 413), (attest, MAX_BODY, 401), (&with_session, MAX_BODY, 413)]
    {
        let announced = format!("{head}content-length: {}\r\n\r\n", max + 1);
        assert_eq!(pour(server.kbs, &announced, chunk.as_bytes()).await, 413, "{head}");
        let endless = format!("{head}transfer-encoding: chunked\r\n\r\n");
        assert_eq!(pour(server.kbs, &endless, chunk.as_bytes()).await, without_end, "{head}");
    }
    assert_eq!(auth(&mut connect(1, server.kbs).await).await, 200);
    let peak = server.peak_kib();
    assert!(peak < MAX_RESIDENT, "{peak} KiB were resident");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_slowly_is_let_go_and_holds_nobody_up() {
    let server = Server::start().await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut stream = connect(2, server.kbs).await;
        let head = format!("{AUTH}content-length: {MAX_AUTH}\r\n\r\n{{");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(auth(&mut connect(1, server.kbs).await).await, 200);
    for mut stream in slow {
        let mut answer = Vec::new();
        while answer.last() != Some(&b'}') {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
        assert_eq!(status(&String::from_utf8(answer).unwrap()), 401);
    }
    assert_eq!(auth(&mut connect(1, server.kbs).await).await, 200);
}
