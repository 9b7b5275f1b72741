use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::crypto::ring;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::testing::{ManualClock, SeededEntropy};
use tec_core::time::Timestamp;
use tec_tpm::testing::{SoftAzure, SoftSnp, SoftTpm};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::testing::{DangerousDummyIssuer, DangerousDummyValidator};

type Stream = AtlsStream<DuplexStream>;

/// Makes sure that no two endpoints in the tests draw the same randomness.
static SEED: AtomicU64 = AtomicU64::new(0);

fn at(seconds: i64) -> EndpointBuilder {
    let clock = ManualClock::new(SoftSnp::now().plus_seconds(seconds));
    let entropy = SeededEntropy::new(SEED.fetch_add(1, Ordering::SeqCst));
    let provider = Arc::new(ring::default_provider());
    Endpoint::builder(provider, Arc::new(clock), Arc::new(entropy))
}

fn now() -> EndpointBuilder {
    at(0)
}

fn dummy_server() -> EndpointBuilder {
    now().with_issuer(Arc::new(DangerousDummyIssuer))
}

fn dummy_client() -> EndpointBuilder {
    now().with_validator(Arc::new(DangerousDummyValidator))
}

async fn meet(
    server: EndpointBuilder,
    client: EndpointBuilder,
) -> (Result<Stream, AtlsError>, Result<Stream, AtlsError>) {
    let (server, client) = (server.build().unwrap(), client.build().unwrap());
    let (near, far) = tokio::io::duplex(256 * 1024);
    tokio::join!(server.accept(near), client.connect(far))
}

/// The client does not support evidence over the connection.
async fn meet_older(
    server: EndpointBuilder,
    client: EndpointBuilder,
) -> (Result<Stream, AtlsError>, Result<Stream, AtlsError>) {
    let server = server.with_channel_binding(ChannelBinding::WherePeerCan);
    let (server, client) = (server.build().unwrap(), client.build().unwrap());
    let (near, far) = tokio::io::duplex(256 * 1024);
    let connect = async {
        let (tls, peer) = connect::with_nonce(&client.0, far, bind::unbound()).await?;
        Ok(AtlsStream::new(tls, peer))
    };
    tokio::join!(server.accept(near), connect)
}

fn vtpm(tpm: &Arc<SoftTpm>) -> Arc<dyn Issuer> {
    Arc::new(VtpmIssuer::new(Variant::QemuVtpm, Arc::clone(tpm) as Arc<_>))
}

fn any_vtpm(measurements: Measurements) -> Arc<dyn Validator> {
    let live = Arc::new(LiveMeasurements::new(measurements));
    Arc::new(VtpmValidator::new(Variant::QemuVtpm, Arc::new(AnyAk), live))
}

fn expecting(index: u8, expected: Sha256Digest) -> Measurements {
    let expectation = Expectation { expected, severity: Severity::Enforce };
    Measurements::default().with(PcrIndex::new(index).unwrap(), expectation)
}

#[tokio::test]
async fn both_ends_prove_themselves_and_speak() {
    let (node, service) = (Arc::new(SoftTpm::p256(1)), Arc::new(SoftTpm::p256(2)));
    let unused = expecting(15, Sha256Digest::ZERO);
    let (server, client) = meet(
        now().with_issuer(vtpm(&service)).with_validator(any_vtpm(unused.clone())),
        now().with_issuer(vtpm(&node)).with_validator(any_vtpm(unused)),
    )
    .await;
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    let peer = server.peer().unwrap();
    assert_eq!(peer.ak(), Some(&node.public_key()));
    assert!(peer.is_channel_bound());
    assert_eq!(client.peer().unwrap().ak(), Some(&service.public_key()));
    assert!(client.peer().unwrap().is_channel_bound());

    client.write_all(b"ping").await.unwrap();
    client.flush().await.unwrap();
    let mut said = [0; 4];
    server.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"ping");
}

