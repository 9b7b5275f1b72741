use std::sync::Mutex;

use tec_core::testing::{SeededEntropy, sample};

use super::*;

/// A server that answers from a list, and records the requests.
#[derive(Debug)]
struct Scripted {
    replies: Mutex<Vec<(u16, &'static str)>>,
    seen: Mutex<Vec<(Target, Value)>>,
}

impl Scripted {
    fn new(replies: &[(u16, &'static str)]) -> Self {
        Self {
            replies: Mutex::new(replies.iter().rev().copied().collect()),
            seen: Mutex::new(Vec::new()),
        }
    }

    fn seen(&self) -> Vec<(Target, Value)> {
        self.seen.lock().unwrap().clone()
    }
}

#[async_trait]
impl Registrar for Scripted {
    async fn put(&self, target: Target, body: &Value) -> Result<Reply, RegisterError> {
        self.seen.lock().unwrap().push((target, body.clone()));
        match self.replies.lock().unwrap().pop() {
            Some((status, body)) => Ok(Reply { status, body: body.as_bytes().to_vec() }),
            None => Err(RegisterError::Unanswered {
                url: "http://a".to_owned(),
                code: Code::ServerUnreachable,
                source: "scripted".into(),
            }),
        }
    }
}

#[derive(Debug)]
struct FakeTpm;

impl Activator for FakeTpm {
    fn activate(&self, credential: &Credential) -> Result<SecretBytes, ActivateError> {
        if credential.id_object == [1] {
            Ok(SecretBytes::new(vec![9; 32]))
        } else {
            Err(ActivateError::new("another TPM"))
        }
    }
}

fn identity() -> AkIdentity {
    AkIdentity {
        public: sample::public_key(1),
        tpm_public: Some(vec![1, 2, 3]),
        ek: Some(EkOffer::new(sample::public_key(2), Some(vec![4]))),
    }
}

async fn run(server: &Scripted, retries: Option<NumRetries>) -> Result<(), RegisterError> {
    let ports =
        RegisterPorts { registrar: server, activator: &FakeTpm, entropy: &SeededEntropy::new(1) };
    register(ports, &identity(), sample::machine_id(1), retries).await
}

const CREATED: (u16, &str) = (201, r#"{"status":"success"}"#);
const CHALLENGE: (u16, &str) = (
    202,
    r#"{"status":"challenge","challenge":"ab","id_object":"AQ==","encrypted_secret":"Ag=="}"#,
);

#[tokio::test(start_paused = true)]
async fn the_full_body_carries_what_the_tpm_shows() {
    let server = Scripted::new(&[CREATED]);
    run(&server, None).await.unwrap();
    let seen = server.seen();
    let [(Target::Registration, body)] = seen.as_slice() else {
        panic!("{seen:?}");
    };
    assert_eq!(body["public_key"], sample::public_key(1).to_pem());
    assert_eq!(body["uuid"], sample::machine_id(1).to_string());
    assert_eq!(body["tpm_public"], "AQID");
    assert_eq!(body["ek_public"], sample::public_key(2).to_pem());
    assert_eq!(body["ek_certificate"], "BA==");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_only_key_and_uuid_gets_the_short_body() {
    let server = Scripted::new(&[(422, "unknown field `tpm_public`"), CREATED]);
    run(&server, None).await.unwrap();
    let (_, body) = server.seen().pop().unwrap();
    let names: Vec<_> = body.as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["public_key", "uuid"]);
}

#[tokio::test(start_paused = true)]
async fn a_short_body_that_is_refused_too_ends_it() {
    let server = Scripted::new(&[(422, ""), (422, ""), CREATED]);
    let error = run(&server, None).await.unwrap_err();
    assert_eq!(error.code(), Code::RegisterMalformed);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_challenge_is_answered_by_the_tpm() {
    let server = Scripted::new(&[CHALLENGE, CREATED]);
    run(&server, None).await.unwrap();
    let (target, body) = server.seen().pop().unwrap();
    assert_eq!(target, Target::Proof);
    assert_eq!(body["challenge"], "ab");
    assert_eq!(body["secret"], STANDARD.encode([9; 32]));
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_challenge_is_asked_for_again_but_not_for_ever() {
    let forgotten = (403, r#"{"code":"TEC-R423"}"#);
    let server = Scripted::new(&[CHALLENGE, forgotten, CHALLENGE, CREATED]);
    run(&server, None).await.unwrap();
    let pairs = [CHALLENGE, forgotten].repeat(5);
    let server = Scripted::new(&pairs);
    let error = run(&server, None).await.unwrap_err();
    assert_eq!(error.code(), Code::RegisterEkProof);
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_challenge_for_another_tpm_ends_it() {
    let body =
        r#"{"status":"challenge","challenge":"ab","id_object":"Bw==","encrypted_secret":"Ag=="}"#;
    let server = Scripted::new(&[(202, body)]);
    let error = run(&server, None).await.unwrap_err();
    assert!(matches!(error, RegisterError::Activate(_)));
    assert_eq!(error.code(), Code::NodeTpm);
}

#[tokio::test(start_paused = true)]
async fn approval_is_waited_for_and_then_found() {
    let pending = (202, r#"{"status":"pending"}"#);
    let mut replies = vec![pending; 50];
    replies.push((409, r#"{"message":"Public key already registered"}"#));
    run(&Scripted::new(&replies), None).await.unwrap();
    let server = Scripted::new(&vec![pending; 200]);
    let error = run(&server, None).await.unwrap_err();
    assert!(matches!(error, RegisterError::Pending));
    assert_eq!(server.seen().len(), 130);
}

#[tokio::test(start_paused = true)]
async fn outages_are_outwaited_as_often_as_configured() {
    let busy = (503, "");
    run(&Scripted::new(&[busy, busy, CREATED]), None).await.unwrap();
    let server = Scripted::new(&[]);
    let retries = serde_json::from_str("3").unwrap();
    let error = run(&server, Some(retries)).await.unwrap_err();
    assert_eq!(error.code(), Code::ServerUnreachable);
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final() {
    let server = Scripted::new(&[(409, r#"{"code":"TEC-R410"}"#), CREATED]);
    let error = run(&server, Some(NumRetries::Infinity)).await.unwrap_err();
    assert_eq!(error.code(), Code::RegisterMachineTaken);
    assert_eq!(server.seen().len(), 1);
}
