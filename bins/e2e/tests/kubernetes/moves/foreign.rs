//! The wrong cluster, a target with foreign objects, and a deleted record.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tec_core::code::Code;
use tec_core::migrate::Role;
use tec_core::port::{
    AkRegistry as _, ImageRegistry as _, MachineRegistry as _, SecretStore as _, UnclaimedLimit,
};
use tec_core::testing::sample;
use tec_k8s::api::AUTHORITY;

use super::pair::{Pair, Place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_cluster_gets_nothing() {
    let pair = Pair::with(2).await;
    pair.migrate("cutover").unwrap();
    let wrong = Place::new().await;
    for verb in ["apply", "cutover"] {
        let said = pair.run(pair.command_to(&wrong, verb, &[])).unwrap_err();
        assert!(said.contains("TEC-M421"), "{said}");
    }
    let said = pair.run(pair.command_to(&wrong, "rollback", &[])).unwrap_err();
    assert!(said.contains("TEC-M"), "{said}");
    assert!(wrong.authority().await.is_alone());
    assert!(wrong.keys().await.is_empty(), "no key went to a stranger");
    pair.holds("after the wrong cluster").await;
    assert_eq!(pair.roles().await, [Role::ServeOnly, Role::Active]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_at_the_target_is_listed_and_never_overwritten() {
    let pair = Pair::with(4).await;
    let (target, line) = (pair.target.registry(), sample::line());
    // Machine 1 has a different disk key there, machine 2 a different attestation key; machine 3's key
    // belongs to a different machine, and the image has different measurements.
    for number in [1, 2] {
        let machine = sample::machine(number);
        target.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    }
    let path = sample::secret_path(1);
    target.put_new(&path, &sample::secret(77), &line).await.unwrap();
    target.bind(&sample::approved_ak(78, 2), &line).await.unwrap();
    let other = sample::machine(79);
    target.create(&other, UnclaimedLimit::Unlimited).await.unwrap();
    target.bind(&sample::approved_ak(3, 79), &line).await.unwrap();
    let mut image = sample::image(2);
    image.name = sample::image(1).name;
    target.put(&image).await.unwrap();

    let planned = pair.migrate("plan").unwrap();
    let listed = planned["copy"]["conflicts"].as_array().unwrap();
    let clashes: Vec<_> =
        listed.iter().map(|conflict| conflict["clash"].as_str().unwrap()).collect();
    assert_eq!(clashes, ["image", "disk-key", "bound-key", "key-of-another"]);
    for verb in ["apply", "cutover"] {
        let said = pair.migrate(verb).unwrap_err();
        assert!(said.contains("TEC-M409"), "{said}");
    }
    assert_eq!(pair.roles().await, [Role::Active, Role::Standby]);
    let here = pair.target.keys().await;
    let theirs = sample::secret(77).expose("the test compares").to_vec();
    let of_one = here.get(&sample::machine_id(1));
    assert_eq!(of_one, Some(&theirs), "what was there stays");
    assert!(here.contains_key(&sample::machine_id(4)), "what fits was copied");
    let source = pair.source.keys().await;
    assert_eq!(source, pair.keys, "the source has what it had");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_removes_the_record_makes_no_second_authority() {
    let pair = Pair::with(2).await;
    pair.migrate("cutover").unwrap();
    let objects = pair.source.bench.objects::<ConfigMap>().unwrap();
    let before = pair.source.authority().await;
    for emptied in [false, true] {
        if emptied {
            let patch = Patch::Merge(json!({"data": null}));
            let params = PatchParams::default();
            objects.patch(AUTHORITY, &params, &patch).await.unwrap();
        } else {
            let params = DeleteParams::default();
            objects.delete(AUTHORITY, &params).await.unwrap();
        }
        let refused = pair.source.admit(50).await.unwrap_err();
        assert_eq!(refused.code(), Some(Code::AuthorityElsewhere), "{refused:?}");
        // The next reader finds the record again, and it is the same anchor.
        assert_eq!(pair.source.authority().await, before);
        pair.holds("the record was removed").await;
        pair.target.admit(60 + u64::from(emptied)).await.unwrap();
    }
    pair.migrate("rollback").unwrap();
    assert_eq!(pair.roles().await, [Role::Active, Role::ServeOnly]);
    pair.source.admit(51).await.unwrap();
}