#[tokio::test]
async fn with_older_peers_both_ends_prove_themselves_by_their_certificates() {
    let (node, service) = (Arc::new(SoftTpm::p256(1)), Arc::new(SoftTpm::rsa(2)));
    let any = || any_vtpm(expecting(15, Sha256Digest::ZERO));
    let (server, client) = meet_older(
        now().with_issuer(vtpm(&service)).with_validator(any()),
        now().with_issuer(vtpm(&node)).with_validator(any()),
    )
    .await;
    let (server, client) = (server.unwrap(), client.unwrap());
    assert_eq!(server.peer().unwrap().ak(), Some(&node.public_key()));
    assert!(!server.peer().unwrap().is_channel_bound());
    assert_eq!(client.peer().unwrap().ak(), Some(&service.public_key()));
    assert!(!client.peer().unwrap().is_channel_bound());
}

#[tokio::test]
async fn ends_that_need_not_bind_do_it_with_each_other() {
    let compatible = |end: EndpointBuilder| {
        let judged = end.with_validator(Arc::new(DangerousDummyValidator));
        judged
            .with_issuer(Arc::new(DangerousDummyIssuer))
            .with_channel_binding(ChannelBinding::WherePeerCan)
    };
    let strict = || {
        let judged = dummy_server().with_validator(Arc::new(DangerousDummyValidator));
        judged.with_issuer(Arc::new(DangerousDummyIssuer))
    };
    for (server, client) in [
        (compatible(now()), compatible(now())),
        (compatible(now()), strict()),
        (strict(), compatible(now())),
    ] {
        let (server, client) = meet(server, client).await;
        assert!(server.unwrap().peer().unwrap().is_channel_bound());
        assert!(client.unwrap().peer().unwrap().is_channel_bound());
    }
}

#[tokio::test]
async fn a_client_that_cannot_bind_is_refused_where_that_is_demanded() {
    let (server, client) = (dummy_server().build(), dummy_client().build());
    let (server, client) = (server.unwrap(), client.unwrap());
    let (near, far) = tokio::io::duplex(256 * 1024);
    let connect = connect::with_nonce(&client.0, far, bind::unbound());
    let (server, client) = tokio::join!(server.accept(near), connect);
    assert!(matches!(server, Err(AtlsError::Unbound)));
    assert!(matches!(client, Err(AtlsError::Unbound)));
}

#[tokio::test]
async fn one_sided_the_client_stays_unknown() {
    let (server, client) = meet(dummy_server(), dummy_client()).await;
    assert!(server.unwrap().peer().is_none());
    assert_eq!(client.unwrap().peer().unwrap().variant(), Variant::Dummy);
    let (server, client) = meet_older(dummy_server(), dummy_client()).await;
    assert!(server.unwrap().peer().is_none());
    assert_eq!(client.unwrap().peer().unwrap().variant(), Variant::Dummy);
}

#[tokio::test]
async fn a_server_that_judges_refuses_a_client_that_proves_nothing() {
    let server = dummy_server().with_validator(Arc::new(DangerousDummyValidator));
    let (server, _client) = meet(server, dummy_client()).await;
    assert!(matches!(server, Err(AtlsError::NoCertificate)));
    let server = dummy_server().with_validator(Arc::new(DangerousDummyValidator));
    let (server, _client) = meet_older(server, dummy_client()).await;
    assert!(matches!(server, Err(AtlsError::NoCertificate)));
}

#[tokio::test]
async fn a_client_that_judges_nobody_does_not_connect() {
    let client = now().with_issuer(Arc::new(DangerousDummyIssuer));
    let (_, client) = meet(dummy_server(), client).await;
    assert!(matches!(client, Err(AtlsError::NoValidator)));
}

/// Sends something other than it should.
#[derive(Debug)]
struct Lying(Lie, Mutex<Option<Vec<u8>>>);

#[derive(Debug, PartialEq)]
enum Lie {
    Nonce,
    Replay,
    OtherKey,
    Size,
    Variant,
}

impl Issuer for Lying {
    fn variant(&self) -> Variant {
        match self.0 {
            Lie::Variant => Variant::AwsNitroTpm,
            _ => Variant::Dummy,
        }
    }

    fn issue(&self, user_data: &[u8; 32], nonce: &Nonce) -> Result<Vec<u8>, IssueError> {
        let dummy = DangerousDummyIssuer;
        let mut first = self.1.lock();
        let made = match self.0 {
            Lie::Nonce => dummy.issue(user_data, &Nonce::new([0; 32]))?,
            Lie::OtherKey => dummy.issue(&[0; 32], nonce)?,
            Lie::Size => vec![b' '; MAX_DOCUMENT + 1],
            Lie::Variant => dummy.issue(user_data, nonce)?,
            Lie::Replay => match &*first {
                Some(made) => made.clone(),
                None => dummy.issue(user_data, nonce)?,
            },
        };
        first.get_or_insert_with(|| made.clone());
        Ok(made)
    }
}

