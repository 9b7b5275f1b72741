//! What cookies and tokens carry: for how long, how much, and for whom.

use super::*;

#[tokio::test]
async fn cookies_that_no_replica_wrote_for_this_are_none() {
    let mut fleet = Fleet::new().await;
    let foreign = fleet.config(2);
    let (opened, nonce) = auth(&Kbs::new(foreign)).await;
    let foreign = fleet.config(2);
    let (judged, answer) = {
        let foreign = Kbs::new(foreign);
        let (cookie, nonce) = auth(&foreign).await;
        let body = request(&nonce, &fleet.world.attester).await.to_string();
        let answer = post("attest", body).cookie(&cookie).of(&foreign).await;
        (renewed(&answer), answer)
    };
    let (good, own) = fleet.attested(0, 0).await;
    let stamp = claims(&token(&own))["tec.session"].as_str().unwrap().to_owned();
    let foreign_stamp = claims(&token(&answer))["tec.session"].as_str().unwrap().to_owned();
    let body = request(&nonce, &fleet.world.attester).await.to_string();
    let mut changed = good.clone().into_bytes();
    changed[100] = if changed[100] == b'A' { b'B' } else { b'A' };
    let id = "ffffffffffff4fffbfffffffffffffff";
    for bad in [
        "",
        id,
        &opened,
        &judged,
        &stamp,
        &foreign_stamp,
        &good[4..],
        &good[..good.len() - 4],
        &format!("{good}AAAA"),
        &String::from_utf8(changed).unwrap(),
        &"A".repeat(10_000),
    ] {
        let answer = post("attest", &body).cookie(bad).of(&fleet.replicas[1]).await;
        answer.is_error(401, &ErrorKind::AttestationError);
        assert_eq!(answer.error().code(), None);
        let answer = get(&own_path()).cookie(bad).of(&fleet.replicas[1]).await;
        answer.is_error(401, &ErrorKind::TokenNotFound);
    }
    assert_eq!(fleet.world.audit(AuditAction::KeyReleased), 0);
}

#[tokio::test]
async fn a_session_ends_everywhere_with_its_time() {
    let fleet = Fleet::new().await;
    let (opened, nonce) = auth(&fleet.replicas[0]).await;
    let (judged, answer) = fleet.attested(0, 1).await;
    let token = token(&answer);
    let body = request(&nonce, &fleet.world.attester).await.to_string();
    fleet.world.clock.advance_seconds(299);
    is_key_of_machine_1(&get(&own_path()).cookie(&judged).of(&fleet.replicas[2]).await);
    is_key_of_machine_1(&get(&own_path()).bearer(&token).of(&fleet.replicas[2]).await);
    let answer = post("attest", &body).cookie(&opened).of(&fleet.replicas[1]).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.cookie.as_ref().unwrap().ends_with("Max-Age=1"));
    let late = renewed(&answer);

    fleet.world.clock.advance_seconds(1);
    let answer = post("attest", &body).cookie(&opened).of(&fleet.replicas[2]).await;
    answer.is_error(401, &ErrorKind::AttestationError);
    for cookie in [&judged, &late] {
        for replica in &fleet.replicas {
            let answer = get(&own_path()).cookie(cookie).of(replica).await;
            answer.is_error(401, &ErrorKind::TokenNotFound);
        }
    }
    let answer = get(&own_path()).bearer(&token).of(&fleet.replicas[2]).await;
    answer.is_error(401, &ErrorKind::PolicyDeny);
}

#[tokio::test]
async fn a_token_that_expires_before_its_session_expires_in_the_cookie_too() {
    let mut fleet = Fleet::new().await;
    let replicas = [0, 1].map(|_| Kbs::new(fleet.config(1).with_lifetimes(300, 100)));
    fleet.replicas = replicas.to_vec();
    let (cookie, _) = fleet.attested(0, 0).await;
    fleet.world.clock.advance_seconds(159);
    is_key_of_machine_1(&get(&own_path()).cookie(&cookie).of(&fleet.replicas[1]).await);
    fleet.world.clock.advance_seconds(1);
    for replica in &fleet.replicas {
        let answer = get(&own_path()).cookie(&cookie).of(replica).await;
        answer.is_error(401, &ErrorKind::TokenVerifierError);
    }
}

#[tokio::test]
async fn clocks_may_be_behind_by_a_minute_and_not_more() {
    let fleet = Fleet::new().await;
    let (cookie, _) = fleet.attested(0, 0).await;
    fleet.world.clock.advance_seconds(-60);
    is_key_of_machine_1(&get(&own_path()).cookie(&cookie).of(&fleet.replicas[1]).await);
    fleet.world.clock.advance_seconds(-1);
    let answer = get(&own_path()).cookie(&cookie).of(&fleet.replicas[1]).await;
    answer.is_error(401, &ErrorKind::TokenNotFound);
}

