//! Telemetry: collectors accept it only from senders with a certificate of the platform.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use services::bootstrap::export;
use services::init::run;
use tec_core::time::Timestamp;
use tec_e2e::kube::eventually;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::sink::Sink;
use tec_services::caller::Account;
use tec_services::shell::Export;
use tec_services::shell::client::{
    TelemetryBootstrapRequest, TelemetryBootstrapResponse, TelemetryKind,
};
use tec_services::telemetry::{Line, Severity};
use tec_support::SystemClock;
use tokio::sync::mpsc;
use tonic::{Code, Status};

async fn ask(
    platform: &Platform,
    account: &Account,
    kind: TelemetryKind,
) -> Result<TelemetryBootstrapResponse, Status> {
    let token = platform.stage.cluster.token(account).await.unwrap();
    let request = TelemetryBootstrapRequest {
        service_account_token: token.into_bytes(),
        request_id: "test".to_owned(),
        kind: kind.into(),
        ..TelemetryBootstrapRequest::default()
    };
    let mut client = platform.client().await.unwrap();
    Ok(client.bootstrap_telemetry(request).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn collectors_get_a_password_and_senders_do_not() {
    let platform = Platform::new(&[]).await.unwrap();
    let collector = platform.stage.cluster.account("collector").unwrap();
    let sender = platform.stage.cluster.account("tracer").unwrap();
    let answer = ask(&platform, &collector, TelemetryKind::Collector).await.unwrap();
    assert_eq!(answer.opensearch_password.len(), 64);
    let answer = ask(&platform, &sender, TelemetryKind::Sender).await.unwrap();
    assert!(answer.opensearch_password.is_empty() && answer.tls.is_some());
    let climber = ask(&platform, &sender, TelemetryKind::Collector).await;
    assert_eq!(climber.map(|_| ()).unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_collectors_and_senders_are_renewed_after_two_thirds_of_their_life() {
    let mut platform = Platform::new(&["--certificate-seconds", "9"]).await.unwrap();
    platform.keep().unwrap();
    let collector = ["collector", "--opensearch", "https://localhost:9200"];
    for (account, words) in
        [("collector", &collector[..]), ("tracer", &["sender", "--host", "localhost"])]
    {
        let account = platform.stage.cluster.account(account).unwrap();
        let args = platform.init(&account, words).await.unwrap();
        let keep = run::keep(&args, None, &SystemClock);
        let mut found = BTreeSet::new();
        // The first one is new, too.
        let renewed = eventually("two renewals", async || {
            platform.stage.sync_mounts().await?;
            found.extend(std::fs::read(args.out.join("tls.crt")).ok());
            Ok(found.len() == 3)
        });
        tokio::select! {
            ended = keep => panic!("{ended:?}"),
            renewed = renewed => renewed.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_takes_logs_with_a_certificate_for_it_and_refuses_all_others() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let collector = cluster.account("collector").unwrap();
    let sender = cluster.account("tracer").unwrap();
    let collector = ask(&platform, &collector, TelemetryKind::Collector).await.unwrap();
    let sender = ask(&platform, &sender, TelemetryKind::Sender).await.unwrap();
    let (collector, sender) = (collector.tls.unwrap(), sender.tls.unwrap());
    let sink = Sink::start(&collector).unwrap();

    sink.send(Some(&sender), &sender.authorities, "a line").await.unwrap();
    assert_eq!(sink.received(), ["a line"]);

    let nobody = sink.send(None, &sender.authorities, "no certificate").await;
    assert!(nobody.is_err());
    // A server certificate from the same CA has the wrong usage.
    let server = sink.send(Some(&collector), &sender.authorities, "wrong usage").await;
    assert!(server.is_err());
    let stranger = Arc::new(Platform::new(&[]).await.unwrap());
    let account = stranger.stage.cluster.account("tracer").unwrap();
    let foreign = ask(&stranger, &account, TelemetryKind::Sender).await.unwrap();
    let foreign = foreign.tls.unwrap();
    let other = sink.send(Some(&foreign), &sender.authorities, "wrong authority").await;
    assert!(other.is_err());
    let distrusted = sink.send(Some(&sender), &foreign.authorities, "wrong server").await;
    assert!(distrusted.is_err());
    assert_eq!(sink.received(), ["a line"], "something else came through");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_the_controller_reaches_the_sink_once_there_is_a_vault() {
    let platform = Platform::new(&[]).await.unwrap();
    let collector = platform.stage.cluster.account("collector").unwrap();
    let collector = ask(&platform, &collector, TelemetryKind::Collector);
    let sink = Sink::start(&collector.await.unwrap().tls.unwrap()).unwrap();
    let (queue, lines) = mpsc::channel(1);
    let line = line("the vault is as it shall be".to_owned());
    queue.send(line).await.unwrap();
    drop(queue);
    let controller = &platform.controller;
    export::run(controller, &sink.address(), lines).await;
    assert_eq!(sink.received(), ["the vault is as it shall be"]);
}

fn line(text: String) -> Line {
    Line {
        at: Timestamp::EPOCH,
        severity: Severity::Info,
        target: "test".to_owned(),
        text,
        fields: BTreeMap::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_our_own_programs_reaches_the_sink_whole_and_in_order() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let collector = cluster.account("collector").unwrap();
    let collector = ask(&platform, &collector, TelemetryKind::Collector).await.unwrap();
    let sink = Sink::start(&collector.tls.unwrap()).unwrap();
    // A component sends with the certificate that it has anyway.
    let component = platform.identity("comp-a").await.unwrap();
    let grant = component.grant().await.unwrap();
    let config = component.certificate().client_config(grant.authorities.as_bytes());
    let client = sink.with(config.unwrap()).unwrap();
    let (queue, lines) = mpsc::channel(600);
    for number in 0..600 {
        queue.send(line(format!("line {number}"))).await.unwrap();
    }
    drop(queue);
    Export::new(client, "test").run(lines).await;
    let sent: Vec<String> = (0..600).map(|number| format!("line {number}")).collect();
    assert_eq!(sink.received(), sent);
}
