//! Clocks that differ from the API server's.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::DeleteParams;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tec_core::code::Code;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Link, Server, cluster, eventually, open};
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, Machine};
use tec_k8s::render::Component;
use tec_support::SystemClock;

use crate::alerts::until_the_clock_alert;
use crate::builtin::{builtin, flags};
use crate::tls::until;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// Secrets with certificates that are renewed based on the clock.
const CERTIFICATES: [&str; 3] = ["trust-anchor-ca", "trustee-token-signer", "tec-kbs-tls"];

fn machine(number: u64) -> Machine {
    let id = sample::machine_id(number);
    Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, SystemClock.now()))
}

/// Approves an image for this many seconds.
async fn approve(bench: &Bench, number: u64, expires: Option<i64>) {
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("registry.example/os@sha256:{number:064x}");
    spec.expires_at = expires.map(|after| SystemClock.now().plus_seconds(after).to_string());
    bench.labels.set(&spec.image, sample::image(number).expected);
    bench.create(&ApprovedImage::new(&format!("image-{number}"), spec)).await.unwrap();
}

async fn may_boot(bench: &Bench, images: &[&str]) {
    let what = format!("{images:?} may boot");
    eventually(&what, async || Ok(bench.trust.images() == images)).await.unwrap();
}

async fn certificates(bench: &Bench) -> Vec<Secret> {
    let secrets = bench.objects::<Secret>().unwrap();
    let mut all = Vec::new();
    for name in CERTIFICATES {
        let mut secret = secrets.get(name).await.unwrap();
        secret.metadata.managed_fields = None;
        all.push(secret);
    }
    all
}

#[tokio::test]
async fn an_operator_whose_clock_is_wrong_says_by_how_much_and_loses_nothing() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    bench.start_comparing("one").unwrap();
    until(&bench, "Installed", "True", "InstallationCompleted").await;
    bench.create(&machine(1)).await.unwrap();
    approve(&bench, 1, None).await;
    approve(&bench, 2, Some(DAY)).await;
    may_boot(&bench, &["image-1", "image-2"]).await;
    let before = certificates(&bench).await;
    bench.stop().await.unwrap();

    // On start it would remove the machine, and renew everything with less than a third of its life left.
    bench.clock.advance(61 * DAY);
    bench.trust.restart_operator();
    bench.start_comparing("two").unwrap();
    let said = until(&bench, "Ready", "False", "ClockSkewed").await;
    for part in ["TEC-C425", "is 527", " s ahead of the API server's"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    may_boot(&bench, &["image-1"]).await;
    let services = bench.objects::<Service>().unwrap();
    services.delete("kbs-service", &DeleteParams::default()).await.unwrap();
    bench.create(&machine(2)).await.unwrap();
    eventually("machines get their keys", async || {
        Ok([1, 2].iter().all(|number| bench.trust.key(&sample::machine_id(*number)).is_some()))
    })
    .await
    .unwrap();

    bench.clock.advance(-61 * DAY);
    may_boot(&bench, &["image-1", "image-2"]).await;
    until(&bench, "Installed", "True", "InstallationCompleted").await;
    eventually("drift is repaired", async || Ok(services.get_opt("kbs-service").await?.is_some()))
        .await
        .unwrap();
    assert_eq!(certificates(&bench).await, before, "no certificate was replaced");
    let machines = bench.objects::<Machine>().unwrap();
    let name = Machine::name_of(&sample::machine_id(1));
    assert!(machines.get_opt(&name).await.unwrap().is_some(), "the machine is there");
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn what_expired_by_the_clock_of_the_api_server_is_not_published_by_one_that_is_behind() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    bench.clock.advance(-2 * HOUR);
    bench.start_comparing("one").unwrap();
    let said = until(&bench, "Ready", "False", "ClockSkewed").await;
    assert!(said.contains(" s behind the API server's"), "{said}");
    approve(&bench, 1, Some(-HOUR)).await;
    until_committed(&bench, "image-1", "Expired").await;
    approve(&bench, 2, None).await;
    may_boot(&bench, &["image-2"]).await;
    bench.stop().await.unwrap();
}

