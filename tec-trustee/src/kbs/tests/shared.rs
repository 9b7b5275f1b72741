//! Several replicas over one backend, which share only a key and a signer.

mod any_order;
mod carried;

use tec_core::secret::SecretArray;

use super::*;

/// Replicas of one broker. `World` has the registries; its own broker is not asked.
struct Fleet {
    world: World,
    replicas: Vec<Kbs>,
    started: u64,
}

impl Fleet {
    async fn new() -> Self {
        let mut fleet = Self { world: World::new().await, replicas: Vec::new(), started: 0 };
        for _ in 0..3 {
            let replica = fleet.start();
            fleet.replicas.push(replica);
        }
        fleet
    }

    /// A replica that knows no session yet.
    fn start(&mut self) -> Kbs {
        Kbs::new(self.config(1))
    }

    fn config(&mut self, secret: u8) -> KbsConfig {
        self.started += 1;
        let mut config = config(Arc::new(live_of(&self.world)), &self.world.clock);
        config.entropy = Arc::new(SeededEntropy::new(self.started));
        config.with_shared_sessions(SecretArray::new([secret; 32]))
    }

    /// The replica dies, and a new one takes its place.
    fn lose(&mut self, number: usize) {
        self.replicas[number] = self.start();
    }

    /// Evidence of machine 1, with its session opened at replica `auth`, sent to `attest`.
    async fn attested(&self, auth: usize, attest: usize) -> (String, Answer) {
        let (cookie, nonce) = super::auth(&self.replicas[auth]).await;
        let body = request(&nonce, &self.world.attester).await.to_string();
        let answer = post("attest", body).cookie(&cookie).of(&self.replicas[attest]).await;
        assert_eq!(answer.status, StatusCode::OK);
        (renewed(&answer), answer)
    }
}

fn renewed(answer: &Answer) -> String {
    let cookie = answer.cookie.as_ref().unwrap();
    cookie.split(['=', ';']).nth(1).unwrap().to_owned()
}

fn token(answer: &Answer) -> String {
    answer.json()["token"].as_str().unwrap().to_owned()
}

fn claims(token: &str) -> Value {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&payload).unwrap()
}

#[track_caller]
fn is_key_of_machine_1(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::OK);
    let jwe: Jwe = serde_json::from_slice(&answer.body).unwrap();
    assert!(session_key().decrypt(&jwe).unwrap().ct_eq(&sample::secret(1)));
}

#[tokio::test]
async fn each_request_of_an_unlock_may_reach_another_replica() {
    let fleet = Fleet::new().await;
    for place in 0..27 {
        let [auth, attest, resource] = [place / 9, place / 3 % 3, place % 3];
        let (cookie, _) = fleet.attested(auth, attest).await;
        let answer = get(&own_path()).cookie(&cookie).of(&fleet.replicas[resource]).await;
        is_key_of_machine_1(&answer);
    }
    assert_eq!(fleet.world.audit(AuditAction::KeyReleased), 27);
    let attempts = fleet.world.registry.latest(None, 99).await.unwrap();
    assert_eq!(attempts.len(), 27);
    for attempt in attempts {
        assert!(attempt.ladder.is_released());
        let passed = attempt.ladder.steps.iter().filter(|step| step.state == StepState::Passed);
        assert!(passed.count() >= 9, "the ladder of the attestation goes on at the release");
    }
}

#[tokio::test]
async fn without_a_shared_key_a_session_is_known_where_it_was_opened_alone() {
    let world = World::new().await;
    let other = Kbs::new(config(Arc::new(live_of(&world)), &world.clock));
    let (cookie, nonce) = auth(&world.kbs).await;
    let body = request(&nonce, &world.attester).await.to_string();
    let answer = post("attest", &body).cookie(&cookie).of(&other).await;
    answer.is_error(401, &ErrorKind::AttestationError);
    let answer = post("attest", &body).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(renewed(&answer), cookie);
    let token = token(&answer);
    assert!(claims(&token).get("tec.session").is_none());
    let answer = get(&own_path()).cookie(&cookie).of(&other).await;
    answer.is_error(401, &ErrorKind::TokenNotFound);
    let answer = get(&own_path()).bearer(&token).of(&other).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
}

