//! Nodes with unlisted attestation keys: a genuine TPM vouches for them, or they are refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bootstrapper::instance::authority::Authority;
use bootstrapper::instance::identity::Identity;
use bootstrapper::instance::node::{Attestation, endpoint};
use bootstrapper::instance::transport;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SubjectPublicKeyInfo,
};
use tec_core::ak::{Credential, EkOffer, Fingerprint};
use tec_core::digest::Sha256Digest;
use tec_core::port::{Clock as _, PortError, PortErrorKind};
use tec_node::atls::{PinnedAks, Variant, VtpmValidator};
use tec_node::host::KubeletIdentity as _;
use tec_node::rpc::generated::join::api_client::ApiClient;
use tec_node::rpc::generated::join::{
    ChallengeEndorsementKeyRequest, EndorsementProof, IssueJoinTicketRequest,
};
use tec_node::rpc::{Reason, TpmOffer};
use tec_support::{SystemClock, SystemEntropy};
use time::OffsetDateTime;
use tonic::Status;
use tonic::transport::Channel;

use crate::cluster::{ANYTHING, Cluster};
use crate::recover::ended;
use crate::stage::Machine;

const DISK: &str = "00000000-0000-0000-0000-0000000000aa";

fn of_makers(roots: &Path) -> String {
    format!("{ANYTHING}endorsement_roots = '{}'\n", roots.display())
}

fn listed(ek: Fingerprint) -> String {
    format!("{ANYTHING}endorsement_keys = ['{ek}']\n")
}

