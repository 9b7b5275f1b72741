//! Each refused login has its own gRPC code, and an outage is no bad credential.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::Value;
use serde_json::json;
use tec_core::service::caller::Account;
use tec_e2e::kube::Freeze;
use tec_k8s::service::client::NatsBootstrapRequest;
use tec_k8s::service::client::TelemetryBootstrapRequest;
use tec_k8s::service::client::TelemetryKind;
use tec_k8s::service::client::bootstrap_client::BootstrapClient;
use tec_services_e2e::cluster::Cluster;
use tec_services_e2e::platform::Platform;
use tec_services_e2e::stage::Stage;
use tonic::Code;
use tonic::transport::Channel;

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

/// The same token with other claims; its signature fits no more.
fn altered(token: &str, name: &str, value: Value) -> String {
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let claims = URL_SAFE_NO_PAD.decode(&parts[1]).unwrap();
    let mut claims: Value = serde_json::from_slice(&claims).unwrap();
    claims[name] = value;
    parts[1] = URL_SAFE_NO_PAD.encode(claims.to_string());
    parts.join(".")
}

#[tokio::test(flavor = "multi_thread")]
async fn item_3_each_refusal_has_its_own_code() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let mut client = platform.client().await.unwrap();
    let nats = cluster.account("nats").unwrap();
    let good = cluster.token(&nats).await.unwrap();
    let component = cluster.component("comp-a").await.unwrap();

    let cases = [
        (
            "no token",
            "garbage".to_owned(),
            code(Code::InvalidArgument, "BAD_REQUEST"),
        ),
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

    // Reviews are kept for some seconds by the API server, so the account counts a little longer.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(cluster.plane.admin().unwrap(), &cluster.platform);
    accounts
        .delete("nats", &DeleteParams::default())
        .await
        .unwrap();
    tec_e2e::kube::eventually("the token of a deleted account is refused", async || {
        let mut client = client.clone();
        Ok(ask(&mut client, &good).await == code(Code::Unauthenticated, "TOKEN_INVALID"))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn item_3_an_outage_is_told_from_a_bad_credential() {
    let stage = Stage::on(Cluster::alone().await.unwrap()).await.unwrap();
    let mut platform = Platform::on(stage, &[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let mut client = platform.client().await.unwrap();
    let good = cluster
        .token(&cluster.account("nats").unwrap())
        .await
        .unwrap();
    assert_eq!(ask(&mut client, &good).await.0, Code::Ok);

    cluster.plane.freeze_api_server(Freeze::Stop).unwrap();
    let frozen = ask(&mut client, &good).await;
    cluster.plane.freeze_api_server(Freeze::GoOn).unwrap();
    assert_eq!(frozen, code(Code::Unavailable, "TOKEN_REVIEW_DOWN"));

    platform.stage.bao.kill();
    assert_eq!(
        ask(&mut client, &good).await,
        code(Code::Unavailable, "VAULT_DOWN")
    );
    platform
        .stage
        .bao
        .start(&platform.stage.logs)
        .await
        .unwrap();
    assert_eq!(
        ask(&mut client, &good).await,
        code(Code::Unavailable, "VAULT_SEALED")
    );
    platform.controller.round().await.unwrap();
    assert_eq!(ask(&mut client, &good).await.0, Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn item_3_an_account_that_calls_too_often_is_refused_and_nobody_else_can_use_up_its_calls() {
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
    // It has calls of its own; that it may not make this one is found out after them.
    let component = cluster.component("comp-a").await.unwrap();
    let component = cluster.token(&component).await.unwrap();
    let foreign = ask(&mut client, &component).await;
    assert_eq!(foreign, code(Code::PermissionDenied, "SA_NOT_BOUND"));
}

#[tokio::test(flavor = "multi_thread")]
async fn item_3_an_account_that_only_shares_names_with_two_that_may_call_is_refused() {
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
    for allowed in [
        cluster.account("dashboards").unwrap(),
        cluster.component("grafana").await.unwrap(),
    ] {
        let answer = ask(&allowed).await.unwrap().into_inner();
        assert!(!answer.opensearch_password.is_empty(), "{allowed}");
    }
    let crossed = cluster.component("dashboards").await.unwrap();
    let refused = ask(&crossed).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().starts_with("SA_NOT_BOUND"), "{refused}");
}