#[tokio::test]
async fn every_replica_decides_anew_whether_a_key_is_released() {
    for by_token in [false, true] {
        let fleet = Fleet::new().await;
        let (cookie, answer) = fleet.attested(0, 1).await;
        let token = token(&answer);
        let ask = |path: &str| {
            if by_token { get(path).bearer(&token) } else { get(path).cookie(&cookie) }
        };
        let foreign = format!("resource/{}", sample::secret_path(2));
        let answer = ask(&foreign).of(&fleet.replicas[2]).await;
        answer.is_error(401, &ErrorKind::PolicyDeny);
        assert_eq!(answer.error().code(), Some(Code::ReleaseDenied));

        let secrets: &dyn SecretStore = &*fleet.world.registry;
        secrets.remove(&sample::secret_path(1)).await.unwrap();
        let answer = ask(&own_path()).of(&fleet.replicas[2]).await;
        assert_eq!(answer.error().code(), Some(Code::KeyMissing));

        fleet.world.revoke(1).await;
        for replica in &fleet.replicas {
            let answer = ask(&own_path()).of(replica).await;
            answer.is_error(401, &ErrorKind::PolicyDeny);
            assert_eq!(answer.error().code(), Some(Code::MachineUnknown));
        }
        assert_eq!(fleet.world.audit(AuditAction::KeyReleased), 0);
    }
}

#[tokio::test]
async fn an_image_that_is_revoked_after_the_attestation_counts_at_every_replica() {
    let fleet = Fleet::new().await;
    let (cookie, _) = fleet.attested(0, 1).await;
    let images: &dyn ImageRegistry = &*fleet.world.registry;
    images.revoke(&sample::image_name(1), &sample::line_at(1000)).await.unwrap();
    for replica in &fleet.replicas {
        denied_after_at(replica, &cookie, Code::PcrMismatch).await;
    }
}

async fn denied_after_at(kbs: &Kbs, cookie: &str, code: Code) {
    let answer = get(&own_path()).cookie(cookie).of(kbs).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
    assert_eq!(answer.error().code(), Some(code));
}

#[tokio::test]
async fn a_replay_at_another_replica_gives_keys_to_the_client_of_the_evidence_alone() {
    let fleet = Fleet::new().await;
    let (cookie, nonce) = auth(&fleet.replicas[0]).await;
    let body = request(&nonce, &fleet.world.attester).await.to_string();
    let stranger = EcPrivateKey::generate(Curve::P256, &mut rng(66));
    for replica in &fleet.replicas {
        let answer = post("attest", &body).cookie(&cookie).of(replica).await;
        assert_eq!(answer.status, StatusCode::OK);
        let answer = get(&own_path()).cookie(&renewed(&answer)).of(replica).await;
        is_key_of_machine_1(&answer);
        let jwe: Jwe = serde_json::from_slice(&answer.body).unwrap();
        assert!(stranger.decrypt(&jwe).is_err());
    }
    // With the stranger's session key, the evidence no longer matches the nonce.
    let mut forged: Value = serde_json::from_str(&body).unwrap();
    forged["runtime-data"]["tee-pubkey"] = serde_json::to_value(stranger.public()).unwrap();
    let mut fleet = fleet;
    fleet.lose(0);
    let answer = post("attest", forged.to_string()).cookie(&cookie).of(&fleet.replicas[0]).await;
    answer.is_error(401, &ErrorKind::AttestationError);
    assert_eq!(answer.error().code(), Some(Code::QuoteInvalid));
}

#[tokio::test]
async fn a_nonce_is_spent_at_a_replica_by_its_first_use_there() {
    let fleet = Fleet::new().await;
    let (cookie, nonce) = auth(&fleet.replicas[0]).await;
    let bad = request("another nonce", &fleet.world.attester).await.to_string();
    let good = request(&nonce, &fleet.world.attester).await.to_string();
    for replica in &fleet.replicas {
        let answer = post("attest", &bad).cookie(&cookie).of(replica).await;
        assert_eq!(answer.error().code(), Some(Code::QuoteInvalid));
        let answer = post("attest", &good).cookie(&cookie).of(replica).await;
        assert_eq!(answer.error().detail, "session not found");
    }
}

