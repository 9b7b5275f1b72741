//! What the admin asks of nodes.

use std::sync::Arc;
use std::time::Duration;

use bootstrapper::node::endpoint;
use bootstrapper::transport;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_k8s::rpc::generated::init::InitRequest;
use tec_k8s::rpc::generated::init::InitResponse;
use tec_k8s::rpc::generated::init::api_client::ApiClient as InitClient;
use tec_k8s::rpc::generated::recoverproto::RecoverMessage;
use tec_k8s::rpc::generated::recoverproto::api_client::ApiClient as RecoverClient;
use tec_tpm::atls::Expectation;
use tec_tpm::atls::LiveMeasurements;
use tec_tpm::atls::Measurements;
use tec_tpm::atls::PinnedAks;
use tec_tpm::atls::Severity;
use tec_tpm::atls::Variant;
use tec_tpm::atls::VtpmValidator;
use tonic::transport::Channel;

use crate::files::INIT_SECRET;
use crate::files::KMS;
use crate::files::VERSION;
use crate::host::Host;

const ATTEMPTS: u32 = 60;
const STORAGE: &str = "storage://no-store";

/// A connection to a node that proves its key, and that it is in no cluster.
async fn dial(host: &Host, key: &str, port: u16) -> anyhow::Result<Channel> {
    let unused = Expectation {
        expected: Sha256Digest::ZERO,
        severity: Severity::Enforce,
    };
    let measurements = Measurements::default().with(PcrIndex::CLUSTER, unused);
    let live = Arc::new(LiveMeasurements::new(measurements));
    let trust = Arc::new(PinnedAks::new([key.parse()?]));
    let validator = VtpmValidator::new(Variant::QemuVtpm, trust, live);
    let client = endpoint().with_validator(Arc::new(validator)).build()?;
    let address = format!("{}:{port}", host.address);
    let mut attempt = 0;
    loop {
        match transport::dial(&client, &address).await {
            Ok(channel) => return Ok(channel),
            Err(error) if attempt == ATTEMPTS => return Err(error.into()),
            Err(_) => attempt += 1,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

pub(crate) async fn init(host: &Host, key: &str) -> anyhow::Result<InitResponse> {
    let request = InitRequest {
        kms_uri: KMS.to_owned(),
        storage_uri: STORAGE.to_owned(),
        kubernetes_version: VERSION.to_owned(),
        init_secret: INIT_SECRET.to_vec(),
        ..InitRequest::default()
    };
    let channel = dial(host, key, 9000).await?;
    Ok(InitClient::new(channel).init(request).await?.into_inner())
}

pub(crate) async fn recover(host: &Host, key: &str) -> anyhow::Result<()> {
    let message = RecoverMessage {
        kms_uri: KMS.to_owned(),
        storage_uri: STORAGE.to_owned(),
        check: false,
    };
    let channel = dial(host, key, 9999).await?;
    RecoverClient::new(channel).recover(message).await?;
    Ok(())
}