async fn ek_of(machine: &Machine) -> Fingerprint {
    machine.attestation().endorser.offer().await.unwrap().ek.public.fingerprint()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_nobody_listed_joins_and_boots_again_by_its_endorsement_key() {
    let plane = Machine::new("plane-0", "ControlPlane");
    for by in ["maker", "list"] {
        let mut machine = Machine::manufactured("node-1", "Worker");
        let taken = match by {
            "maker" => of_makers(&machine.maker()),
            _ => listed(ek_of(&machine).await),
        };
        let cluster = Cluster::taking(&plane, &taken, &[]).await;
        machine.write_metadata("node-1", "Worker", &["127.0.0.1"]);
        machine.write_settings_with(&[cluster.ak], cluster.port);
        let log = ended(machine.start("run")).await;
        assert_ne!(machine.register(), Sha256Digest::ZERO);
        machine.assert_no_secrets(&log);

        machine.reboot();
        machine.write_settings_with(&[cluster.ak], cluster.port);
        ended(machine.start("recover")).await;
        assert_ne!(machine.register(), Sha256Digest::ZERO);
        cluster.stop().await;
    }
}

/// A connection proven by this attestation key.
pub(crate) async fn connect(cluster: &Cluster, attestation: &Attestation) -> Channel {
    reach(cluster, attestation).await.unwrap()
}

async fn reach(cluster: &Cluster, attestation: &Attestation) -> Result<Channel, PortError> {
    let trust = Arc::new(PinnedAks::new([cluster.ak]));
    let validator = VtpmValidator::new(Variant::QemuVtpm, trust, Arc::default());
    let end = endpoint()
        .with_issuer(Arc::clone(&attestation.issuer))
        .with_validator(Arc::new(validator))
        .build()
        .unwrap();
    transport::dial(&end, &format!("127.0.0.1:{}", cluster.port)).await
}

/// A challenge for this TPM: what to send back with the answer, and what the TPM must open.
pub(crate) async fn challenge(
    channel: &Channel,
    offer: TpmOffer,
) -> Result<(Vec<u8>, Credential), Status> {
    let request = ChallengeEndorsementKeyRequest {
        disk_uuid: DISK.to_owned(),
        endorsement_key: offer.ek.public.as_der().to_vec(),
        certificate: offer.ek.certificate.unwrap_or_default(),
        attestation_key: offer.ak_area,
    };
    let answer = ApiClient::new(channel.clone()).challenge_endorsement_key(request).await?;
    let answer = answer.into_inner();
    Ok((answer.challenge, Credential::new(answer.id_object, answer.encrypted_secret)))
}

async fn ticket(channel: &Channel, proof: Option<EndorsementProof>) -> Result<(), Status> {
    ask(channel, IssueJoinTicketRequest { endorsement: proof, ..Default::default() }).await
}

/// Requests a ticket with these claims about the name and the disk.
pub(crate) async fn ask(channel: &Channel, request: IssueJoinTicketRequest) -> Result<(), Status> {
    let authority = Authority::new("", Arc::new(SystemClock), Arc::new(SystemEntropy));
    let name = "node-1".parse().unwrap();
    let identity = Identity::generate(&name, [127, 0, 0, 99].into(), authority).unwrap();
    let request = IssueJoinTicketRequest {
        disk_uuid: DISK.to_owned(),
        certificate_request: identity.key().request.clone(),
        ..request
    };
    ApiClient::new(channel.clone()).issue_join_ticket(request).await.map(drop)
}

/// How a node answers when asked for its endorsement key.
pub(crate) async fn prove(channel: &Channel, attestation: &Attestation) -> EndorsementProof {
    let offer = attestation.endorser.offer().await.unwrap();
    let (id, credential) = challenge(channel, offer).await.unwrap();
    let secret = attestation.endorser.activate(&credential).await.unwrap();
    EndorsementProof { challenge: id, secret: secret.expose("test").to_vec() }
}

fn assert_refused<T>(answer: Result<T, Status>, why: &str) {
    let status = answer.err().unwrap();
    assert_eq!(Reason::of(&status), Some(Reason::EndorsementKey), "{status}");
    assert!(status.message().starts_with("TEC-B407: "), "{status}");
    assert!(status.message().contains(why), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_genuine_endorsement_key_vouches_for_no_key_of_another_machine() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let genuine = Machine::manufactured("node-1", "Worker");
    let stranger = Machine::new("node-2", "Worker");
    let cluster = Cluster::taking(&plane, &of_makers(&genuine.maker()), &[]).await;
    let (accomplice, intruder) = (genuine.attestation(), stranger.attestation());
    let channel = connect(&cluster, &intruder).await;
    let [shown, own] =
        [accomplice.endorser.offer().await.unwrap(), intruder.endorser.offer().await.unwrap()];

    let unproven = ticket(&channel, None).await.unwrap_err();
    assert_eq!(Reason::of(&unproven), Some(Reason::NeedsEndorsementKey));
    // The accomplice's key is not the one that proved this connection.
    assert_refused(challenge(&channel, shown.clone()).await, "this connection proved");
    // The genuine TPM does not know this key, even if its owner helps.
    let borrowed = TpmOffer { ek: shown.ek, ak_area: own.ak_area };
    let (id, credential) = challenge(&channel, borrowed).await.unwrap();
    for tpm in [&accomplice, &intruder] {
        let opened = tpm.endorser.activate(&credential).await;
        assert_eq!(opened.unwrap_err().kind(), PortErrorKind::Denied);
    }
    let guess = EndorsementProof { challenge: id, secret: vec![7; 32] };
    assert_refused(ticket(&channel, Some(guess)).await, "wrong or came too late");
    cluster.stop().await;
}

/// An endorsement key certificate that expired an hour ago, and its CA in a file.
fn expired(machine: &Machine, ek: &EkOffer) -> (Vec<u8>, PathBuf) {
    let named = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let key = KeyPair::generate().unwrap();
    let mut ca = named("Maker");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let path = machine.path("ca.pem");
    fs::write(&path, ca.self_signed(&key).unwrap().pem()).unwrap();
    let mut params = named("EK");
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    // tcg-kp-EKCertificate.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1])];
    let now = SystemClock.now().unix_seconds();
    let now = OffsetDateTime::from_unix_timestamp(now).unwrap();
    params.not_before = now - time::Duration::days(2);
    params.not_after = now - time::Duration::hours(1);
    let public = SubjectPublicKeyInfo::from_der(ek.public.as_der()).unwrap();
    let signed = params.signed_by(&public, &Issuer::new(ca, key)).unwrap();
    (signed.der().to_vec(), path)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endorsement_key_whose_certificate_expired_vouches_for_nobody_unless_it_is_listed() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machine = Machine::new("node-1", "Worker");
    let attestation = machine.attestation();
    let TpmOffer { ek, ak_area } = attestation.endorser.offer().await.unwrap();
    let (certificate, roots) = expired(&machine, &ek);
    let by_name = listed(ek.public.fingerprint());
    let offer = TpmOffer { ek: EkOffer::new(ek.public, Some(certificate)), ak_area };

    let cluster = Cluster::taking(&plane, &of_makers(&roots), &[]).await;
    let channel = connect(&cluster, &attestation).await;
    assert_refused(challenge(&channel, offer.clone()).await, "expired at");
    cluster.change(&by_name, &[]);
    let channel = connect(&cluster, &attestation).await;
    challenge(&channel, offer).await.unwrap();
    cluster.stop().await;
}

/// Connects and requests a ticket.
async fn asks(cluster: &Cluster, attestation: &Attestation) -> Result<(), Option<Reason>> {
    let Ok(channel) = reach(cluster, attestation).await else { return Err(None) };
    ticket(&channel, None).await.map_err(|status| Reason::of(&status))
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_settings_count_for_the_next_connection_and_broken_ones_change_nothing() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machine = Machine::new("node-1", "Worker");
    let attestation = machine.attestation();
    let cluster = Cluster::start(&plane, &[], &[]).await;
    assert_eq!(asks(&cluster, &attestation).await, Err(None));

    let key = format!("attestation_keys = ['{}']\n", machine.ak);
    let listed = format!("{ANYTHING}{key}");
    cluster.change(&listed, &[]);
    assert_eq!(asks(&cluster, &attestation).await, Ok(()));
    // The key is accepted anyway, but does not qualify for a control plane.
    for broken in ["attestation_keys = ['00']", "unknown = 1", &key] {
        cluster.change(broken, &[machine.ak]);
        assert_eq!(asks(&cluster, &attestation).await, Ok(()), "{broken}");
    }

    // Files named in the settings are followed, too.
    let measurements = machine.path("measurements.json");
    let write = |value: Sha256Digest| fs::write(&measurements, format!(r#"{{"4": "{value}"}}"#));
    write(Sha256Digest::ZERO).unwrap();
    let measured = format!("{key}measurements = '{}'\n", measurements.display());
    cluster.change(&measured, &[]);
    assert_eq!(asks(&cluster, &attestation).await, Ok(()));
    write(Sha256Digest::of("another boot manager")).unwrap();
    cluster.look();
    assert_eq!(asks(&cluster, &attestation).await, Err(None));
    fs::write(&measurements, "{}").unwrap();
    cluster.look();
    assert_eq!(asks(&cluster, &attestation).await, Err(None), "no measurements are none");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_whose_connection_waits_for_other_settings_still_has_to_prove_its_key() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let stranger = Machine::new("node-1", "Worker");
    let attestation = stranger.attestation();
    // The handshake accepts every key, since the calls ask for the endorsement key.
    let cluster = Cluster::taking(&plane, &of_makers(&plane_roots(&plane)), &[]).await;
    let channel = connect(&cluster, &attestation).await;
    // Now the calls no longer ask, and the handshake is strict.
    cluster.change(ANYTHING, &[]);
    let refused = ticket(&channel, None).await.unwrap_err();
    assert_eq!(Reason::of(&refused), Some(Reason::NeedsEndorsementKey));
    assert_eq!(asks(&cluster, &attestation).await, Err(None));
    cluster.stop().await;
}

/// The CA certificates of a manufacturer.
fn plane_roots(plane: &Machine) -> PathBuf {
    let path = plane.path("roots.pem");
    fs::copy(plane.path("ca/ca.crt"), &path).unwrap();
    path
}
