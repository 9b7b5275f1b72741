//! Certificates from cert-manager; the test plays its part, with the kind Certificate and an issuer.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tec_core::rollover::fingerprints;
use tec_e2e::kube::{Bench, Server, eventually};
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::render::{Component, certificate_resource};

use crate::tls::{condition, deployments, mounted, object, until};

const SECRETS: [&str; 3] = [
    "tec-attestation-key-register-managed-tls",
    "tec-kbs-managed-tls",
    "tec-register-server-managed-tls",
];

/// The part of cert-manager's definition that the API server needs.
fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "certificates.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io", "scope": "Namespaced",
            "names": {"plural": "certificates", "singular": "certificate", "kind": "Certificate",
                "listKind": "CertificateList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    }))
    .unwrap()
}

struct Issuer {
    ca: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Issuer {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap();
        Self { ca, issuer: rcgen::Issuer::new(params, key) }
    }

    /// Writes the Secret requested by a Certificate, for its names.
    async fn issue(&self, bench: &Bench, certificate: &DynamicObject) -> String {
        let spec = &certificate.data["spec"];
        let names = ["dnsNames", "ipAddresses"].map(|list| spec[list].as_array().unwrap().clone());
        let names = names.concat().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
        let names: Vec<String> = names;
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(names).unwrap();
        let leaf = leaf.signed_by(&key, &self.issuer).unwrap();
        let name = spec["secretName"].as_str().unwrap();
        let entries =
            [("tls.crt", leaf.pem()), ("tls.key", key.serialize_pem()), ("ca.crt", self.ca.pem())];
        let entries = entries.map(|(entry, pem)| (entry.to_owned(), ByteString(pem.into_bytes())));
        let secret = Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(entries.into()),
            ..Secret::default()
        };
        let secrets = bench.objects::<Secret>().unwrap();
        let params = PatchParams::apply("cert-manager").force();
        secrets.patch(name, &params, &Patch::Apply(secret)).await.unwrap();
        leaf.pem()
    }
}

async fn look_again(bench: &Bench) {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let now = format!("{:?}", std::time::Instant::now());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/look": now}}}));
    clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
}

/// The certificate that the server presents, as PEM without line breaks.
async fn shown(address: &str, ca: &rcgen::Certificate) -> Option<Vec<u8>> {
    let ca = reqwest::Certificate::from_pem(ca.pem().as_bytes()).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([ca]).tls_info(true);
    let client = client.pool_max_idle_per_host(0).build().unwrap();
    let answer = client.get(format!("https://{address}/healthz")).send().await.ok()?;
    let info = answer.extensions().get::<reqwest::tls::TlsInfo>()?;
    Some(info.peer_certificate()?.to_vec())
}

async fn flags(bench: &Bench, volumes: &Path) -> Vec<OsString> {
    let pods = deployments(bench).await;
    let (_, pod) = pods.iter().find(|(name, _)| name == "key-broker").unwrap();
    mounted(bench, pod, volumes).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_get_their_certificates_from_cert_manager_where_an_issuer_is_named() {
    let mut err = std::io::stderr();
    writeln!(err, "\n*** the real cert-manager did NOT run: this test plays its issuer ***\n")
        .unwrap();
    let mut bench = Bench::alone().await.unwrap();
    let cluster = object(&json!({
        "publicTrusteeAddr": "127.0.0.1:8080", "keyBroker": "Builtin",
        "certificateIssuer": {"name": "company", "kind": "ClusterIssuer"},
    }));
    bench.create(&cluster).await.unwrap();
    bench.start("one").unwrap();
    let said = until(&bench, "Ready", "False", "ApplyFailed").await;
    assert!(said.contains("TEC-T404"), "{said}");

    let definitions: Api<CustomResourceDefinition> = Api::all(bench.admin().unwrap());
    definitions.create(&PostParams::default(), &definition()).await.unwrap();
    eventually("Certificates are asked for", async || {
        look_again(&bench).await;
        // Each look is a change that the operator answers: a busy one must be able to keep up.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(condition(&bench, "CertificateAuthority").await[1] == "CertificatesPending")
    })
    .await
    .unwrap();
    let said = condition(&bench, "CertificateAuthority").await[2].clone();
    assert!(said.contains("TEC-T503") && said.contains(SECRETS[1]), "{said}");
    let resource = certificate_resource();
    let admin = bench.admin().unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(admin, &bench.namespace, &resource);
    let mut asked = api.list(&ListParams::default()).await.unwrap().items;
    asked.sort_by_key(|one| one.metadata.name.clone());
    let names: Vec<_> = asked.iter().map(|one| one.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, SECRETS);
    let spec = &asked[1].data["spec"];
    assert_eq!(spec["issuerRef"]["kind"], "ClusterIssuer");
    assert_eq!(spec["ipAddresses"], json!(["127.0.0.1"]));

    let issuer = Issuer::new();
    for certificate in &asked {
        issuer.issue(&bench, certificate).await;
    }
    look_again(&bench).await;
    until(&bench, "CertificateAuthority", "True", "CertificatesManaged").await;
    let secrets = bench.objects::<Secret>().unwrap();
    assert!(secrets.get_opt("trust-anchor-ca").await.unwrap().is_none(), "no CA of its own");

    // The server presents it, and its replacement without a restart.
    let volumes = tempfile::tempdir().unwrap();
    let words = flags(&bench, volumes.path()).await;
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let component = Component::KeyBroker;
    let server = Server::start(&bench.plane, component, &bench.namespace, &words).await.unwrap();
    let first = shown(&server.address, &issuer.ca).await.unwrap();
    let renewed = issuer.issue(&bench, &asked[1]).await;
    let renewed = fingerprints(&renewed).unwrap().pop_first().unwrap();
    eventually("the server shows the renewed certificate", async || {
        flags(&bench, volumes.path()).await;
        let shown = shown(&server.address, &issuer.ca).await.unwrap_or_default();
        Ok(tec_core::digest::Sha256Digest::of(&shown) == renewed)
    })
    .await
    .unwrap();
    assert_ne!(tec_core::digest::Sha256Digest::of(first), renewed);
}
