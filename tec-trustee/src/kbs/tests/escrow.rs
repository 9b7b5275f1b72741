//! Recovery keys that machines deposit.

use tec_core::flow;
use tec_core::secret::SecretBytes;

use super::*;
use crate::jwe;
use crate::jwe::Jwe;

fn put(path: &str, body: impl AsRef<[u8]>) -> Ask {
    Ask { method: "PUT", ..post(path, body) }
}

fn sealed() -> Jwe {
    let secret = SecretBytes::new(b"digits".to_vec());
    jwe::encrypt(&session_key().public(), &secret, &mut rng(1)).unwrap()
}

async fn kept(world: &World) -> Vec<u32> {
    let escrowed = flow::escrowed(&*world.registry, &sample::machine_id(1)).await;
    escrowed.unwrap().into_iter().map(|(number, _)| number).collect()
}

#[tokio::test]
async fn an_attested_machine_leaves_keys_that_are_numbered_and_never_released() {
    let world = World::new().await;
    let cookie = attest(&world).await;
    let body = serde_json::to_vec(&sealed()).unwrap();
    for number in [1, 2] {
        let answer = put("escrow", &body).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.json()["number"], number);
    }
    assert_eq!(kept(&world).await, [2, 1]);
    assert_eq!(world.audit(AuditAction::RecoveryEscrowed), 2);
    let path = format!("resource/default/{}/recovery-1", sample::machine_id(1));
    let answer = get(&path).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn nobody_else_leaves_anything_and_nothing_else_is_kept() {
    let world = World::new().await;
    let body = serde_json::to_vec(&sealed()).unwrap();
    let answer = put("escrow", &body).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::TokenNotFound);

    let (refused, _) = attest_with(&world, &FakeAttester::new(1, 2)).await;
    let answer = put("escrow", &body).cookie(&refused).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::PcrMismatch));

    let cookie = attest(&world).await;
    let answer = put("escrow", "{}").cookie(&cookie).of(&world.kbs).await;
    assert_ne!(answer.status, StatusCode::OK);
    let large = vec![b' '; flow::MAX_ESCROW + 1];
    let answer = put("escrow", large).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(kept(&world).await.is_empty());
}

#[tokio::test]
async fn a_machine_that_was_revoked_or_removed_leaves_nothing_in_a_session_that_exists() {
    let body = serde_json::to_vec(&sealed()).unwrap();
    let world = World::new().await;
    let cookie = attest(&world).await;
    world.revoke(1).await;
    let answer = put("escrow", &body).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::MachineUnknown));
    assert!(kept(&world).await.is_empty());

    // A key that outlived its machine would be found by the next machine with this id.
    let world = World::new().await;
    let cookie = attest(&world).await;
    let id = sample::machine_id(1);
    let store = &*world.registry;
    flow::remove_machine(store, store, store, &ManualClock::new(sample::time(9)), id)
        .await
        .unwrap();
    let answer = put("escrow", &body).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::MachineUnknown));
    assert!(kept(&world).await.is_empty());
}
