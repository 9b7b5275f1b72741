//! What a controller reports about itself: whether callers may connect, and which calls it supports.

use futures::{StreamExt as _, stream};
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::shell;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::vault::{seal, stored_key};

async fn channel(platform: &Platform) -> Channel {
    let authorities = platform.stage.authorities().await.unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authorities))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{}", platform.address)).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await.unwrap()
}

async fn status(channel: &Channel, name: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: name.to_owned() };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    answer.unwrap().into_inner().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_that_a_person_sealed_makes_its_controller_not_ready() {
    let stage = Stage::new().await.unwrap();
    let mut platform = Platform::on(stage, &[]).await.unwrap();
    let key = stored_key(&platform.stage, &platform.controller).await;
    let channel = channel(&platform).await;
    for name in ["", shell::NAME] {
        let before = status(&channel, name).await;
        assert_eq!(before, ServingStatus::NotServing, "{name:?}");
    }
    let health = platform.controller.health.clone();
    health.during(platform.controller.round()).await.unwrap();
    for name in ["", shell::NAME] {
        assert_eq!(status(&channel, name).await, ServingStatus::Serving, "{name:?}");
    }
    seal(&platform.stage, &key).await;
    platform.keep().unwrap();
    tec_e2e::kube::eventually("the controller is not ready", async || {
        Ok(status(&channel, "").await == ServingStatus::NotServing)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_names_the_service() {
    let platform = Platform::new(&[]).await.unwrap();
    let mut client = ServerReflectionClient::new(channel(&platform).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = client.server_reflection_info(stream::iter([request])).await;
    let mut answers = answers.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    assert!(list.service.iter().any(|one| one.name == shell::NAME));
}
