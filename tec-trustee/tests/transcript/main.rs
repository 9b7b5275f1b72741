//! The protocol, byte for byte: transcripts that are played in both roles. See README.md.
#![cfg(all(feature = "kbs", feature = "rcar"))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::format_push_string,
    reason = "helpers of tests fail by panicking"
)]

mod http;
mod template;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha384};
use tec_core::attest::{VerifiedEvidence, VerifyError};
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::port::{EntropyRng, EvidenceRequest, KeyBroker, PolicySlot, Verifier};
use tec_core::secret::SecretBytes;
use tec_core::testing::{ManualClock, SeededEntropy, sample};
use tec_trustee::client::{Deadlines, RcarClient, RcarError, SampleAttester};
use tec_trustee::jwe::{Curve, EcPrivateKey, Jwe, TeePubKey, encrypt};
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::token::TokenSigner;
use tokio::io::BufStream;
use tokio::net::{TcpListener, TcpStream};

use self::http::Message;
use self::template::{Values, matches};

const RELEASED: &str = include_str!("released.http");
const BEARER: &str = include_str!("bearer.http");
const DENIED: &str = include_str!("denied.http");
const RENEWED: &str = include_str!("renewed.http");
const REFUSED: &str = include_str!("refused.http");
const PATH: &str = "default/7c9e6679-7425-40de-944b-e07fc1f90ae7/root";
const SECRET: &[u8] = br#"{"key_type":"oct","key":"01234567890123456789012345678901"}"#;

/// Requests with their answers.
fn exchanges(transcript: &str) -> Vec<(Message, Message)> {
    let mut messages = Vec::new();
    for part in transcript.split("\n>>> ").skip(1) {
        let (request, answer) = part.split_once("\n<<< ").unwrap();
        let message = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            Message::parse(lines[0], &lines[1..])
        };
        messages.push((message(request), message(answer)));
    }
    messages
}

/// Report data computed manually: canonical JSON has no white space, and its members are sorted (KBS
/// attestation protocol 0.4.0). Sample evidence carries all 48 bytes (Trustee, verifiers).
fn report_data(nonce: &str, x: &str, y: &str) -> String {
    let canonical = format!(
        r#"{{"additional-evidence":"","nonce":"{nonce}","tee-pubkey":{{"alg":"ECDH-ES+A256KW","crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}}}"#
    );
    STANDARD.encode(Sha384::digest(canonical))
}

/// The values that a server chooses.
fn server_values() -> Values {
    let values = [
        ("session", "0123456789abcdef0123456789abcdef"),
        ("new_session", "fedcba9876543210fedcba9876543210"),
        ("expires", "Thu, 01 Jan 2026 00:05:00 GMT"),
        ("nonce", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
        ("token", "e30.e30.AAAA"),
        ("detail", "policy denied"),
    ];
    values.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Encrypts the secret to the key that the client named.
fn seal(values: &mut Values) {
    let key = format!(
        r#"{{"kty":"EC","crv":"P-256","alg":"ECDH-ES+A256KW","x":"{}","y":"{}"}}"#,
        values["x"], values["y"]
    );
    let key: TeePubKey = serde_json::from_str(&key).unwrap();
    let entropy = SeededEntropy::new(3);
    let secret = SecretBytes::new(SECRET.to_vec());
    let jwe = encrypt(&key, &secret, &mut EntropyRng::new(&entropy)).unwrap();
    let jwe: Values = serde_json::from_value(serde_json::to_value(jwe).unwrap()).unwrap();
    values.extend(jwe);
}

/// Serves a transcript on any number of connections; returns the values of the placeholders.
async fn serve(listener: TcpListener, transcript: &str) -> Values {
    let mut values = server_values();
    let mut left = exchanges(transcript).into_iter();
    let mut next = left.next();
    while next.is_some() {
        let mut stream = BufStream::new(listener.accept().await.unwrap().0);
        while let Some((request, answer)) = &next {
            let Some(heard) = http::read(&mut stream).await else {
                break;
            };
            let checked = request.check(&heard, &mut values);
            checked.unwrap_or_else(|error| panic!("{}: {error}", request.start));
            if answer.body.contains("{{protected}}") {
                seal(&mut values);
            }
            http::write(&mut stream, answer, &values).await;
            next = left.next();
        }
    }
    values
}

/// Our client, against the transcript. It must send all requests in it, and nothing more.
async fn play_client(transcript: &str, path: &str) -> (Result<SecretBytes, RcarError>, Values) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let endpoint = Endpoint::new(url.parse().unwrap(), "");
    let deadlines = Deadlines::new(Duration::from_secs(10), Duration::from_secs(10));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let entropy = Arc::new(SeededEntropy::new(1));
    let client = RcarClient::new(&[endpoint], deadlines, &provider, entropy).unwrap();
    let path: ResourcePath = tec_trustee::wire::parse_resource(path).unwrap();
    let attester = SampleAttester::default();
    tokio::join!(client.fetch(&path, &attester), serve(listener, transcript))
}

/// There is only sample evidence here.
#[derive(Debug)]
struct NoVerifier;

#[async_trait::async_trait]
impl Verifier for NoVerifier {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        Err(VerifyError::Unsupported(request.tee))
    }
}

