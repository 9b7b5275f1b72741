//! Keys that an endorsement key must prove.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, Issuer, KeyPair};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tec_core::ak::Credential;
use tec_k8s::render::Component;
use tec_tpm::testing::SoftTpm;

use super::world::World;

/// The body that the node sends: its keys, and the certificate of the endorsement key.
fn offer(tpm: &SoftTpm, machine: &str, certificate: Option<&[u8]>) -> Value {
    let mut body = json!({
        "public_key": tpm.public_key().to_pem(), "uuid": machine,
        "tpm_public": STANDARD.encode(tpm.ak_public_area()),
        "ek_public": tpm.ek().public.to_pem(),
    });
    if let Some(certificate) = certificate {
        body["ek_certificate"] = STANDARD.encode(certificate).into();
    }
    body
}

/// The TPM's answer to a challenge.
fn answer(tpm: &SoftTpm, challenge: &Value) -> Value {
    assert_eq!(challenge["status"], "challenge", "{challenge}");
    let bytes = |member: &str| STANDARD.decode(challenge[member].as_str().unwrap()).unwrap();
    let credential = Credential::new(bytes("id_object"), bytes("encrypted_secret"));
    let secret = tpm.activate_credential(&credential).unwrap();
    let secret = STANDARD.encode(secret.expose("the node sends it back"));
    json!({ "challenge": challenge["challenge"], "secret": secret })
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_takes_the_answer_to_a_challenge_also_after_a_restart() {
    let world = World::new("challenges").await;
    let approval = json!({ "policy": "EndorsementKey" });
    let spec = json!({ "publicTrusteeAddr": "kbs.example", "approval": approval });
    world.cluster("c", &spec).await;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let flag = [OsStr::new("--challenge-key-file"), key.as_os_str()];
    let one = world.server(Component::AttestationKeyRegister, &flag).await;
    let two = world.server(Component::AttestationKeyRegister, &flag).await;
    for number in 1..=2 {
        let (tpm, id) = (SoftTpm::p256(number), world.machine(number).await);
        let (_, challenge) = world.put(&one, &offer(&tpm, &id, None)).await;
        let proof = answer(&tpm, &challenge);
        let (status, said) = world.put_at(&two, "/register-ak/proof", &proof).await;
        assert_eq!(status, StatusCode::CREATED, "{said}");
        // The answer may have been lost.
        let (status, said) = world.put_at(&one, "/register-ak/proof", &proof).await;
        assert_eq!((status, &said["code"]), (StatusCode::CONFLICT, &json!("TEC-R409")));
    }
    let (tpm, id) = (SoftTpm::p256(3), world.machine(3).await);
    let (_, challenge) = world.put(&one, &offer(&tpm, &id, None)).await;
    drop((one, two));
    let next = world.server(Component::AttestationKeyRegister, &flag).await;
    let proof = answer(&tpm, &challenge);
    assert_eq!(world.put_at(&next, "/register-ak/proof", &proof).await.0, StatusCode::CREATED);
    let proven = world.keys().await.into_iter().map(|key| key.spec.endorsement_key.unwrap());
    let expected =
        (1..=3).map(|number| SoftTpm::p256(number).ek().public.fingerprint().to_string());
    assert_eq!(proven.collect::<BTreeSet<_>>(), expected.collect());

    // A server with its own challenge key accepts none.
    let alone = world.server(Component::AttestationKeyRegister, &[]).await;
    let (tpm, id) = (SoftTpm::p256(4), world.machine(4).await);
    let (_, challenge) = world.put(&next, &offer(&tpm, &id, None)).await;
    let (_, said) = world.put_at(&alone, "/register-ak/proof", &answer(&tpm, &challenge)).await;
    assert_eq!(said["code"], "TEC-R423");
}

#[tokio::test(flavor = "multi_thread")]
async fn endorsement_keys_of_no_trusted_manufacturer_are_refused() {
    let world = World::new("manufacturers").await;
    let approval = json!({ "policy": "EndorsementKey", "endorsementRootsConfigMap": "makers" });
    let spec = json!({ "publicTrusteeAddr": "kbs.example", "approval": approval });
    world.cluster("c", &spec).await;
    let (maker, stranger) = (Maker::new(), Maker::new());
    let dir = tempfile::tempdir().unwrap();
    let roots = dir.path().join("ca.crt");
    std::fs::write(&roots, "").unwrap();
    let flag = [OsStr::new("--ek-roots"), roots.as_os_str()];
    let server = world.server(Component::AttestationKeyRegister, &flag).await;
    let (tpm, id) = (SoftTpm::p256(1), world.machine(1).await);
    let genuine = offer(&tpm, &id, Some(&maker.certify(&tpm)));

    // Without roots no one is admitted, with or without the flag.
    let bare = world.server(Component::AttestationKeyRegister, &[]).await;
    for server in [&server, &bare] {
        let (status, said) = world.put(server, &genuine).await;
        assert_eq!((status.as_u16(), &said["code"]), (503, &json!("TEC-R504")));
    }
    assert!(bare.log().unwrap().contains("ConfigMap makers"));

    std::fs::write(&roots, maker.certificate.pem()).unwrap();
    let challenge = world.until_put(&server, &genuine, StatusCode::ACCEPTED).await;
    for foreign in [None, Some(stranger.certify(&tpm)), Some(maker.certify(&SoftTpm::p256(2)))] {
        let (status, said) = world.put(&server, &offer(&tpm, &id, foreign.as_deref())).await;
        assert_eq!((status.as_u16(), &said["code"]), (403, &json!("TEC-R425")));
    }
    let log = server.log().unwrap();
    for reason in ["sent no certificate", "is not signed by its issuer", "for a key other than"] {
        assert!(log.contains(reason), "{reason}: {log}");
    }
    let (status, _) = world.put_at(&server, "/register-ak/proof", &answer(&tpm, &challenge)).await;
    assert_eq!(status, StatusCode::CREATED);
}

/// A manufacturer of TPMs.
struct Maker {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Maker {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// The certificate of a TPM's endorsement key, DER (TCG EK Credential Profile, section 3.2).
    fn certify(&self, tpm: &SoftTpm) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyAgreement];
        let purpose = rcgen::ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1]);
        params.extended_key_usages = vec![purpose];
        let key = rcgen::SubjectPublicKeyInfo::from_der(tpm.ek().public.as_der()).unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().to_vec()
    }
}
