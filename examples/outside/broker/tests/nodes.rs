//! Two boots of a node, against the broker over TCP.

use std::sync::Arc;

use outside_broker::Broker;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::content_key;
use tec_core::pcr::PcrIndex;
use tec_core::system::SystemEntropy;
use tec_tpm::testing::SoftTpm;
use tec_trustee::client::{Deadlines, RcarClient, RcarError};
use tokio::net::TcpListener;

const PCR: PcrIndex = PcrIndex::BOOT_MANAGER;

/// The value that an image that boots one program leaves in PCR 4.
fn expected(program: &str) -> ExpectedPcrs {
    let (kind, digest) = ("EV_EFI_BOOT_SERVICES_APPLICATION", Sha256Digest::of(program));
    let event = ImageEvent::new(kind, PCR, digest, program);
    ExpectedPcrs::new(vec![ExpectedPcr::from_events(PCR, [event])])
}

#[tokio::test]
async fn the_approved_boot_gets_the_key_and_another_does_not() {
    let directory = tempfile::TempDir::new().unwrap();
    let broker = Broker::open(&directory.path().join("state")).unwrap();
    broker.approve("good", expected("kernel")).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = axum::serve(listener, broker.router().unwrap());
    tokio::spawn(async move { server.await });

    let tpm = SoftTpm::p256(1);
    let here = Endpoint::new(url.parse().unwrap(), "");
    let pin = broker.admit(tpm.public_key(), here).await.unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let entropy = Arc::new(SystemEntropy);
    let client = RcarClient::new(&pin.servers, Deadlines::default(), &provider, entropy).unwrap();

    tpm.extend(PCR, &Sha256Digest::of("kernel"));
    let released = client.fetch(&pin.path, &tpm).await.unwrap();
    assert!(content_key(&released).is_ok(), "a disk key");

    tpm.reboot();
    tpm.extend(PCR, &Sha256Digest::of("another kernel"));
    let refused = client.fetch(&pin.path, &tpm).await.unwrap_err();
    let RcarError::Denied { code, .. } = refused else { panic!("{refused}") };
    assert_eq!(code, Some(Code::PcrMismatch));
}
