//! The content of callers' certificates: their own names, the addresses of their own pod, and a key that the
//! vault need not know.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::client::verify_server_name;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::ParsedCertificate;
use services::init::own_key::OwnKey;
use tec_core::secret::SecretBytes;
use tec_e2e::services::platform::Platform;
use tec_services::shell::client::{ComponentBootstrapRequest, TlsMaterial};
use tec_support::certificate::Certificate;
use tonic::{Code, Status};

async fn ask(
    platform: &Platform,
    token: &str,
    certificate_request: String,
) -> Result<TlsMaterial, Status> {
    let request = ComponentBootstrapRequest {
        service_account_token: token.as_bytes().to_vec(),
        request_id: "test".to_owned(),
        certificate_request,
        ..ComponentBootstrapRequest::default()
    };
    let mut client = platform.client().await.unwrap();
    let answer = client.bootstrap_component(request).await?;
    Ok(answer.into_inner().tls.unwrap())
}

/// Whether the certificate is valid for this host or address.
fn is_for(tls: &TlsMaterial, name: &str) -> bool {
    let der = CertificateDer::from_pem_slice(tls.certificate_chain.as_bytes()).unwrap();
    let certificate = ParsedCertificate::try_from(&der).unwrap();
    let name = name.to_owned().try_into().unwrap();
    verify_server_name(&certificate, &name).is_ok()
}

fn refused(outcome: Result<TlsMaterial, Status>) -> (Code, String) {
    let status = outcome.unwrap_err();
    let word = status.message().split(':').next().unwrap().to_owned();
    (status.code(), word)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_names_the_addresses_of_the_callers_own_pod() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let account = cluster.component("comp-a").await.unwrap();
    let pending = cluster.pod_token(&account, "comp-a-0", &[]).await.unwrap();
    let waits = refused(ask(&platform, &pending, String::new()).await);
    assert_eq!(waits, (Code::Unavailable, "POD_PENDING".to_owned()));

    let addresses = ["10.1.2.3", "fd00::3"];
    let token = cluster.pod_token(&account, "comp-a-0", &addresses);
    let token = token.await.unwrap();
    let tls = ask(&platform, &token, String::new()).await.unwrap();
    for name in ["10.1.2.3", "fd00::3", "localhost", &account.host()] {
        assert!(is_for(&tls, name), "not for {name}");
    }
    let other = cluster.component("comp-b").await.unwrap();
    for name in ["10.1.2.4", "127.0.0.1", &other.host()] {
        assert!(!is_for(&tls, name), "for {name}");
    }

    // A token that is not bound to a pod yields names only.
    let token = cluster.token(&account).await.unwrap();
    let tls = ask(&platform, &token, String::new()).await.unwrap();
    assert!(is_for(&tls, &account.host()) && !is_for(&tls, "10.1.2.3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_pod_that_was_replaced_gets_nothing_of_the_new_one() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let account = cluster.component("comp-a").await.unwrap();
    let old = cluster.pod_token(&account, "comp-a-0", &["10.1.2.3"]);
    let old = old.await.unwrap();
    // The review of the old token is cached for a few seconds from now on.
    ask(&platform, &old, String::new()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.plane.admin().unwrap(), account.namespace());
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete("comp-a-0", &at_once).await.unwrap();
    let new = cluster.pod_token(&account, "comp-a-0", &["10.1.2.4"]);
    let new = new.await.unwrap();
    let stale = refused(ask(&platform, &old, String::new()).await);
    assert_eq!(stale, (Code::Unauthenticated, "TOKEN_INVALID".to_owned()));
    let tls = ask(&platform, &new, String::new()).await.unwrap();
    assert!(is_for(&tls, "10.1.2.4") && !is_for(&tls, "10.1.2.3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_its_owner_made_is_certified_for_the_owners_names_only() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let account = cluster.component("comp-a").await.unwrap();
    let token = cluster.token(&account).await.unwrap();

    let own = OwnKey::generate().unwrap();
    let tls = ask(&platform, &token, own.request()).await.unwrap();
    assert!(tls.private_key.is_empty(), "the vault made a key");
    let chain = tls.certificate_chain.as_bytes();
    let fits = |key: &SecretBytes| Certificate::default().replace(chain, key).is_ok();
    assert!(fits(&own.into_key()));
    assert!(!fits(&OwnKey::generate().unwrap().into_key()));
    assert!(is_for(&tls, &account.host()));

    // Names in the request are ignored.
    let greedy = CertificateParams::new(vec!["other.example".to_owned()]).unwrap();
    let greedy = greedy.serialize_request(&KeyPair::generate().unwrap());
    let greedy = greedy.unwrap().pem().unwrap();
    let tls = ask(&platform, &token, greedy).await.unwrap();
    assert!(is_for(&tls, &account.host()) && !is_for(&tls, "other.example"));

    let other = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let other = CertificateParams::default().serialize_request(&other);
    let other = other.unwrap().pem().unwrap();
    for wrong in ["garbage".to_owned(), other] {
        let bad = refused(ask(&platform, &token, wrong).await);
        assert_eq!(bad, (Code::InvalidArgument, "BAD_REQUEST".to_owned()));
    }
}
