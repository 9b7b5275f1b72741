//! Each refused login has its own gRPC code, and an outage is not reported as a bad credential.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use services::broker::identity::Identity;
use tec_core::port::Clock;
use tec_core::time::Timestamp;
use tec_e2e::kube::Freeze;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::caller::Account;
use tec_services::shell::client::bootstrap_client::BootstrapClient;
use tec_services::shell::client::{
    ComponentBootstrapRequest, NatsBootstrapRequest, TelemetryBootstrapRequest, TelemetryKind,
};
use tec_services::vault::Request;
use tec_support::SystemClock;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

use crate::vault::{make_root, stored_key};

async fn ask(client: &mut BootstrapClient<Channel>, token: &str) -> (Code, String) {
    let request = NatsBootstrapRequest {
        service_account_token: token.as_bytes().to_vec(),
        request_id: "test".to_owned(),
        ..NatsBootstrapRequest::default()
    };
    match client.bootstrap_nats(request).await {
        Ok(_) => (Code::Ok, String::new()),
        Err(refused) => {
            let word = refused.message().split(':').next().unwrap().to_owned();
            (refused.code(), word)
        }
    }
}

fn code(code: Code, word: &str) -> (Code, String) {
    (code, word.to_owned())
}

/// The same token with other claims; its signature is no longer valid.
fn altered(token: &str, name: &str, value: Value) -> String {
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let claims = URL_SAFE_NO_PAD.decode(&parts[1]).unwrap();
    let mut claims: Value = serde_json::from_slice(&claims).unwrap();
    claims[name] = value;
    parts[1] = URL_SAFE_NO_PAD.encode(claims.to_string());
    parts.join(".")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_has_its_own_code() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let mut client = platform.client().await.unwrap();
    let nats = cluster.account("nats").unwrap();
    let good = cluster.token(&nats).await.unwrap();
    let component = cluster.component("comp-a").await.unwrap();

    let cases = [
        ("no token", "garbage".to_owned(), code(Code::InvalidArgument, "BAD_REQUEST")),
        (
            "another audience",
            cluster.token_for(&nats, "other").await.unwrap(),
            code(Code::Unauthenticated, "TOKEN_INVALID"),
        ),
        (
            "a forged claim",
            altered(&good, "iat", json!(1)),
            code(Code::Unauthenticated, "TOKEN_INVALID"),
        ),
        (
            "expired",
            altered(&good, "exp", json!(1_700_000_000)),
            code(Code::Unauthenticated, "TOKEN_EXPIRED"),
        ),
        (
            "a foreign account",
            cluster.token(&component).await.unwrap(),
            code(Code::PermissionDenied, "SA_NOT_BOUND"),
        ),
    ];
    for (what, token, expected) in cases {
        assert_eq!(ask(&mut client, &token).await, expected, "{what}");
    }
    assert_eq!(ask(&mut client, &good).await.0, Code::Ok);

    // The API server caches reviews for a few seconds, so the account stays valid a little longer.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(cluster.plane.admin().unwrap(), &cluster.platform);
    accounts.delete("nats", &DeleteParams::default()).await.unwrap();
    tec_e2e::kube::eventually("the token of a deleted account is refused", async || {
        let mut client = client.clone();
        Ok(ask(&mut client, &good).await == code(Code::Unauthenticated, "TOKEN_INVALID"))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_told_from_a_bad_credential() {
    let stage = Stage::on(Cluster::alone().await.unwrap()).await.unwrap();
    let mut platform = Platform::on(stage, &[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let mut client = platform.client().await.unwrap();
    let good = cluster.token(&cluster.account("nats").unwrap()).await.unwrap();
    assert_eq!(ask(&mut client, &good).await.0, Code::Ok);

    cluster.plane.freeze_api_server(Freeze::Stop).unwrap();
    let began = Instant::now();
    let frozen = ask(&mut client, &good).await;
    let took = began.elapsed();
    cluster.plane.freeze_api_server(Freeze::GoOn).unwrap();
    assert_eq!(frozen, code(Code::Unavailable, "TOKEN_REVIEW_DOWN"));
    // The vault alone waits ten seconds.
    assert!(took < Duration::from_millis(9_900), "{took:?}");

    platform.stage.bao.kill();
    assert_eq!(ask(&mut client, &good).await, code(Code::Unavailable, "VAULT_DOWN"));
    platform.stage.bao.start(&platform.stage.logs).await.unwrap();
    assert_eq!(ask(&mut client, &good).await, code(Code::Unavailable, "VAULT_SEALED"));
    platform.controller.round().await.unwrap();
    assert_eq!(ask(&mut client, &good).await.0, Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_logged_in_a_moment_ago_needs_no_review_and_its_calls_still_count() {
    let stage = Stage::on(Cluster::alone().await.unwrap()).await.unwrap();
    let platform = Platform::on(stage, &["--calls-per-minute", "3"]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let client = platform.client().await.unwrap();
    // Tokens that are not bound to a pod, so that nobody looks at the pod.
    let account = cluster.component("comp-a").await.unwrap();
    let good = cluster.token(&account).await.unwrap();
    let other = cluster.token_for(&account, "other").await.unwrap();
    let ask = async |token: &str| {
        let request = ComponentBootstrapRequest {
            service_account_token: token.as_bytes().to_vec(),
            ..ComponentBootstrapRequest::default()
        };
        let outcome = client.clone().bootstrap_component(request).await;
        outcome.map_or_else(|refused| refused.code(), |_| Code::Ok)
    };
    assert_eq!(ask(&good).await, Code::Ok);
    cluster.plane.freeze_api_server(Freeze::Stop).unwrap();
    let again = ask(&good).await;
    let forged = [ask(&altered(&good, "iat", json!(1))).await, ask(&other).await];
    cluster.plane.freeze_api_server(Freeze::GoOn).unwrap();
    assert_eq!(again, Code::Ok);
    assert!(!forged.contains(&Code::Ok), "{forged:?}");
    let answers = [ask(&good).await, ask(&good).await];
    assert_eq!(answers, [Code::Ok, Code::ResourceExhausted]);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_components_that_start_together_all_get_their_own_identity() {
    let platform = Platform::new(&[]).await.unwrap();
    let mut identities = Vec::new();
    for number in 0..20 {
        identities.push(platform.identity(&format!("comp-{number}")).await.unwrap());
    }
    let mut starts = JoinSet::new();
    for identity in identities {
        starts.spawn(async move { identity.grant().await.unwrap().name });
    }
    let names: BTreeSet<_> = starts.join_all().await.into_iter().collect();
    assert_eq!(names.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_calls_too_often_is_refused_and_nobody_else_can_use_up_its_calls() {
    let platform = Platform::new(&["--calls-per-minute", "2"]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let mut client = platform.client().await.unwrap();
    let nats = cluster.account("nats").unwrap();
    let good = cluster.token(&nats).await.unwrap();
    let forged = altered(&good, "iat", json!(1));
    for _ in 0..5 {
        let refused = ask(&mut client, &forged).await;
        assert_eq!(refused, code(Code::Unauthenticated, "TOKEN_INVALID"));
    }
    for _ in 0..2 {
        assert_eq!(ask(&mut client, &good).await.0, Code::Ok);
    }
    let often = ask(&mut client, &good).await;
    assert_eq!(often, code(Code::ResourceExhausted, "RATE"));
    // It has calls of its own; that it may not make this one is determined after them.
    let component = cluster.component("comp-a").await.unwrap();
    let component = cluster.token(&component).await.unwrap();
    let foreign = ask(&mut client, &component).await;
    assert_eq!(foreign, code(Code::PermissionDenied, "SA_NOT_BOUND"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_only_shares_names_with_two_that_may_call_is_refused() {
    let stage = Stage::new().await.unwrap();
    let cluster = &stage.cluster;
    let (platform, apps) = (&cluster.platform, &cluster.apps);
    let viewers = format!("{platform}/dashboards,{apps}/grafana");
    let platform = Platform::on(stage, &["--viewers", &viewers]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let ask = async |account: &Account| {
        let request = TelemetryBootstrapRequest {
            service_account_token: cluster.token(account).await.unwrap().into_bytes(),
            kind: TelemetryKind::Viewer.into(),
            ..TelemetryBootstrapRequest::default()
        };
        let mut client = platform.client().await.unwrap();
        client.bootstrap_telemetry(request).await
    };
    for allowed in
        [cluster.account("dashboards").unwrap(), cluster.component("grafana").await.unwrap()]
    {
        let answer = ask(&allowed).await.unwrap().into_inner();
        assert!(!answer.opensearch_password.is_empty(), "{allowed}");
    }
    let crossed = cluster.component("dashboards").await.unwrap();
    let refused = ask(&crossed).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().starts_with("SA_NOT_BOUND"), "{refused}");
    let details = String::from_utf8_lossy(refused.details()).into_owned();
    for part in ["google.rpc.ErrorInfo", "SA_NOT_BOUND"] {
        assert!(details.contains(part), "{details:?}");
    }
}

/// A clock that is far behind.
#[derive(Debug)]
struct Behind;

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_seconds(-24 * 3600)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_only_the_vault_finds_expired_is_told_so_too() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let good = cluster.token(&cluster.account("nats").unwrap()).await;
    // An API server issues no token for less than ten minutes. This one expired an hour ago, and a controller
    // whose clock is behind presents it to the vault.
    let hour = SystemClock.now().plus_seconds(-3600).unix_seconds();
    let ended = altered(&good.unwrap(), "exp", json!(hour));
    let mut late = platform.stage.controller(&[]).await.unwrap();
    late.clock = Arc::new(Behind);
    late.certificate = Arc::clone(&platform.controller.certificate);
    let served = Platform::serve(&late).await.unwrap();
    let mut client = platform.client_at(served.address).await.unwrap();
    let expired = code(Code::Unauthenticated, "TOKEN_EXPIRED");
    assert_eq!(ask(&mut client, &ended).await, expired);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_not_set_up_and_a_policy_that_forbids_have_their_words() {
    let platform = Platform::new(&[]).await.unwrap();
    let stage = &platform.stage;
    let account = stage.cluster.account("nats").unwrap();
    let good = stage.cluster.token(&account).await.unwrap();
    // A process with a certificate, but without a completed round.
    let mut new = stage.controller(&[]).await.unwrap();
    new.certificate = Arc::clone(&platform.controller.certificate);
    let served = Platform::serve(&new).await.unwrap();
    let mut client = platform.client_at(served.address).await.unwrap();
    let not_yet = code(Code::FailedPrecondition, "NOT_BOOTSTRAPPED");
    assert_eq!(ask(&mut client, &good).await, not_yet);

    let key = stored_key(stage, &platform.controller).await;
    let root = make_root(stage, &key).await;
    let nothing = json!({"policy": "path \"none\" { capabilities = [\"read\"] }"});
    let request = Request::post("sys/policies/acl/nats", &nothing).by(&root);
    assert_eq!(stage.bao.vault().call(&request).await.unwrap().status, 204);
    let mut client = platform.client().await.unwrap();
    let forbidden = code(Code::PermissionDenied, "POLICY");
    assert_eq!(ask(&mut client, &good).await, forbidden);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_trusts_another_authority_speaks_to_nobody() {
    let platform = Platform::new(&[]).await.unwrap();
    let account = platform.stage.cluster.account("dashboards").unwrap();
    let mut args = platform.init(&account, &["viewer"]).await.unwrap();
    args.way.deadline_seconds = 1;
    let names = rcgen::CertificateParams::new(vec!["other".to_owned()]).unwrap();
    let other = names.self_signed(&rcgen::KeyPair::generate().unwrap());
    std::fs::write(&args.way.ca, other.unwrap().pem()).unwrap();
    services::init::run::run(&args).await.unwrap_err();
    assert!(!args.out.join("password").exists());
    let identity = Identity::new(args.way, Arc::new(SystemClock));
    identity.grant().await.unwrap_err();
}