#[tokio::test]
async fn two_replicas_that_attest_one_session_at_a_time_give_two_attempts_of_one_client() {
    let fleet = Fleet::new().await;
    let (cookie, nonce) = auth(&fleet.replicas[0]).await;
    let body = request(&nonce, &fleet.world.attester).await.to_string();
    let attest = |number: usize| post("attest", &body).cookie(&cookie).of(&fleet.replicas[number]);
    let (one, two, three) = tokio::join!(attest(1), attest(2), attest(2));
    let answers = [one, two, three];
    assert_eq!(answers.iter().filter(|answer| answer.status == StatusCode::OK).count(), 3);
    for answer in &answers {
        for replica in &fleet.replicas {
            let answer = get(&own_path()).cookie(&renewed(answer)).of(replica).await;
            is_key_of_machine_1(&answer);
        }
    }
    let attempts = fleet.world.registry.latest(None, 9).await.unwrap();
    assert_eq!(attempts.len(), 2, "the third answer is that of the second");
}

#[tokio::test]
async fn an_attested_session_is_not_attested_again_elsewhere() {
    let fleet = Fleet::new().await;
    let (cookie, first) = fleet.attested(0, 1).await;
    let again = post("attest", "garbage").cookie(&cookie).of(&fleet.replicas[1]).await;
    assert_eq!(again.json()["token"], first.json()["token"]);
    is_key_of_machine_1(&get(&own_path()).cookie(&renewed(&again)).of(&fleet.replicas[2]).await);
    let elsewhere = post("attest", "garbage").cookie(&cookie).of(&fleet.replicas[2]).await;
    elsewhere.is_error(401, &ErrorKind::AttestationError);
    assert_eq!(elsewhere.error().detail, "session not found");
}

#[tokio::test]
async fn a_refusal_is_carried_like_a_result() {
    let fleet = Fleet::new().await;
    for (attester, code) in
        [(FakeAttester::new(99, 1), Code::AkNotBound), (FakeAttester::new(1, 2), Code::PcrMismatch)]
    {
        let (cookie, nonce) = auth(&fleet.replicas[0]).await;
        let body = request(&nonce, &attester).await.to_string();
        let answer = post("attest", body).cookie(&cookie).of(&fleet.replicas[1]).await;
        let token = token(&answer);
        for replica in &fleet.replicas {
            let by_cookie = get(&own_path()).cookie(&renewed(&answer)).of(replica).await;
            let by_token = get(&own_path()).bearer(&token).of(replica).await;
            for answer in [by_cookie, by_token] {
                answer.is_error(401, &ErrorKind::PolicyDeny);
                assert_eq!(answer.error().code(), Some(code));
            }
        }
    }
}

#[tokio::test]
async fn policies_see_the_same_claims_at_every_replica() {
    const ATTESTATION: &str = "package policy\nimport rego.v1\n\
        trust_claims := {\"hardware\": 2, \"configuration\": 2, \"executables\": 2}";
    const RESOURCE: &str = "package policy\nimport rego.v1\n\
        allow if { not input[\"tec.session\"]; \
        input.submods.cpu0[\"ear.veraison.annotated-evidence\"].tpm.pcr23 }";
    let mut fleet = Fleet::new().await;
    fleet.replicas.clear();
    for _ in 0..2 {
        let mut config = fleet.config(1);
        let backend = live_of(&fleet.world).with_policies(ATTESTATION, RESOURCE).unwrap();
        config.backend = Arc::new(backend);
        fleet.replicas.push(Kbs::new(config));
    }
    let (cookie, answer) = fleet.attested(0, 0).await;
    let token = token(&answer);
    for replica in &fleet.replicas {
        is_key_of_machine_1(&get(&own_path()).cookie(&cookie).of(replica).await);
        is_key_of_machine_1(&get(&own_path()).bearer(&token).of(replica).await);
    }
}

#[tokio::test]
async fn a_recovery_key_may_be_left_at_another_replica() {
    use tec_core::flow;
    use tec_core::secret::SecretBytes;
    let fleet = Fleet::new().await;
    let (cookie, _) = fleet.attested(0, 1).await;
    let secret = SecretBytes::new(b"digits".to_vec());
    let sealed = crate::jwe::encrypt(&session_key().public(), &secret, &mut rng(1)).unwrap();
    let body = serde_json::to_vec(&sealed).unwrap();
    let put = Ask { method: "PUT", ..post("escrow", body) };
    let answer = put.cookie(&cookie).of(&fleet.replicas[2]).await;
    assert_eq!(answer.status, StatusCode::OK);
    let kept = flow::escrowed(&*fleet.world.registry, &sample::machine_id(1)).await.unwrap();
    assert_eq!(kept.len(), 1);
}