/// Stores the one resource, and a policy that releases it to everyone.
async fn feed(broker: &dyn KeyBroker) {
    let path: ResourcePath = PATH.parse().unwrap();
    let secret = SecretBytes::new(SECRET.to_vec());
    broker.put(&path, &secret).await.unwrap();
    let one = format!(
        "package policy\nimport rego.v1\nallow if concat(\"/\", data[\"resource-path\"]) == {PATH:?}"
    );
    broker.set_policy(PolicySlot::Resource, &one).await.unwrap();
}

/// Our broker.
async fn broker() -> String {
    let backend = Arc::new(MemoryBackend::new());
    feed(&*backend).await;
    let signer = TokenSigner::random(&mut EntropyRng::new(&SeededEntropy::new(5)));
    let config = KbsConfig::new(
        backend,
        Arc::new(NoVerifier),
        signer,
        Arc::new(ManualClock::new(sample::time(0))),
        Arc::new(SeededEntropy::new(6)),
    );
    let router = Kbs::new(config.dangerous_accept_sample()).router();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = async move { axum::serve(listener, router).await.unwrap() };
    spawn(task);
    address
}

#[expect(clippy::disallowed_methods, reason = "a test's server ends with its runtime")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::task::spawn(task);
}

/// The transcript, against our broker.
async fn play_broker(transcript: &str) -> (EcPrivateKey, Values) {
    play(transcript, &broker().await).await
}

/// The transcript, against the broker at an address.
async fn play(transcript: &str, address: &str) -> (EcPrivateKey, Values) {
    let mut stream = BufStream::new(TcpStream::connect(address).await.unwrap());
    let key = EcPrivateKey::generate(Curve::P256, &mut EntropyRng::new(&SeededEntropy::new(9)));
    let public = serde_json::to_value(key.public()).unwrap();
    let mut values = Values::new();
    for name in ["x", "y"] {
        values.insert(name.to_owned(), public[name].as_str().unwrap().to_owned());
    }
    for (request, answer) in exchanges(transcript) {
        if request.body.contains("{{report_data}}") {
            let bound = report_data(&values["nonce"], &values["x"], &values["y"]);
            values.insert("report_data".to_owned(), bound);
        }
        http::write(&mut stream, &request, &values).await;
        let heard = http::read(&mut stream).await.unwrap();
        let checked = answer.check(&heard, &mut values);
        checked.unwrap_or_else(|error| panic!("{}: {error}\n{heard:?}", request.start));
    }
    (key, values)
}

#[tokio::test]
async fn our_client_says_what_the_transcript_says_and_opens_the_resource() {
    for transcript in [RELEASED, RENEWED] {
        for path in [PATH.to_owned(), format!("kbs:///{PATH}"), format!("/{PATH}")] {
            let (secret, values) = play_client(transcript, &path).await;
            assert_eq!(secret.unwrap().expose("compare"), SECRET);
            let bound = report_data(&values["nonce"], &values["x"], &values["y"]);
            assert_eq!(values["report_data"], bound);
        }
    }
}