fn lying(lie: Lie) -> EndpointBuilder {
    now().with_issuer(Arc::new(Lying(lie, Mutex::new(None))))
}

#[tokio::test]
async fn documents_for_another_nonce_or_key_are_refused() {
    let nonce = |refused| matches!(refused, Err(AtlsError::Document(ValidateError::Nonce)));
    let (_, client) = meet_older(lying(Lie::Nonce), dummy_client()).await;
    assert!(nonce(client));
    let (_, client) = meet_older(lying(Lie::OtherKey), dummy_client()).await;
    assert!(matches!(client, Err(AtlsError::OtherKey)));
    // For this connection, but for another key or by another role.
    let (_, client) = meet(lying(Lie::OtherKey), dummy_client()).await;
    assert!(matches!(client, Err(AtlsError::Relayed)));
    let (_, client) = meet(lying(Lie::Nonce), dummy_client()).await;
    assert!(nonce(client));
}

#[tokio::test]
async fn a_document_that_served_once_is_refused() {
    let server = lying(Lie::Replay).build().unwrap();
    let client = dummy_client().build().unwrap();
    let meet = async || {
        let (near, far) = tokio::io::duplex(256 * 1024);
        tokio::join!(server.accept(near), client.connect(far)).1
    };
    assert!(meet().await.is_ok());
    let refused = meet().await;
    assert!(matches!(refused, Err(AtlsError::Document(ValidateError::Nonce))));
}