async fn until_committed(bench: &Bench, name: &str, reason: &str) {
    let images = bench.objects::<ApprovedImage>().unwrap();
    eventually(&format!("{name} is {reason}"), async || {
        let status = images.get(name).await?.status.unwrap_or_default();
        Ok(status.conditions.iter().any(|one| one.type_ == "Committed" && one.reason == reason))
    })
    .await
    .unwrap();
}

/// A server that reaches the API server through the link.
async fn start(bench: &Bench, link: &Link, component: Component, flags: &[OsString]) -> Server {
    let name = component.service_account();
    let kubeconfig = bench.plane.kubeconfig_at(link.url(), name, "unused").unwrap();
    let flags: Vec<&OsStr> = flags.iter().map(OsString::as_os_str).collect();
    let place = (bench.namespace.as_str(), Path::new(&kubeconfig));
    Server::start_with(&bench.plane, component, place, &flags).await.unwrap()
}

/// Whether the server serves and is ready, or refuses with the code for a wrong clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Serves,
    Refuses,
    /// Anything else.
    Else(StatusCode),
}

async fn asked(http: &reqwest::Client, server: &Server, request: &Request) -> Answer {
    let (method, path, body) = request;
    let url = format!("http://{}{path}", server.address);
    let sent = http.request(method.clone(), url).body(body.to_string());
    let answer = sent.header("content-type", "application/json").send().await.unwrap();
    let (status, body) = (answer.status(), answer.text().await.unwrap());
    let ready = http.get(format!("http://{}/readyz", server.status)).send().await.unwrap();
    let is_coded = body.contains(Code::ClockSkewed.as_str());
    match (status, is_coded, ready.status().is_success()) {
        (StatusCode::SERVICE_UNAVAILABLE, true, false) => Answer::Refuses,
        (status, false, true) if !status.is_server_error() => Answer::Serves,
        (status, ..) => Answer::Else(status),
    }
}

type Request = (Method, &'static str, Value);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_whose_clock_is_wrong_serve_nobody_until_it_is_right() {
    let mut bench = Bench::at_work_on(&open(builtin())).await.unwrap();
    let link = Link::new(bench.admin().unwrap()).await.unwrap();
    let mounted = tempfile::tempdir().unwrap();
    let broker = flags(&bench, mounted.path()).await;
    let start = async |component, flags: &[OsString]| start(&bench, &link, component, flags).await;
    let servers = [
        start(Component::KeyBroker, &broker).await,
        start(Component::RegisterServer, &[]).await,
        start(Component::AttestationKeyRegister, &[]).await,
    ];
    let auth = json!({"version": "0.4.0", "tee": "tpm", "extra-params": {}});
    let key = json!({"public_key": "none", "uuid": sample::machine_id(1).to_string()});
    let requests: [Request; 3] = [
        (Method::POST, "/kbs/v0/auth", auth),
        (Method::GET, "/ignition-clevis-pin-trustee", Value::Null),
        (Method::PUT, "/register-ak", key),
    ];
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for ahead in [0, HOUR, 0, -HOUR, 0] {
        link.set_clock(ahead);
        let wanted = if ahead == 0 { Answer::Serves } else { Answer::Refuses };
        for (server, request) in servers.iter().zip(&requests) {
            let what = format!("{} is {wanted:?} while the clocks are {ahead} s apart", request.1);
            let holds = async || Ok(asked(&http, server, request).await == wanted);
            eventually(&what, holds).await.unwrap();
            until_the_clock_alert(request.1, &server.status, ahead != 0).await;
        }
    }
    for server in &servers {
        assert!(server.log().unwrap().contains(Code::ClockSkewed.as_str()));
    }
    bench.stop().await.unwrap();
}
