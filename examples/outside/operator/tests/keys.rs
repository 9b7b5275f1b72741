//! The controller's step against a minimal API server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use outside_operator::DiskKeys;
use serde_json::{Value, json};
use tec_core::port::PutOutcome;
use tec_core::system::SystemEntropy;
use tec_k8s::api::Machine;

const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

/// Objects by the path of their collection and by their name.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

async fn answer(objects: Objects, request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut objects = objects.lock().unwrap();
    let (status, text) = match head.method {
        Method::POST => {
            let object: Value = serde_json::from_slice(&body).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            let path = format!("{}/{name}", head.uri.path());
            match objects.contains_key(&path) {
                true => (StatusCode::CONFLICT, failure("AlreadyExists", 409)),
                false => (StatusCode::CREATED, objects.entry(path).or_insert(object).clone()),
            }
        }
        // The path of a collection ends after the namespace.
        _ if head.uri.path().rsplit('/').nth(1) == Some("trusted") => (
            StatusCode::OK,
            json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": [] }),
        ),
        _ => match objects.get(head.uri.path()) {
            Some(object) => (StatusCode::OK, object.clone()),
            None => (StatusCode::NOT_FOUND, failure("NotFound", 404)),
        },
    };
    let answer = Response::builder().status(status).body(Body::from(text.to_string().into_bytes()));
    Ok(answer.unwrap())
}

fn failure(reason: &str, code: u16) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
            "code": code, "message": reason, "metadata": {} })
}

#[tokio::test]
async fn a_machine_gets_one_key_that_goes_with_it() {
    let objects = Objects::default();
    let served = Arc::clone(&objects);
    let service = tower::service_fn(move |request| answer(Arc::clone(&served), request));
    let client = Client::new(service, "trusted");
    let keys = DiskKeys::new(client, "trusted", Arc::new(SystemEntropy));
    let machine: Machine = serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": format!("machine-{ID}"), "uid": "1", "namespace": "trusted",
                      "creationTimestamp": "2026-11-23T12:00:00Z" },
        "spec": { "id": ID },
    }))
    .unwrap();
    assert_eq!(keys.provide(&machine).await.unwrap(), PutOutcome::Stored);
    let path = format!("/api/v1/namespaces/trusted/secrets/{ID}");
    let first = objects.lock().unwrap()[&path].clone();
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], "1");
    assert!(first["data"]["root"].as_str().is_some_and(|key| key.len() > 40));

    assert_eq!(keys.provide(&machine).await.unwrap(), PutOutcome::Existed);
    assert_eq!(objects.lock().unwrap()[&path], first, "the key of a disk never changes");
}
