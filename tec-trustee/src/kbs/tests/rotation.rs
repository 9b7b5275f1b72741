//! Rotation of disk keys.

use tec_core::digest::Sha256Digest;
use tec_core::port::DiskKeys as _;
use tec_core::rotation::{Confirmation, Forget, KeyMark, Keys};

use super::*;
use crate::rotation::Report;

/// The new key of machine 1.
const NEW: u64 = 7;

async fn begun() -> World {
    let world = World::new().await;
    let (id, key) = (sample::machine_id(1), sample::secret(NEW));
    world.registry.begin(&id, &key, &sample::line()).await.unwrap();
    world
}

fn digest(key: u64) -> Sha256Digest {
    *KeyMark::of(&sample::secret(key)).digest()
}

fn name(key: u64) -> Sha256Digest {
    KeyMark::of(&sample::secret(key)).name()
}

fn report(step: Confirmation, key: u64) -> Ask {
    let body = serde_json::to_vec(&Report { step, sha256: digest(key) }).unwrap();
    Ask { method: "PUT", ..post("rotation", body) }
}

fn key_of(machine: u64, query: &str) -> Ask {
    get(&format!("resource/{}{query}", sample::secret_path(machine)))
}

async fn kept(world: &World) -> Keys<KeyMark> {
    world.registry.rotation(&sample::machine_id(1)).await.unwrap().unwrap()
}

#[tokio::test]
async fn an_attested_machine_fetches_both_keys_and_confirms_each_step() {
    let world = begun().await;
    let cookie = attest(&world).await;
    let answer = get("rotation").cookie(&cookie).of(&world.kbs).await;
    let expected = json!({ "phase": "pending", "current": name(1), "pending": name(NEW) });
    assert_eq!(answer.json(), expected);
    for (query, key) in [("", 1), ("?key=pending", NEW), ("?key=other", 1)] {
        let answer = key_of(1, query).cookie(&cookie).of(&world.kbs).await;
        let jwe: Jwe = serde_json::from_slice(&answer.body).unwrap();
        assert!(session_key().decrypt(&jwe).unwrap().ct_eq(&sample::secret(key)), "{query}");
    }
    for _ in 0..2 {
        let answer = report(Confirmation::Staged, NEW).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.json()["phase"], "promoted");
    }
    for _ in 0..2 {
        let answer = report(Confirmation::Removed, NEW).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.json(), json!({ "phase": "settled", "current": name(NEW) }));
    }
    assert_eq!(world.audit(AuditAction::RotationPromoted), 1);
    assert_eq!(world.audit(AuditAction::RotationEnded), 1);
}

#[tokio::test]
async fn whom_a_machine_shows_its_token_cannot_confirm_in_its_name() {
    let world = begun().await;
    let (_, answer) = attest_with(&world, &FakeAttester::new(1, 1)).await;
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let answer = get("rotation").bearer(&token).of(&world.kbs).await;
    let names: Vec<Sha256Digest> = ["current", "pending"]
        .map(|key| serde_json::from_value(answer.json()[key].clone()).unwrap())
        .into();
    let before = kept(&world).await;
    for (step, sha256) in [Confirmation::Staged, Confirmation::Removed]
        .into_iter()
        .flat_map(|step| names.iter().map(move |n| (step, *n)))
    {
        let body = serde_json::to_vec(&Report { step, sha256 }).unwrap();
        let ask = Ask { method: "PUT", ..post("rotation", body) };
        let answer = ask.bearer(&token).of(&world.kbs).await;
        assert_eq!(answer.error().code(), Some(Code::RotationNotCurrent));
    }
    assert_eq!(kept(&world).await, before);
}

#[tokio::test]
async fn a_confirmation_about_another_key_or_out_of_order_changes_nothing() {
    let world = begun().await;
    let cookie = attest(&world).await;
    let before = kept(&world).await;
    for (step, key) in [(Confirmation::Removed, NEW), (Confirmation::Staged, 9)] {
        let answer = report(step, key).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.error().code(), Some(Code::RotationNotCurrent));
    }
    let unreadable = Ask { method: "PUT", ..post("rotation", "{}") };
    let answer = unreadable.cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::SerdeError);
    assert_eq!(kept(&world).await, before);
}

#[tokio::test]
async fn a_machine_whose_rotation_was_canceled_gets_no_new_key_and_promotes_none() {
    let world = begun().await;
    let cookie = attest(&world).await;
    let id = sample::machine_id(1);
    world.registry.cancel(&id, Forget::Pending, &sample::line()).await.unwrap();
    let answer = key_of(1, "?key=pending").cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::KeyMissing));
    world.registry.begin(&id, &sample::secret(8), &sample::line()).await.unwrap();
    let before = kept(&world).await;
    let answer = report(Confirmation::Staged, NEW).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::RotationNotCurrent), "late");
    assert_eq!(kept(&world).await, before);
    let answer = key_of(1, "").cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_pending_key_is_released_to_nobody_who_would_not_get_the_current_one() {
    let world = begun().await;
    let before = kept(&world).await;
    let asks = || {
        let path = format!("resource/{}", ResourcePath::luks_pending(&sample::machine_id(1)));
        [key_of(1, "?key=pending"), get(&path), report(Confirmation::Staged, NEW)]
    };
    for ask in asks() {
        assert_eq!(ask.of(&world.kbs).await.status, StatusCode::UNAUTHORIZED, "a stranger");
    }
    let (refused, _) = attest_with(&world, &FakeAttester::new(1, 2)).await;
    for ask in asks() {
        let answer = ask.cookie(&refused).of(&world.kbs).await;
        assert_eq!(answer.error().code(), Some(Code::PcrMismatch), "a boot that is not approved");
    }
    let (other, _) = attest_with(&world, &FakeAttester::new(2, 1)).await;
    for ask in asks() {
        let answer = ask.cookie(&other).of(&world.kbs).await;
        assert_ne!(answer.status, StatusCode::OK, "another machine");
    }
    let cookie = attest(&world).await;
    let path = format!("resource/{}", ResourcePath::luks_pending(&sample::machine_id(1)));
    let answer = get(&path).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "there is one way to ask for it");
    world.revoke(1).await;
    for ask in [key_of(1, "?key=pending"), report(Confirmation::Staged, NEW), get("rotation")] {
        let answer = ask.cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.error().code(), Some(Code::MachineUnknown), "a revoked machine");
    }
    assert_eq!(kept(&world).await, before);
}