#[tokio::test]
async fn a_client_whose_evidence_is_refused_finds_the_connection_closed() {
    let server = dummy_server().with_validator(Arc::new(DangerousDummyValidator));
    let client = lying(Lie::OtherKey).with_validator(Arc::new(DangerousDummyValidator));
    let (server, client) = meet(server, client).await;
    assert!(matches!(server, Err(AtlsError::Relayed)), "{server:?}");
    drop(server);
    let read = client.unwrap().read(&mut [0; 1]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn nobody_gets_the_document_of_a_client_that_did_not_judge_it() {
    let thief = dummy_server().with_validator(Arc::new(DangerousDummyValidator));
    let thief = thief.build().unwrap().0;
    // It asks for a document in the client's certificate, and has none in its own.
    let asking = verify::PeerVerifier::judging(Arc::clone(&thief), Nonce::new([7; 32]), true);
    let bare = config::OneCertificate(Arc::clone(&thief.bound.certificate));
    let h2 = bind::unbound();
    let config = config::server(&thief.provider, Some(asking), Arc::new(bare), h2).unwrap();
    let client = dummy_client()
        .with_issuer(Arc::new(DangerousDummyIssuer))
        .with_channel_binding(ChannelBinding::WherePeerCan);
    let client = client.build().unwrap();
    let (near, far) = tokio::io::duplex(256 * 1024);
    let accepting = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (sent, refused) = tokio::join!(accepting.accept(near), client.connect(far));
    assert!(sent.is_err(), "the client sent its certificate");
    let Err(AtlsError::Certificate(PeerCertificateError::NoDocument(_))) = refused else {
        panic!("{refused:?}");
    };
}

/// Keeps the document that a peer sends to it.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<u8>>);

impl Validator for Kept {
    fn variant(&self) -> Variant {
        Variant::QemuVtpm
    }

    fn validate(
        &self,
        document: &[u8],
        _nonce: &Nonce,
        _signatures: &dyn tec_tpm::quote::SignatureCheck,
    ) -> Result<Validated, ValidateError> {
        *self.0.lock() = document.to_vec();
        Err(ValidateError::Nonce)
    }
}

/// Sends a document as evidence over a connection.
async fn pass_on(document: &[u8], to: &mut (impl AsyncWrite + Unpin)) {
    let identifier = Variant::QemuVtpm.object_identifier();
    let identifier = identifier.as_bytes();
    let length = u8::try_from(identifier.len()).unwrap();
    let frame = [&[length], identifier, document].concat();
    to.write_u32(frame.len().try_into().unwrap()).await.unwrap();
    to.write_all(&frame).await.unwrap();
    to.flush().await.unwrap();
}

#[tokio::test]
async fn who_stole_the_key_of_a_certificate_cannot_relay_evidence() {
    let judging = || now().with_validator(any_vtpm(Measurements::default()));
    let service = Arc::new(SoftTpm::p256(1));
    let service = judging().with_issuer(vtpm(&service)).build().unwrap();
    // It even believes the thief's own evidence, so it sends its evidence to the thief.
    let node = dummy_client().with_issuer(vtpm(&Arc::new(SoftTpm::p256(2)))).build().unwrap();

    let stolen = Arc::clone(&node.0.bound.client);
    let thief = async {
        let (near, far) = tokio::io::duplex(256 * 1024);
        let (own, victim) = tokio::io::duplex(256 * 1024);
        let name = "thief.invalid".try_into().unwrap();
        let to_service = async {
            let connector = tokio_rustls::TlsConnector::from(stolen);
            connector.connect(name, far).await.unwrap()
        };
        let kept = Arc::new(Kept::default());
        let trap = dummy_server().with_validator(Arc::clone(&kept) as Arc<_>).build().unwrap();
        let relay = async {
            let (mut up, _) = tokio::join!(to_service, trap.accept(own));
            let document = kept.0.lock().clone();
            pass_on(&document, &mut up).await;
        };
        tokio::join!(service.accept(near), relay, node.connect(victim))
    };
    let (refused, (), sent) = Box::pin(thief).await;
    assert!(sent.is_ok());
    let Err(AtlsError::Document(ValidateError::Nonce)) = refused else {
        panic!("{refused:?}");
    };
}

#[tokio::test]
async fn peers_without_a_known_document_are_refused() {
    let nothing = || now().with_validator(Arc::new(DangerousDummyValidator));
    let client = || dummy_client().with_issuer(Arc::new(DangerousDummyIssuer));
    let (_, refused) = meet(nothing(), client()).await;
    assert!(matches!(refused, Err(AtlsError::NoEvidence)), "{refused:?}");
    let (_, refused) = meet(lying(Lie::Variant), client()).await;
    let Err(AtlsError::OtherVariant { found }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(found.as_deref(), Some(Variant::AwsNitroTpm.oid()));

    let (_, refused) = meet_older(nothing(), client()).await;
    let Err(AtlsError::Certificate(PeerCertificateError::NoDocument(found))) = refused else {
        panic!("{refused:?}");
    };
    assert!(found.is_empty());
    let (_, refused) = meet_older(lying(Lie::Variant), client()).await;
    let Err(AtlsError::Certificate(PeerCertificateError::NoDocument(found))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(found, [Variant::AwsNitroTpm.oid()]);
}

#[tokio::test]
async fn certificates_of_another_time_are_refused() {
    for seconds in [-3 * 3600, 3 * 3600] {
        let server = at(seconds).with_issuer(Arc::new(DangerousDummyIssuer));
        let (_, client) = meet_older(server, dummy_client()).await;
        assert!(matches!(
            client,
            Err(AtlsError::Certificate(PeerCertificateError::Expired { .. }))
        ));
    }
}

#[tokio::test]
async fn a_document_that_fits_no_handshake_is_not_sent() {
    let (server, _) = meet(lying(Lie::Size), dummy_client()).await;
    assert!(matches!(
        server,
        Err(AtlsError::Issue(IssueError::TooLarge(length))) if length == MAX_DOCUMENT + 1
    ));
}

#[test]
fn oversized_and_foreign_certificates_are_refused() {
    let provider = ring::default_provider();
    let check = |der: &[u8]| certificate::PeerCertificate::check(der, SoftSnp::now(), &provider);
    let large = vec![0x30; MAX_DOCUMENT + 1025];
    assert!(matches!(check(&large), Err(PeerCertificateError::TooLarge(_))));
    assert!(matches!(check(&[0x30, 0]), Err(PeerCertificateError::Malformed(_))));
    let vcek = SoftSnp::vcek(tec_tpm::snp::Product::Milan, 1).certificate();
    assert!(matches!(check(&vcek), Err(PeerCertificateError::Signature)));
    let made = dummy_server().build().unwrap().0.certify(Some(&Nonce::new([7; 32])));
    let good = made.unwrap().cert[0].to_vec();
    assert!(check(&good).is_ok());
    let mut changed = good.clone();
    // The last byte of the document, which the signature covers.
    let at = good.windows(4).position(|part| part == b"Nonc").unwrap();
    changed[at] ^= 1;
    assert!(matches!(check(&changed), Err(PeerCertificateError::Signature)));
}

#[tokio::test]
async fn all_registers_that_differ_are_told() {
    let tpm = Arc::new(SoftTpm::p256(1));
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    let wanted = expecting(15, Sha256Digest::of("cluster"));
    let zero = Expectation { expected: Sha256Digest::ZERO, severity: Severity::Enforce };
    let wanted = wanted.with(PcrIndex::BOOT_MANAGER, zero);
    let client = now().with_validator(any_vtpm(wanted));
    let (_, client) = meet(now().with_issuer(vtpm(&tpm)), client).await;
    let Err(AtlsError::Document(ValidateError::Measurements(all))) = client else {
        panic!("{client:?}");
    };
    assert_eq!(all.all().len(), 2);
}

#[tokio::test]
async fn only_pinned_keys_pass_where_keys_are_pinned() {
    let tpm = Arc::new(SoftTpm::p256(1));
    let pinned = |key: &SoftTpm| {
        let trust = PinnedAks::new([key.public_key().fingerprint()]);
        let live = Arc::new(LiveMeasurements::default());
        now().with_validator(Arc::new(VtpmValidator::new(Variant::QemuVtpm, Arc::new(trust), live)))
    };
    let (_, client) = meet(now().with_issuer(vtpm(&tpm)), pinned(&tpm)).await;
    assert!(client.is_ok());
    let other = SoftTpm::p256(2);
    let (_, client) = meet(now().with_issuer(vtpm(&tpm)), pinned(&other)).await;
    assert!(matches!(client, Err(AtlsError::Document(ValidateError::Untrusted { .. }))));
}

#[derive(Debug)]
struct SoftSource(SoftAzure, Vec<u8>);

impl HclSource for SoftSource {
    fn hcl_report(&self) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.hcl_report(&self.0.runtime_json(&[])))
    }

    fn vcek(&self) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.1.clone())
    }
}

