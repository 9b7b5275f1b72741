//! A server in a process that has run out of file descriptors. The limit applies to the whole process, so
//! this test runs in a process of its own.
#![expect(clippy::unwrap_used, reason = "clippy takes helpers of tests for library code")]

use std::fs::File;
use std::net::Ipv4Addr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tec_support::listen::{Counts, Reason, Server};
use tec_support::serve::{Shutdown, Transport, bind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

async fn ask(stream: &mut TcpStream) -> String {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut bytes = [0; 1024];
    let length = timeout(PATIENCE, stream.read(&mut bytes)).await;
    let length = length.unwrap().unwrap();
    String::from_utf8_lossy(bytes.get(..length).unwrap()).into_owned()
}

#[tokio::test]
async fn without_file_descriptors_an_unused_connection_makes_room() {
    let limit = Rlimit { current: Some(96), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let (shutdown, _signals) = Shutdown::on_signals().unwrap();
    let counts = Counts::new("test");
    let router = Router::new().route("/", get(async || "served"));
    let server = Server::new(Transport::DangerousPlain, router).counted_by(&counts);
    let mut running = JoinSet::new();
    running.spawn(server.run(listener, shutdown));

    let mut unused = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut stream).await.ends_with("served"));
        unused.push(stream);
    }
    let next = TcpSocket::new_v4().unwrap();
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    assert!(!all.is_empty());
    let mut next = next.connect(address).await.unwrap();
    assert!(ask(&mut next).await.ends_with("served"));
    // The kernel needs a free descriptor even to report that no connection is waiting.
    let displaced = counts.closed(Reason::Displaced);
    assert!((1..=2).contains(&displaced), "{displaced}");
    let closed = timeout(PATIENCE, unused.remove(0).read_u8()).await;
    assert!(closed.expect("still open").is_err());
    assert!(ask(unused.last_mut().unwrap()).await.ends_with("served"));
}
