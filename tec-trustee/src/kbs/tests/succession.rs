//! Attestation keys that follow one another.

use tec_core::ak::{
    AkState, Credential, EkOffer, Fingerprint, PublicKey, SuccessionOffer, TpmObjectError,
    TpmObjects, succession_data,
};
use tec_core::machine::MachineChange;
use tec_core::secret::SecretArray;

use super::*;
use crate::succession::{Named, PLACE};

/// The key that follows that of machine 1.
const NEW: u64 = 11;

/// The "TPM" of these tests: an area is a key, a message the qualifying data, a signature the signer's name.
#[derive(Debug)]
struct GlassTpm;

impl TpmObjects for GlassTpm {
    fn attestation_key(&self, _: &[u8]) -> Result<PublicKey, TpmObjectError> {
        Err(TpmObjectError::new("not asked for"))
    }

    fn certified_key(
        &self,
        by: &PublicKey,
        qualifying: &[u8; 32],
        offer: &SuccessionOffer,
    ) -> Result<PublicKey, TpmObjectError> {
        let is_good = offer.message == qualifying
            && offer.signature == by.fingerprint().to_string().as_bytes();
        let key = PublicKey::from_der(&offer.tpm2b_public).ok().filter(|_| is_good);
        key.ok_or_else(|| TpmObjectError::new("not certified"))
    }

    fn challenge(
        &self,
        _: &EkOffer,
        _: &[u8],
        _: &SecretArray<32>,
        _: &mut dyn rand_core::CryptoRng,
    ) -> Result<Credential, TpmObjectError> {
        Err(TpmObjectError::new("not asked for"))
    }
}

async fn new_world() -> World {
    let mut world = World::new().await;
    let successors = Arc::clone(&world.registry) as _;
    let with = Succession { successors, tpm: Arc::new(GlassTpm) };
    let ports = ports(&world.registry, &world.clock).with_succession(with);
    world.kbs = Kbs::new(config(Arc::new(LiveBackend::new(ports, &intent())), &world.clock));
    world
}

/// Attests with a key, and returns the cookie, the nonce and the answer.
async fn session(world: &World, key: u64, image: u64) -> (String, String, Answer) {
    let (cookie, nonce) = auth(&world.kbs).await;
    let body = request(&nonce, &FakeAttester::new(key, image)).await;
    let answer = post("attest", body.to_string()).cookie(&cookie).of(&world.kbs).await;
    (cookie, nonce, answer)
}

fn named(by: u64, new: u64, nonce: &str, machine: u64) -> Ask {
    let offer = SuccessionOffer {
        tpm2b_public: sample::public_key(new).as_der().to_vec(),
        message: succession_data(nonce, &sample::machine_id(machine)).to_vec(),
        signature: fingerprint(by).to_string().into_bytes(),
    };
    let body = serde_json::to_vec(&Named::from(&offer)).unwrap();
    Ask { method: "PUT", ..post(PLACE, body) }
}

fn fingerprint(key: u64) -> Fingerprint {
    sample::public_key(key).fingerprint()
}

/// Key 1 of machine 1 names a key.
async fn name(world: &World, new: u64) {
    let (cookie, nonce, _) = session(world, 1, 1).await;
    let answer = named(1, new, &nonce, 1).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.json(), json!({ "successor": fingerprint(new) }));
}

/// What a boot with a key gets: nothing if it gets the disk key, or else the code.
async fn refused(world: &World, key: u64) -> Option<Code> {
    let (cookie, _, _) = session(world, key, 1).await;
    let answer = get(&own_path()).cookie(&cookie).of(&world.kbs).await;
    (answer.status != StatusCode::OK).then(|| answer.error().code().unwrap())
}

async fn state(world: &World, key: u64) -> Option<AkState> {
    let aks: &dyn AkRegistry = &*world.registry;
    aks.find(&fingerprint(key)).await.unwrap().map(|record| record.state)
}

#[tokio::test]
async fn an_unused_successor_leaves_the_old_key_in_use_and_a_used_one_takes_its_place() {
    let world = new_world().await;
    name(&world, 12).await;
    name(&world, NEW).await;
    assert_eq!(refused(&world, 1).await, None, "the old key is still bound");
    assert_eq!(refused(&world, 12).await, Some(Code::AkNotBound), "it was replaced unused");
    assert_eq!(world.audit(AuditAction::AkSucceeded), 0);
    assert_eq!(refused(&world, NEW).await, None);
    assert_eq!(state(&world, NEW).await, Some(AkState::Bound));
    assert_eq!(refused(&world, 1).await, Some(Code::AkNotBound), "it is revoked");
    assert_eq!(refused(&world, NEW).await, None, "again");
    assert_eq!(world.audit(AuditAction::AkSuccessorNamed), 2);
    assert_eq!(world.audit(AuditAction::AkSucceeded), 1);
}