async fn azure(
    machine: SoftAzure,
    quoter: Arc<SoftTpm>,
    vcek: Vec<u8>,
) -> Result<Stream, AtlsError> {
    let info = Arc::new(SoftSource(machine, vcek));
    let issuer = VtpmIssuer::new(Variant::AzureSevSnp, quoter).with_info(info);
    let clock = Arc::new(ManualClock::new(SoftSnp::now()));
    let roots = SoftSnp::roots().clone();
    let trust = AzureSnpAk::with_roots(clock, tec_tpm::snp::Policy::new(), roots);
    let live = Arc::new(LiveMeasurements::default());
    let validator = VtpmValidator::new(Variant::AzureSevSnp, Arc::new(trust), live);
    let client = now().with_validator(Arc::new(validator));
    meet(now().with_issuer(Arc::new(issuer)), client).await.1
}

#[tokio::test]
async fn the_key_of_an_azure_machine_is_vouched_for_by_its_processor() {
    // Keys are derived from the seed: this is the machine's own TPM.
    let (machine, tpm) = (SoftAzure::new(3), Arc::new(SoftTpm::rsa(3)));
    let vcek = machine.chip().certificate();
    let stream = azure(machine, Arc::clone(&tpm), vcek.clone()).await.unwrap();
    assert_eq!(stream.peer().unwrap().ak(), Some(&tpm.public_key()));

    let other = azure(SoftAzure::new(3), Arc::new(SoftTpm::p256(9)), vcek).await;
    assert!(matches!(other, Err(AtlsError::Document(ValidateError::Untrusted { .. }))));
    let wrong = SoftSnp::vcek(tec_tpm::snp::Product::Milan, 8).certificate();
    let other = azure(SoftAzure::new(3), tpm, wrong).await;
    assert!(matches!(other, Err(AtlsError::Document(ValidateError::Untrusted { .. }))));
}