#[tokio::test]
async fn a_token_speaks_for_its_own_session_alone() {
    let mut fleet = Fleet::new().await;
    let (_, answer) = fleet.attested(0, 0).await;
    let own = claims(&token(&answer));
    let (_, tampered) = fleet.attested(0, 0).await;
    let stamp = claims(&token(&tampered))["tec.session"].clone();
    let mut other_stamp = own.clone();
    other_stamp["tec.session"] = stamp;
    let mut other_key = own.clone();
    let key = EcPrivateKey::generate(Curve::P256, &mut rng(66));
    other_key["submods"]["cpu0"]["ear.veraison.annotated-evidence"]["runtime_data_claims"]["tee-pubkey"] =
        serde_json::to_value(key.public()).unwrap();
    let mut longer = own.clone();
    longer["exp"] = json!(own["exp"].as_i64().unwrap() + 1);
    let mut none = own.clone();
    none.as_object_mut().unwrap().remove("tec.session");
    // Someone who has the signer's key, and can sign anything.
    let kbs = Kbs::new(fleet.config(1));
    for claims in [other_stamp, other_key, longer, none] {
        let token = signer().sign(&claims).unwrap();
        let answer = get(&own_path()).bearer(&token).of(&kbs).await;
        answer.is_error(401, &ErrorKind::PolicyDeny);
        assert_eq!(answer.error().code(), Some(Code::ReleaseDenied));
    }
    assert_eq!(fleet.world.audit(AuditAction::KeyReleased), 0);
    // Exactly the claims of the session, for its own key.
    let token = signer().sign(&own).unwrap();
    is_key_of_machine_1(&get(&own_path()).bearer(&token).of(&kbs).await);
}

#[tokio::test]
async fn sessions_of_other_replicas_are_adopted_within_the_same_bounds() {
    let mut fleet = Fleet::new().await;
    let config = fleet.config(1).with_limits(2, DEFAULT_MAX_PAYLOAD);
    let small = Kbs::new(config);
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let (cookie, nonce) = auth(&fleet.replicas[0]).await;
        let body = request(&nonce, &fleet.world.attester).await.to_string();
        sessions.push((cookie, body));
        fleet.world.clock.advance_seconds(1);
    }
    let attest = |number: usize| {
        let (cookie, body) = &sessions[number];
        post("attest", body).cookie(cookie).of(&small)
    };
    assert_eq!(attest(2).await.status, StatusCode::OK);
    assert_eq!(attest(1).await.status, StatusCode::OK);
    attest(0).await.is_error(503, &ErrorKind::AttestationError);
    assert_eq!(attest(1).await.status, StatusCode::OK, "what is known needs no room");
    // The session that was opened first is evicted first, although it was adopted last.
    fleet.world.clock.advance_seconds(298);
    assert_eq!(small.0.sessions.len(), 2);
    auth(&small).await;
    post("auth", AUTH).of(&small).await.is_error(503, &ErrorKind::AttestationError);
}

#[tokio::test]
async fn results_that_are_shown_take_no_room() {
    let mut fleet = Fleet::new().await;
    let small = Kbs::new(fleet.config(1).with_limits(1, DEFAULT_MAX_PAYLOAD));
    for _ in 0..3 {
        let (cookie, _) = fleet.attested(0, 0).await;
        is_key_of_machine_1(&get(&own_path()).cookie(&cookie).of(&small).await);
    }
    assert_eq!(small.0.sessions.len(), 0);
}

#[tokio::test]
async fn a_cookie_is_one_that_every_client_keeps() {
    let fleet = Fleet::new().await;
    let (_, answer) = fleet.attested(0, 0).await;
    let cookie = answer.cookie.as_ref().unwrap();
    assert!(cookie.len() < 3000, "{}", cookie.len());
    assert!(cookie.ends_with("; Expires=Thu, 01 Jan 2026 00:21:40 GMT; Max-Age=300"));
    let legal = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    assert!(renewed(&answer).bytes().all(legal));
    for hidden in [sample::machine_id(1).to_string(), sample::image_name(1).to_string()] {
        let blob = URL_SAFE_NO_PAD.decode(renewed(&answer)).unwrap();
        assert!(!blob.windows(hidden.len()).any(|window| window == hidden.as_bytes()));
    }
}

#[tokio::test]
async fn what_is_too_large_for_a_cookie_is_known_here_and_by_the_token() {
    let fleet = Fleet::new().await;
    let (cookie, nonce) = auth(&fleet.replicas[0]).await;
    let mut body = request(&nonce, &fleet.world.attester).await;
    let noise: Vec<u8> =
        (0..6000).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let text = format!(
        "version = \"0.1.0\"\nalgorithm = \"sha256\"\n[data]\nnoise = \"{}\"\n",
        STANDARD.encode(noise),
    );
    body["init-data"] = json!({"format": "toml", "body": text});
    let answer = post("attest", body.to_string()).cookie(&cookie).of(&fleet.replicas[1]).await;
    assert_eq!(renewed(&answer), cookie);
    let token = token(&answer);
    is_key_of_machine_1(&get(&own_path()).cookie(&cookie).of(&fleet.replicas[1]).await);
    let elsewhere = get(&own_path()).cookie(&cookie).of(&fleet.replicas[2]).await;
    elsewhere.is_error(401, &ErrorKind::TokenNotFound);
    is_key_of_machine_1(&get(&own_path()).bearer(&token).of(&fleet.replicas[2]).await);
}
