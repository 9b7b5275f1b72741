//! Races, and the owner of a request with contradictory credentials.

use async_trait::async_trait;
use tec_core::attest::{VerifiedEvidence, VerifyError};
use tec_core::machine::MachineChange;
use tec_core::port::{EvidenceRequest, Verifier};
use tokio::sync::Notify;

use super::*;
use crate::testing::disguised;

/// Verifies when told to.
#[derive(Debug, Default)]
struct Slow {
    came: Notify,
    go: Notify,
}

#[async_trait]
impl Verifier for Slow {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        self.came.notify_one();
        self.go.notified().await;
        FakeVerifier.verify(request).await
    }
}

/// A world whose verifier waits; something is done in the meantime; returns the answer to the evidence.
async fn attest_while(
    world: &mut World,
    meanwhile: impl AsyncFnOnce(&World, Ask),
) -> (String, Answer) {
    let slow = Arc::new(Slow::default());
    let backend = Arc::new(live_of(world));
    let mut config = config(backend, &world.clock);
    config.verifier = Arc::clone(&slow) as _;
    world.kbs = Kbs::new(config);
    let (cookie, nonce) = auth(&world.kbs).await;
    let body = request(&nonce, &world.attester).await.to_string();
    let attest = post("attest", &body).cookie(&cookie).of(&world.kbs);
    let again = post("attest", &body).cookie(&cookie);
    let meanwhile = async {
        slow.came.notified().await;
        meanwhile(world, again).await;
        slow.go.notify_one();
    };
    let (answer, ()) = tokio::join!(attest, meanwhile);
    (cookie, answer)
}

#[tokio::test]
async fn of_two_attestations_of_one_session_one_counts() {
    let mut world = World::new().await;
    let (cookie, answer) = attest_while(&mut world, async |world, again| {
        let second = again.of(&world.kbs).await;
        second.is_error(401, &ErrorKind::AttestationError);
        assert_eq!(second.error().detail, "session not found");
    })
    .await;
    assert_eq!(answer.status, StatusCode::OK);
    let answer = get(&own_path()).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::OK);
    let attempts: &dyn AttemptLog = &*world.registry;
    assert_eq!(attempts.latest(None, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_revocation_while_evidence_is_verified_counts() {
    let mut world = World::new().await;
    let (cookie, answer) = attest_while(&mut world, async |world, _| world.revoke(1).await).await;
    denied_after(&world, &cookie, Code::MachineUnknown).await;
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let answer = get(&own_path()).bearer(&token).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
}

#[tokio::test]
async fn a_quarantined_machine_gets_no_key_whatever_it_booted() {
    let world = World::new().await;
    let change = async |change| {
        let machines: &dyn MachineRegistry = &*world.registry;
        let machine = sample::machine_id(1);
        machines.change(&machine, change, &sample::line()).await.unwrap();
    };
    let before = attest(&world).await;
    change(MachineChange::Quarantine).await;
    denied_after(&world, &before, Code::MachineQuarantined).await;
    for image in [1, 2] {
        let (cookie, answer) = attest_with(&world, &FakeAttester::new(1, image)).await;
        denied_after(&world, &cookie, Code::MachineQuarantined).await;
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        let answer = get(&own_path()).bearer(&token).of(&world.kbs).await;
        answer.is_error(401, &ErrorKind::PolicyDeny);
    }
    change(MachineChange::Release).await;
    let cookie = attest(&world).await;
    assert_eq!(get(&own_path()).cookie(&cookie).of(&world.kbs).await.status, StatusCode::OK);
}

#[tokio::test]
async fn nobody_is_attested_while_evidence_is_verified() {
    let mut world = World::new().await;
    let (..) = attest_while(&mut world, async |world, again| {
        let cookie = again.cookie.unwrap();
        let early = get(&own_path()).cookie(&cookie).of(&world.kbs).await;
        early.is_error(401, &ErrorKind::TokenNotFound);
    })
    .await;
}

#[tokio::test]
async fn cookie_and_token_of_two_machines_open_what_one_of_them_may() {
    let world = World::new().await;
    let mut sessions = Vec::new();
    for number in [1, 2] {
        let (cookie, answer) = attest_with(&world, &FakeAttester::new(number, 1)).await;
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        sessions.push((cookie, token));
    }
    let path = |number| format!("resource/{}", sample::secret_path(number));
    let (one, two) = (&sessions[0], &sessions[1]);
    for (cookie, token, own, foreign) in [(&one.0, &two.1, 1, 2), (&two.0, &one.1, 2, 1)] {
        let answer = get(&path(own)).cookie(cookie).bearer(token);
        assert_eq!(answer.of(&world.kbs).await.status, StatusCode::OK);
        let answer = get(&path(foreign)).cookie(cookie).bearer(token);
        let answer = answer.of(&world.kbs).await;
        answer.is_error(401, &ErrorKind::PolicyDeny);
    }
    // Two cookies make one session as well, whichever it is.
    let both = format!("{}; kbs-session-id={}", one.0, two.0);
    let answers = [1, 2].map(|number| get(&path(number)).cookie(&both));
    let mut opened = 0;
    for ask in answers {
        opened += usize::from(ask.of(&world.kbs).await.status == StatusCode::OK);
    }
    assert_eq!(opened, 1);
}

#[tokio::test]
async fn a_session_that_the_client_chose_is_none() {
    let world = World::new().await;
    let chosen = "ffffffffffffffffffffffffffffffff";
    let answer = post("auth", AUTH).cookie(chosen).of(&world.kbs).await;
    assert!(!answer.cookie.as_ref().unwrap().contains(chosen));
    let nonce = answer.json()["nonce"].as_str().unwrap().to_owned();
    let body = request(&nonce, &world.attester).await.to_string();
    let answer = post("attest", body).cookie(chosen).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::AttestationError);
}

#[tokio::test]
async fn no_spelling_of_a_path_opens_what_is_not_its_own() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    let (own, other) = (sample::machine_id(1), sample::machine_id(2));
    for path in disguised(own, other) {
        let answer = get(&format!("resource/{path}")).cookie(&cookie);
        let status = answer.of(&world.kbs).await.status;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
    }
    assert_eq!(world.audit(AuditAction::KeyReleased), 0);
}