#[tokio::test]
async fn a_boot_that_is_not_approved_neither_names_nor_promotes_a_key() {
    let world = new_world().await;
    let (cookie, nonce, _) = session(&world, 1, 2).await;
    let answer = named(1, NEW, &nonce, 1).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::PcrMismatch));
    name(&world, NEW).await;
    let (_, _, answer) = session(&world, NEW, 2).await;
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let claims = crate::wire::token_claims(&token).unwrap();
    assert_eq!(claims["submods"]["cpu0"]["tec.refused"], Code::PcrMismatch.as_str());
    assert_eq!((state(&world, 1).await, state(&world, NEW).await), (Some(AkState::Bound), None));
}

#[tokio::test]
async fn only_the_bound_key_of_this_session_and_machine_names_a_successor() {
    let world = new_world().await;
    let (cookie, nonce, _) = session(&world, 1, 1).await;
    let (_, other, _) = session(&world, 1, 1).await;
    for (ask, why) in [
        (named(1, NEW, &other, 1), "replayed from another session"),
        (named(1, NEW, &nonce, 2), "for another machine"),
        (named(2, NEW, &nonce, 1), "by the key of another machine"),
        (named(NEW, NEW, &nonce, 1), "by itself"),
    ] {
        let answer = ask.cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.error().code(), Some(Code::RegisterKeyRefused), "{why}");
    }
    for taken in [1, 2] {
        let answer = named(1, taken, &nonce, 1).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.error().code(), Some(Code::RegisterKeyElsewhere), "{taken}");
    }
    let unreadable = Ask { method: "PUT", ..post(PLACE, r#"{"tpm_public":"","message":""}"#) };
    let answer = unreadable.cookie(&cookie).of(&world.kbs).await;
    answer.is_error(401, &ErrorKind::SerdeError);
    let answer = named(1, NEW, &nonce, 1).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "a stranger");
    assert_eq!(world.audit(AuditAction::AkSuccessorNamed), 0);

    name(&world, NEW).await;
    let (cookie, nonce, _) = session(&world, 2, 1).await;
    let answer = named(2, NEW, &nonce, 2).cookie(&cookie).of(&world.kbs).await;
    let code = answer.error().code();
    assert_eq!(code, Some(Code::RegisterKeyElsewhere), "the successor of another machine");
}

#[tokio::test]
async fn a_successor_gets_nothing_once_the_key_that_named_it_is_revoked() {
    let world = new_world().await;
    let (cookie, nonce, _) = session(&world, 1, 1).await;
    name(&world, NEW).await;
    let aks: &dyn AkRegistry = &*world.registry;
    aks.revoke(&fingerprint(1), &sample::line()).await.unwrap();
    assert_eq!(refused(&world, NEW).await, Some(Code::AkNotBound));
    let answer = named(1, 12, &nonce, 1).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::AkNotBound), "in a session from before");
    assert_eq!(world.audit(AuditAction::AkSucceeded), 0);
}

#[tokio::test]
async fn a_successor_waits_while_its_machine_is_quarantined_and_gets_nothing_once_it_is_retired() {
    let world = new_world().await;
    name(&world, NEW).await;
    let machines: &dyn MachineRegistry = &*world.registry;
    let id = sample::machine_id(1);
    machines.change(&id, MachineChange::Quarantine, &sample::line()).await.unwrap();
    assert_eq!(refused(&world, NEW).await, Some(Code::MachineQuarantined));
    assert_eq!(state(&world, NEW).await, None);
    let answer = {
        let (cookie, nonce, _) = session(&world, 1, 1).await;
        named(1, 12, &nonce, 1).cookie(&cookie).of(&world.kbs).await
    };
    assert_eq!(answer.error().code(), Some(Code::MachineQuarantined));
    machines.change(&id, MachineChange::Release, &sample::line()).await.unwrap();
    assert_eq!(refused(&world, NEW).await, None);

    let world = new_world().await;
    name(&world, NEW).await;
    let machines: &dyn MachineRegistry = &*world.registry;
    machines.change(&id, MachineChange::Retire, &sample::line()).await.unwrap();
    assert_eq!(refused(&world, NEW).await, Some(Code::MachineUnknown));
    assert_eq!(state(&world, NEW).await, None);
}

#[tokio::test]
async fn a_server_that_replaces_no_attestation_keys_says_so() {
    let world = World::new().await;
    let (cookie, nonce, _) = session(&world, 1, 1).await;
    let answer = named(1, NEW, &nonce, 1).cookie(&cookie).of(&world.kbs).await;
    answer.is_error(404, &ErrorKind::PluginNotFound);
    assert_eq!(answer.error().code(), Some(Code::RegisterNotFound));
}
