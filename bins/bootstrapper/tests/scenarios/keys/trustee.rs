//! `kms://trustee`: the KBS of this project releases the master secret to a machine whose TPM states that it
//! is in no cluster.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bootstrapper::instance::keys;
use bootstrapper::instance::node::Attestation;
use bootstrapper::instance::settings::TpmSettings;
use tec_core::digest::Sha256Digest;
use tec_core::port::{EntropyRng, KeyBroker as _, PolicySlot, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::derive::{ClusterId, DataKeyId};
use tec_node::port::DataKeys;
use tec_node::uri::{KmsUri, StorageUri};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::testing::Swtpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::token::TokenSigner;
use tokio::net::TcpListener;

const PATH: &str = "default/cluster/master";

/// Master secret 40..5f, salt 60..7f (Constellation).
fn master() -> String {
    let part = |first: u8| STANDARD.encode((first..first + 32).collect::<Vec<u8>>());
    format!(r#"{{"key":"{}","salt":"{}"}}"#, part(0x40), part(0x60))
}

/// A KBS that releases to machines in no cluster; returns its URL.
async fn kbs(secret: &str) -> String {
    let backend = Arc::new(MemoryBackend::new());
    let zero = Sha256Digest::ZERO;
    let policy = format!(
        "package policy\nimport rego.v1\n\
         allow if input.submods.cpu0[\"ear.veraison.annotated-evidence\"].tpm.pcr15 == \"{zero}\"\n"
    );
    backend.set_policy(PolicySlot::Resource, &policy).await.unwrap();
    let secret = SecretBytes::new(secret.as_bytes().to_vec());
    backend.put(&PATH.parse().unwrap(), &secret).await.unwrap();
    let signer = TokenSigner::random(&mut EntropyRng::new(&SystemEntropy));
    let verifier = Arc::new(TpmVerifier::new());
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let kbs = Kbs::new(KbsConfig::new(backend, verifier, signer, clock, entropy));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    spawn(async move { axum::serve(listener, kbs.router()).await.unwrap() });
    url
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test's server runs beside the test, and ends with its runtime"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

async fn open(machine: &Attestation, url: &str) -> Result<Box<dyn DataKeys>, PortError> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kms = KmsUri::parse(&format!("kms://trustee?url={url}&path={PATH}")).unwrap();
    let services = keys::services(Arc::clone(&machine.attester), Vec::new());
    services.open(kms, StorageUri::NoStore).await
}

fn machine(swtpm: &Swtpm) -> Attestation {
    let tcti = swtpm.tcti();
    let settings = TpmSettings { tcti, ..TpmSettings::default() };
    Attestation::open(&settings).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_in_no_cluster_obtains_the_master_secret_and_derives_the_recorded_keys() {
    let swtpm = Swtpm::start().unwrap();
    let machine = machine(&swtpm);
    let url = kbs(&master()).await;
    let keys = open(&machine, &url).await.unwrap();
    let key = keys.existing_data_key(&DataKeyId::measurement_secret(), 32).await;
    let expected = "4790578891f3fe6cc22cb661ecdc1b7e33121b1287546a52ba33a9136719c213";
    let key = key.unwrap();
    assert_eq!(Sha256Digest::of(key.expose("compare")), digest_of(expected));

    machine.marker.set(&ClusterId::new([9; 32])).await.unwrap();
    let refused = open(&machine, &url).await.unwrap_err();
    assert_eq!(refused.kind(), PortErrorKind::Denied);
}

fn digest_of(hex: &str) -> Sha256Digest {
    let digest: Sha256Digest = hex.parse().unwrap();
    Sha256Digest::of(digest.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_master_secret_and_who_is_not_there_have_their_kinds() {
    let swtpm = Swtpm::start().unwrap();
    let machine = machine(&swtpm);
    let url = kbs(r#"{"key":"Y2FuYXJ5","salt":"Y2FuYXJ5"}"#).await;
    let error = open(&machine, &url).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    assert!(!format!("{error:?}").contains("Y2FuYXJ5"));
    let error = open(&machine, "http://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
}
