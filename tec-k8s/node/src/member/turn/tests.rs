//! An API server that keeps one lease, and knows no nodes.

use std::convert::Infallible;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tec_core::testing::ManualClock;
use tec_core::time::Timestamp;

use super::*;

#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
}

impl Server {
    fn store(&mut self, mut lease: Value) -> (StatusCode, Value) {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        (StatusCode::OK, lease)
    }

    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        let refused = |code: StatusCode, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "message": "no",
                                "reason": reason, "code": code.as_u16()});
            (code, status)
        };
        match (method, &self.lease) {
            _ if path.starts_with("/api/v1/nodes") => refused(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::GET, Some(lease)) => (StatusCode::OK, lease.clone()),
            (&Method::GET, None) => refused(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::PUT, Some(known))
                if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] =>
            {
                refused(StatusCode::CONFLICT, "Conflict")
            }
            (&Method::POST, Some(_)) => refused(StatusCode::CONFLICT, "AlreadyExists"),
            _ => self.store(body),
        }
    }
}

fn client() -> Client {
    let server = Arc::new(Mutex::new(Server::default()));
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, answer) = server.lock().answer(&head.method, head.uri.path(), body);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_node_that_asks_again_and_never_joins_does_not_keep_the_turn() {
    let clock = ManualClock::new(Timestamp::from_unix_seconds(1_767_225_600));
    let turns = KubeTurns::new(client(), Arc::new(clock));
    let (first, next) = ("c-1".parse().unwrap(), "c-2".parse().unwrap());
    turns.take(&first).await.unwrap();
    let mut minutes = 0;
    while turns.take(&next).await.is_err() {
        // A join that begins later would not have ended when another node gets the turn.
        assert_eq!(turns.take(&first).await.is_ok(), minutes < 4, "{minutes}");
        tokio::time::advance(Duration::from_mins(1)).await;
        minutes += 1;
        assert!(minutes <= 11, "the first node keeps the turn");
    }
    assert_eq!(minutes, 10, "a turn is kept for as long as it is valid");
    let waits = turns.take(&first).await.unwrap_err();
    assert_eq!(waits.kind(), PortErrorKind::Unavailable);
    turns.take(&next).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_late_takes_the_next_turn_where_nobody_else_wants_it() {
    let clock = ManualClock::new(Timestamp::from_unix_seconds(1_767_225_600));
    let turns = KubeTurns::new(client(), Arc::new(clock));
    let node = "c-1".parse().unwrap();
    turns.take(&node).await.unwrap();
    tokio::time::advance(BEGINS).await;
    turns.take(&node).await.unwrap_err();
    tokio::time::advance(VALID.abs_diff(BEGINS)).await;
    turns.take(&node).await.unwrap();
    turns.take(&node).await.unwrap();
}
