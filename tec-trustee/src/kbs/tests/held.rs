//! What strangers can make a key broker hold.

use super::*;

/// A request that is valid except for the size and the members of what it binds.
async fn binding(nonce: &str, key: &Value, additional: &str) -> Value {
    use tec_core::port::Attester as _;
    let data = report_data::primary(nonce, key, additional, HashAlgorithm::Sha384).unwrap();
    let evidence = FakeAttester::new(1, 1).attest(&data).await.unwrap();
    json!({
        "init-data": null,
        "runtime-data": {"nonce": nonce, "tee-pubkey": key},
        "tee-evidence": {
            "primary_evidence": evidence.evidence,
            "additional_evidence": additional,
        },
    })
}

async fn answered(world: &World, key: &Value, additional: &str) -> Answer {
    let (cookie, nonce) = auth(&world.kbs).await;
    let body = binding(&nonce, key, additional).await;
    let ask = post("attest", body.to_string()).cookie(&cookie);
    ask.of(&world.kbs).await
}

#[tokio::test]
async fn a_session_key_has_the_members_of_the_protocol_and_no_others() {
    let world = World::new().await;
    let good = serde_json::to_value(session_key().public()).unwrap();
    assert_eq!(answered(&world, &good, "").await.status, StatusCode::OK);
    for (name, value) in [
        ("kid", json!("a")),
        ("use", json!("enc")),
        ("pad", json!("a".repeat(1 << 20))),
        ("pad", json!(vec![0; 1000])),
    ] {
        let mut key = good.clone();
        key[name] = value;
        let answer = answered(&world, &key, "").await;
        answer.is_error(401, &ErrorKind::AttestationError);
        assert_eq!(answer.error().code(), Some(Code::EvidenceMalformed), "{name}");
    }
}

#[tokio::test]
async fn no_additional_evidence_is_written_in_two_ways_only() {
    let world = World::new().await;
    let key = serde_json::to_value(session_key().public()).unwrap();
    for good in ["", "{}"] {
        assert_eq!(answered(&world, &key, good).await.status, StatusCode::OK);
    }
    let long = format!("{{{}}}", " ".repeat(1 << 20));
    for bad in ["{ }", " {}", &long] {
        let answer = answered(&world, &key, bad).await;
        answer.is_error(401, &ErrorKind::AttestationError);
        assert_eq!(answer.error().code(), Some(Code::EvidenceMalformed));
    }
}

#[tokio::test]
async fn evidence_of_many_small_values_is_not_read() {
    let world = World::new().await;
    let (cookie, nonce) = auth(&world.kbs).await;
    let mut body = request(&nonce, &world.attester).await;
    body["tee-evidence"]["primary_evidence"]["pad"] = json!(vec![0; 1 << 19]);
    let answer = post("attest", body.to_string()).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::AttestationError);
    assert_eq!(answer.error().code(), Some(Code::EvidenceMalformed));
}
