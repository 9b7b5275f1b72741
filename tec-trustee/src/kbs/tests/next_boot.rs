//! The question before a reboot.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::*;
use crate::next_boot::{MAX_BODY, Question};

fn question(pcrs: &[(u8, &[u8])]) -> Ask {
    let pcrs = pcrs.iter().map(|(pcr, event)| {
        let value = Sha256Digest::ZERO.extended(&Sha256Digest::of(event));
        (PcrIndex::new(*pcr).unwrap(), value)
    });
    let body = serde_json::to_vec(&Question { pcrs: pcrs.collect() }).unwrap();
    Ask { method: "PUT", ..post("next-boot", body) }
}

/// What [`sample::image`] measures.
fn of_image(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

#[tokio::test]
async fn an_attested_machine_learns_whether_a_boot_would_be_accepted_and_no_more() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    let attempts = world.audit(AuditAction::KeyRefused);
    for (pcrs, expected) in [
        (vec![(4, &of_image(1)[..])], json!({ "answer": "accepted" })),
        (vec![(4, &of_image(1)[..]), (9, &[9])], json!({ "answer": "accepted" })),
        (vec![(4, &of_image(2)[..])], json!({ "answer": "refused", "code": "TEC-A412" })),
        (vec![(9, &of_image(1)[..])], json!({ "answer": "undetermined", "pcrs": [4] })),
    ] {
        let answer = question(&pcrs).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.json(), expected);
    }
    let images: &dyn ImageRegistry = &*world.registry;
    images.put(&sample::image(2)).await.unwrap();
    let answer = question(&[(4, &of_image(2))]).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.json(), json!({ "answer": "accepted" }), "as of now");
    assert_eq!(world.audit(AuditAction::KeyRefused), attempts, "a question is no attempt");
}

#[tokio::test]
async fn only_machines_that_are_trusted_now_may_ask() {
    let world = World::new().await;
    let ask = || question(&[(4, &of_image(1))]);
    ask().of(&world.kbs).await.is_error(401, &ErrorKind::TokenNotFound);
    let (cookie, _) = attest_with(&world, &FakeAttester::new(1, 2)).await;
    let refused = ask().cookie(&cookie).of(&world.kbs).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "another boot");
    let cookie = attest(&world).await;
    world.revoke(1).await;
    ask().cookie(&cookie).of(&world.kbs).await.is_error(401, &ErrorKind::PolicyDeny);
}

#[tokio::test]
async fn what_is_no_list_of_registers_is_refused() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    let value = Sha256Digest::ZERO;
    for body in [
        String::new(),
        json!({ "pcrs": { "24": value } }).to_string(),
        json!({ "pcrs": { "4": "00" } }).to_string(),
        json!({ "pcrs": {}, "more": 1 }).to_string(),
        format!(r#"{{"pcrs":{{"4":"{value}","4":"{value}"}}}}"#),
    ] {
        let ask = Ask { method: "PUT", ..post("next-boot", &body) };
        let answer = ask.cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.error().error_kind(), ErrorKind::SerdeError, "{body}");
    }
    let all: Vec<_> = (0..24).map(|pcr| (pcr, &b"x"[..])).collect();
    assert!(question(&all).body.len() <= MAX_BODY);
    assert_eq!(question(&all).cookie(&cookie).of(&world.kbs).await.status, StatusCode::OK);
    let long = Ask { method: "PUT", ..post("next-boot", vec![b' '; MAX_BODY + 1]) };
    assert_eq!(long.cookie(&cookie).of(&world.kbs).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}
