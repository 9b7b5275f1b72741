//! What a client can make a server hold and wait for.

use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::client::conn::http2 as client;
use tokio::io::{AsyncWriteExt as _, duplex};
use tokio::time::Instant;
use tonic::Code;

use super::*;

type Piece = Result<Frame<Bytes>, Infallible>;

fn request<B>(body: B) -> Request<B> {
    Request::new(body)
}

fn bounds(message: usize) -> Bounds {
    Bounds { message, ..Bounds::SMALL }
}

#[tokio::test]
async fn a_message_is_taken_whole_up_to_its_bound_and_no_byte_beyond() {
    let largest = 1000;
    let exact = request(Full::new(Bytes::from(vec![7; largest])));
    let message = arrived(exact, bounds(largest)).await.unwrap();
    let whole = message.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(whole, vec![7; largest]);
    let stated = request(Full::new(Bytes::from(vec![7; largest + 1])));
    let refused = arrived(stated, bounds(largest)).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);

    // A stream does not announce its length.
    let piece = || -> Piece { Ok(Frame::data(Bytes::from(vec![7; 600]))) };
    let pieces = futures::stream::iter([piece(), piece()]);
    let refused = arrived(request(StreamBody::new(pieces)), bounds(largest)).await;
    assert_eq!(refused.err().unwrap().code(), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_an_end_is_answered_all_the_same() {
    let begin = Instant::now();
    let never = futures::stream::pending::<Piece>();
    let refused = arrived(request(StreamBody::new(never)), Bounds::SMALL).await;
    assert_eq!(refused.err().unwrap().code(), Code::InvalidArgument);
    assert!(begin.elapsed() < Bounds::SMALL.time * 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_ends_and_a_call_that_runs_does_not() {
    let (ours, theirs) = duplex(64 << 10);
    let (_sender, stop) = watch::channel(false);
    let began = Instant::now();
    // Longer than an idle connection stays open.
    let slow = tower::service_fn(|_: Message| async {
        tokio::time::sleep(IDLE_LIMIT * 3).await;
        Ok(Response::new(Body::default()))
    });
    let serving = converse(ours, None, slow, Bounds::SMALL, stop);
    let calling = async {
        let connected = client::handshake(TokioExecutor::new(), TokioIo::new(theirs)).await;
        let (mut sender, connection) = connected.unwrap();
        let call = async {
            let answer = sender.send_request(request(Full::<Bytes>::default())).await;
            assert!(answer.unwrap().status().is_success());
            assert!(began.elapsed() >= IDLE_LIMIT * 3);
            let again = sender.send_request(request(Full::<Bytes>::default())).await;
            assert!(again.is_err(), "the connection takes no more calls");
        };
        let (ended, ()) = tokio::join!(connection, call);
        ended.unwrap();
    };
    tokio::join!(serving, calling);
    assert!(began.elapsed() < IDLE_LIMIT * 4);
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_keeps_no_connection() {
    // Preface and settings of HTTP/2 (RFC 9113, section 3.4), and nothing more: no answer to pings.
    let spoken = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for said in [&b""[..], spoken] {
        let (ours, mut theirs) = duplex(64 << 10);
        let (_sender, stop) = watch::channel(false);
        let began = Instant::now();
        let unused = tower::service_fn(|_: Message| async { Ok(Response::new(Body::default())) });
        theirs.write_all(said).await.unwrap();
        converse(ours, None, unused, Bounds::SMALL, stop).await;
        assert!(began.elapsed() < IDLE_LIMIT + GRACE * 2);
    }
}