#[test]
fn a_second_quote_of_the_compared_bank_is_refused() {
    let tpm = SoftTpm::p256(1);
    let issuer = vtpm(&Arc::new(tpm));
    let made = issuer.issue(&[1; 32], &Nonce::new([2; 32])).unwrap();
    let mut value: serde_json::Value = serde_json::from_slice(&made).unwrap();
    let validator = any_vtpm(Measurements::default());
    let validate = |value: &serde_json::Value| {
        validator.validate(
            value.to_string().as_bytes(),
            &Nonce::new([2; 32]),
            &tec_tpm::quote::PureRust,
        )
    };
    assert_eq!(validate(&value).unwrap().user_data, [1; 32]);

    // Other banks are ignored, however good they are: their values are not compared.
    let quotes = value["Attestation"]["quotes"].as_array_mut().unwrap();
    let mut other = quotes[0].clone();
    other["pcrs"]["hash"] = 12.into();
    quotes.insert(0, other);
    assert!(validate(&value).is_ok());
    let quotes = value["Attestation"]["quotes"].as_array_mut().unwrap();
    quotes[0]["pcrs"]["hash"] = 11.into();
    assert!(matches!(validate(&value), Err(ValidateError::Malformed { at: "quotes", .. })));
    let quotes = value["Attestation"]["quotes"].as_array_mut().unwrap();
    quotes.remove(0);
    quotes[0]["pcrs"]["pcrs"]["15"] = serde_json::json!("/".repeat(42) + "8=");
    assert!(matches!(validate(&value), Err(ValidateError::Quote(_))));
}

#[tokio::test]
async fn a_silent_client_is_given_up() {
    let server = dummy_server().with_handshake_limit(Duration::from_millis(20)).build().unwrap();
    let (near, _far) = tokio::io::duplex(1024);
    assert!(matches!(server.accept(near).await, Err(AtlsError::TimedOut(_))));
}

#[test]
fn certificates_can_be_made_after_2049() {
    let clock = ManualClock::new(Timestamp::from_unix_seconds(2_600_000_000));
    let builder = Endpoint::builder(
        Arc::new(ring::default_provider()),
        Arc::new(clock),
        Arc::new(SeededEntropy::new(1)),
    );
    let endpoint = builder.with_issuer(Arc::new(DangerousDummyIssuer)).build();
    let made = endpoint.unwrap().0.certify(Some(&Nonce::new([0; 32]))).unwrap();
    let now = Timestamp::from_unix_seconds(2_600_000_000);
    let provider = ring::default_provider();
    assert!(certificate::PeerCertificate::check(&made.cert[0], now, &provider).is_ok());
}

/// Counts calls, and blocks until the other end of the channel is gone.
#[derive(Debug)]
struct Slow(AtomicU64, Mutex<std::sync::mpsc::Receiver<()>>);

impl Issuer for Slow {
    fn variant(&self) -> Variant {
        Variant::Dummy
    }

    fn issue(&self, user_data: &[u8; 32], nonce: &Nonce) -> Result<Vec<u8>, IssueError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let end = self.1.lock();
        assert!(end.recv().is_err());
        DangerousDummyIssuer.issue(user_data, nonce)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_quote_is_made_for_those_who_went_away() {
    let (tpm, end) = std::sync::mpsc::channel();
    let slow = Arc::new(Slow(AtomicU64::new(0), Mutex::new(end)));
    let server = now()
        .with_issuer(Arc::clone(&slow) as Arc<_>)
        .with_handshake_limit(Duration::from_millis(200));
    let server = server.build().unwrap();
    let client = dummy_client().build().unwrap();
    let mut meetings = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (server, client) = (server.clone(), client.clone());
        let (near, far) = tokio::io::duplex(64 * 1024);
        meetings.spawn(async move { tokio::join!(server.accept(near), client.connect(far)).0 });
    }
    while let Some(ended) = meetings.join_next().await {
        let ended = ended.unwrap();
        assert!(matches!(ended, Err(AtlsError::TimedOut(_))), "{ended:?}");
    }
    drop(tpm);
    // All turns are free again only when the current holders have finished.
    let all = server.0.turns.acquire_many(2).await.unwrap();
    assert_eq!(slow.0.load(Ordering::SeqCst), 2);
    drop(all);
}
