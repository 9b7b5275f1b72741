use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tec_core::machine::RegisteredBy;
use tec_core::port::AuditAction;
use tec_core::testing::{ManualClock, sample};

use super::*;

/// What an API server stores of one machine and its key.
#[derive(Debug)]
struct Stored {
    machine: Value,
    key: Option<Value>,
    /// The next change of the machine conflicts, because another binder just made the same one.
    is_late: bool,
    removed: usize,
}

impl Stored {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        let failure = |code: StatusCode, reason: &str| {
            let code_number = code.as_u16();
            (code, json!({"status": "Failure", "reason": reason, "code": code_number}))
        };
        match *method {
            _ if path.contains("/machines") && *method == Method::PATCH => {
                self.machine["status"] = body["status"].clone();
                if std::mem::take(&mut self.is_late) {
                    return failure(StatusCode::CONFLICT, "Conflict");
                }
                (StatusCode::OK, self.machine.clone())
            }
            Method::GET if path.contains("/machines/") => (StatusCode::OK, self.machine.clone()),
            Method::GET if path.contains("/attestationkeys/") => match &self.key {
                Some(key) => (StatusCode::OK, key.clone()),
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            },
            Method::POST if path.ends_with("/attestationkeys") => {
                self.key = Some(body.clone());
                (StatusCode::CREATED, body)
            }
            Method::DELETE => {
                (self.key, self.removed) = (None, self.removed + 1);
                (StatusCode::OK, json!({"status": "Success"}))
            }
            // There is no record of authority, and nothing else.
            _ if path.contains("configmaps/") => failure(StatusCode::NOT_FOUND, "NotFound"),
            _ => (StatusCode::OK, json!({"metadata": {}, "items": []})),
        }
    }
}

fn registry(stored: &Arc<Mutex<Stored>>) -> KubeRegistry {
    let stored = stored.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let stored = stored.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) =
                stored.lock().unwrap().answer(&parts.method, parts.uri.path(), body);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    KubeRegistry::new(Client::new(service, "default"), "default", clock)
}

#[tokio::test]
async fn a_key_that_another_binder_just_bound_is_not_removed() {
    let id = sample::machine_id(1);
    let machine = Machine::unclaimed(id, RegisteredBy::Admin, sample::time(0));
    let stored = Arc::new(Mutex::new(Stored {
        machine: serde_json::to_value(api::Machine::from_core(&machine)).unwrap(),
        key: None,
        is_late: true,
        removed: 0,
    }));
    let ak = sample::approved_ak(1, 1);
    let line = AuditEvent::new(sample::time(0), AuditAction::AkBound, Some(id), "");
    let outcome = registry(&stored).bind(&ak, &line).await.unwrap();
    assert_eq!(outcome, BindOutcome::AlreadyBound);
    assert_eq!(stored.lock().unwrap().removed, 0, "it counts for the other binder");
}