#[tokio::test]
async fn our_client_takes_a_new_key_for_a_new_session() {
    let (_, values) = play_client(RENEWED, PATH).await;
    assert_ne!(values["old_x"], values["x"]);
}

#[tokio::test]
async fn our_broker_answers_as_the_transcript_does_and_its_resource_opens() {
    let (key, values) = play_broker(RELEASED).await;
    let header = URL_SAFE_NO_PAD.decode(&values["protected"]).unwrap();
    // The order survives programs that rewrite the header (KBS attestation protocol 0.4.0).
    let form = r#"{"alg":"ECDH-ES+A256KW","enc":"A256GCM","epk":{"crv":"P-256","kty":"EC","x":"{{epk_x}}","y":"{{epk_y}}"}}"#;
    let mut found = Values::new();
    matches(form, std::str::from_utf8(&header).unwrap(), &mut found).unwrap();
    assert_eq!((found["epk_x"].len(), found["epk_y"].len()), (43, 43));
    let jwe: Jwe = serde_json::from_value(serde_json::to_value(&values).unwrap()).unwrap();
    assert_eq!(key.decrypt(&jwe).unwrap().expose("compare"), SECRET);
    let session = &values["session"];
    let is_hexadecimal = session.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    assert!(session.len() == 32 && is_hexadecimal, "{session}");
    assert_eq!(STANDARD.decode(&values["nonce"]).unwrap().len(), 32);
}

#[tokio::test]
async fn our_broker_takes_the_token_in_place_of_the_cookie() {
    let (key, values) = play_broker(BEARER).await;
    let jwe: Jwe = serde_json::from_value(serde_json::to_value(&values).unwrap()).unwrap();
    assert_eq!(key.decrypt(&jwe).unwrap().expose("compare"), SECRET);
}

#[tokio::test]
async fn our_broker_denies_and_refuses_as_the_transcripts_do() {
    play_broker(DENIED).await;
    play_broker(REFUSED).await;
}

/// The same against a test Trustee v0.21: TRUSTEE_URL (plain HTTP), TRUSTEE_ADMIN_KEY (file).
#[cfg(feature = "publish")]
#[tokio::test]
#[ignore = "needs trustee-url: set TRUSTEE_URL and TRUSTEE_ADMIN_KEY"]
async fn a_real_trustee_answers_as_the_transcripts_do() {
    use tec_core::time::Timestamp;
    use tec_trustee::publish::{AdminApi, AdminKey};

    let variable = |name: &str| std::env::var_os(name).map(|text| text.into_string().unwrap());
    let (url, key) = (variable("TRUSTEE_URL").unwrap(), variable("TRUSTEE_ADMIN_KEY").unwrap());
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let endpoint = Endpoint::new(url.parse().unwrap(), "");
    let key = AdminKey::from_pem(&SecretBytes::new(std::fs::read(key).unwrap())).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs().try_into().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(now)));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let deadlines = Deadlines::default();
    let api = AdminApi::dangerous_plain_http(&endpoint, key, clock, deadlines, &provider);
    feed(&api.unwrap()).await;
    // Only our broker also states the lifetime of a cookie in seconds, drops an empty segment, and accepts
    // the scheme in any case (RFC 9110, section 11.1).
    let ours = [("; Max-Age=300", ""), ("resource//", "resource/"), (": bearer", ": Bearer")];
    let theirs = |transcript: &str| {
        ours.iter().fold(transcript.to_owned(), |text, (ours, theirs)| text.replace(ours, theirs))
    };
    for transcript in [RELEASED, BEARER] {
        let (key, values) = play(&theirs(transcript), &address).await;
        let jwe: Jwe = serde_json::from_value(serde_json::to_value(&values).unwrap()).unwrap();
        assert_eq!(key.decrypt(&jwe).unwrap().expose("compare"), SECRET);
    }
    for transcript in [DENIED, REFUSED] {
        play(&theirs(transcript), &address).await;
    }
}
