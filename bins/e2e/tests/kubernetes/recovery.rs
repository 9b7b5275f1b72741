//! Recovery keys: nodes escrow them with the built-in key broker, which has its account's permissions.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tec_core::flow;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::migrate::{TrustAnchor as _, TrustUnit};
use tec_core::port::{
    Clock as _, EntropyRng, MachineRegistry, PutOutcome, SecretStore as _, UnclaimedLimit,
};
use tec_core::recovery::RecoveryKey as Digits;
use tec_core::testing::sample;
use tec_e2e::kube::Bench;
use tec_k8s::api::{Machine, RecoveryKey};
use tec_k8s::client::KubeRegistry;
use tec_k8s::render::Component;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::testing::SoftTpm;
use tec_trustee::client::RcarError;
use tec_trustee::jwe;
use tec_trustee::jwe::EcPrivateKey;

use crate::builtin::{KERNEL, World, boot};
use crate::fetch::client;
use crate::standing::plugin;

/// An admin's private key, created with `jose jwk gen -i '{"kty":"EC","crv":"P-256"}'`.
const ADMIN: &str = r#"{"kty":"EC","crv":"P-256","alg":"ECDH-ES+A256KW",
    "x":"b5sedQAHMTILkOYb954h_7vDzB-Vov5Xpz2SyXb0wIw",
    "y":"bPUhjZDF8xI3omuBQFsWuH7qzBhFVzKzAXeucOyab8s",
    "d":"nssbgwTQocAdnMFUYT37Q6AU5fCjr0cUUognLIS-SBo"}"#;

/// Escrows a key like a node, and returns its number and its digits.
async fn leave(world: &World, tpm: &SoftTpm) -> Result<(u32, String), RcarError> {
    let mut rng = EntropyRng::new(&SystemEntropy);
    let digits = Digits::random(&mut rng);
    let admin = EcPrivateKey::from_jwk(ADMIN.as_bytes()).unwrap().public();
    let sealed = jwe::encrypt(&admin, digits.passphrase(), &mut rng).unwrap();
    let number = client(&world.url()).escrow(&sealed, tpm).await?;
    let text = digits.passphrase().expose("the test compares it").to_vec();
    Ok((number, String::from_utf8(text).unwrap()))
}

/// The keys of machine 1 as read by an admin, latest first.
async fn printed(bench: &Bench) -> Value {
    let identity = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(identity.path(), ADMIN).unwrap();
    let (machine, identity) = (sample::machine_id(1).to_string(), identity.path());
    let arguments = ["machine", "recovery-key", &machine, "--identity", identity.to_str().unwrap()];
    let output = plugin(bench, &arguments).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The HTTP status of a refusal.
fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
    match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_recovery_keys_with_the_builtin_key_broker_and_an_admin_opens_them() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let world = World::new(&tpm, 2).await;
    world.disk_key().await;
    let (number, first) = leave(&world, &tpm).await.unwrap();
    assert_eq!(number, 1);
    let (number, second) = leave(&world, &tpm).await.unwrap();
    assert_eq!(number, 2);
    let both = json!([{"number": 2, "key": second}, {"number": 1, "key": first}]);
    assert_eq!(printed(&world.bench).await, both);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_over_the_key_broker_neither_lists_changes_nor_removes_recovery_keys() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let world = World::new(&tpm, 1).await;
    world.disk_key().await;
    leave(&world, &tpm).await.unwrap();
    let bench = &world.bench;
    let (machines, all) = (bench.objects::<Machine>().unwrap(), bench.objects().unwrap());
    let found: Vec<RecoveryKey> = all.list(&ListParams::default()).await.unwrap().items;
    let owner = machines.get(&Machine::name_of(&sample::machine_id(1))).await.unwrap();
    let owners = found[0].metadata.owner_references.clone().unwrap();
    assert_eq!((found.len(), Some(&owners[0].uid)), (1, owner.metadata.uid.as_ref()));

    let account = Component::KeyBroker.service_account();
    let token = bench.plane.token(&bench.namespace, account).await.unwrap();
    let broker = bench.plane.client(&token).unwrap();
    let keys: Api<RecoveryKey> = Api::namespaced(broker.clone(), &bench.namespace);
    let name = found[0].metadata.name.as_deref().unwrap();
    let other = Patch::Merge(json!({"spec": {"sealed": "{}"}}));
    keys.get(name).await.unwrap();
    assert_eq!(code(keys.list(&ListParams::default()).await), 403);
    assert_eq!(code(keys.delete(name, &DeleteParams::default()).await), 403);
    assert_eq!(code(keys.patch(name, &PatchParams::default(), &other).await), 403);
    let secrets: Api<Secret> = Api::namespaced(broker, &bench.namespace);
    let mut secret = Secret::default();
    secret.metadata.name = Some(name.to_owned());
    assert_eq!(code(secrets.create(&PostParams::default(), &secret).await), 403);
    // An admin may remove one, but may not change it.
    assert_eq!(code(all.patch(name, &PatchParams::default(), &other).await), 422);
    let mut elsewhere = RecoveryKey::of(sample::machine_id(1), 2, "{}");
    elsewhere.metadata.name = Some("recovery-of-nobody".to_owned());
    assert_eq!(code(all.create(&PostParams::default(), &elsewhere).await), 422);
    let large = RecoveryKey::of(sample::machine_id(1), 2, "x".repeat(8193));
    assert_eq!(code(all.create(&PostParams::default(), &large).await), 422);
}

#[tokio::test]
async fn recovery_keys_that_an_earlier_version_kept_in_secrets_are_read_carried_and_removed() {
    let bench = Bench::new().await.unwrap();
    let registry =
        KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, Arc::new(SystemClock));
    let id = sample::machine_id(1);
    let machine = Known::unclaimed(id, RegisteredBy::Admin, SystemClock.now());
    MachineRegistry::create(&registry, &machine, UnclaimedLimit::Unlimited).await.unwrap();
    let mut old = Secret::default();
    old.metadata.name = Some(format!("recovery-{id}-1"));
    let entry = ByteString(sample::sealed(1).expose("the test stores it").to_vec());
    old.data = Some([("root".to_owned(), entry)].into());
    bench.create(&old).await.unwrap();

    let line = sample::line();
    for (number, outcome) in [(1, PutOutcome::Existed), (2, PutOutcome::Stored)] {
        let path = sample::recovery_path(number);
        let put = registry.put_new(&path, &sample::sealed(number.into()), &line).await;
        assert_eq!(put.unwrap(), outcome);
        assert!(registry.exists(&path).await.unwrap());
    }
    let left = flow::escrowed(&registry, &id).await.unwrap();
    let wanted = [(2, sample::sealed(2)), (1, sample::sealed(1))];
    let same = left.iter().zip(&wanted).all(|(left, wanted)| left.1.ct_eq(&wanted.1));
    assert!(same && left.len() == 2);
    let units = registry.export(None, usize::MAX).await.unwrap();
    let TrustUnit::Machine(unit) = &units[0] else { panic!("{units:?}") };
    assert_eq!(unit.escrows.keys().collect::<Vec<_>>(), [&1, &2]);
    flow::remove_machine(&registry, &registry, &registry, &SystemClock, id).await.unwrap();
    for number in [1, 2] {
        assert!(!registry.exists(&sample::recovery_path(number)).await.unwrap());
    }
}
