//! Machines and attestation
//! keys.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tec_core::ak::{Fingerprint, SourceNetwork};
use tec_core::id::MachineId;
use tec_core::luks::content_key;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::api::{
    AttestationKey, ConditionKind, Machine, Reason, TrustedExecutionCluster, set_condition,
};
use tec_support::SystemClock;

fn machine(number: u64) -> Machine {
    let now = tec_core::port::Clock::now(&SystemClock);
    Machine::from_core(&Known::unclaimed(sample::machine_id(number), RegisteredBy::FirstBoot, now))
}

fn key(number: u64, machine: u64) -> AttestationKey {
    AttestationKey::from_core(&sample::ak(number, machine))
}

fn fingerprint(number: u64) -> Fingerprint {
    sample::public_key(number).fingerprint()
}

fn id(number: u64) -> MachineId {
    sample::machine_id(number)
}

/// Status and reason of a key's condition, such as `True MachineCreated`.
async fn verdict(bench: &Bench, name: &str) -> Option<String> {
    let key = bench.objects::<AttestationKey>().unwrap().get(name).await.unwrap();
    let conditions = key.status?.conditions;
    let approved = conditions.into_iter().find(|condition| condition.type_ == "Approved")?;
    Some(format!("{} {}", approved.status, approved.reason))
}

async fn has_verdict(bench: &Bench, name: &str, wanted: &str) {
    let what = format!("{name} is {wanted}");
    eventually(&what, async || Ok(verdict(bench, name).await.as_deref() == Some(wanted)))
        .await
        .unwrap();
}

async fn secret(bench: &Bench, name: &str) -> Option<Secret> {
    bench.objects::<Secret>().unwrap().get_opt(name).await.unwrap()
}

async fn is_published(bench: &Bench, number: u64) {
    let what = format!("the key of machine {number} is published");
    eventually(&what, async || Ok(bench.trust.key(&id(number)).is_some())).await.unwrap();
}

#[tokio::test]
async fn a_key_is_approved_in_either_order_and_goes_with_its_machine() {
    let mut bench = Bench::at_work().await.unwrap();
    let first = bench.create(&key(1, 1)).await.unwrap().name_any();
    has_verdict(&bench, &first, "False Waiting").await;
    let owner = bench.create(&machine(1)).await.unwrap();
    has_verdict(&bench, &first, "True MachineCreated").await;
    bench.create(&machine(2)).await.unwrap();
    let second = bench.create(&key(2, 2)).await.unwrap().name_any();
    has_verdict(&bench, &second, "True MachineCreated").await;
    for (name, number) in [(&first, 1), (&second, 2)] {
        eventually("the key is published", async || {
            Ok(bench.trust.ak(&id(number)) == Some(fingerprint(number)))
        })
        .await
        .unwrap();
        let secret = secret(&bench, name).await.unwrap();
        let entry = secret.data.clone().unwrap().remove("public_key").unwrap();
        assert_eq!(entry.0, sample::public_key(number).to_pem().into_bytes());
    }
    let object = bench.objects::<AttestationKey>().unwrap().get(&first).await.unwrap();
    let owners = object.owner_references();
    assert_eq!(owners.len(), 1);
    assert_eq!(Some(&owners[0].uid), owner.uid().as_ref());
    let of_secret = secret(&bench, &first).await.unwrap();
    assert_eq!(Some(&of_secret.owner_references()[0].uid), object.uid().as_ref());
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_key_is_rejected_and_waits_for_an_admin_once_the_first_is_revoked() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    let first = bench.create(&key(1, 1)).await.unwrap().name_any();
    has_verdict(&bench, &first, "True MachineCreated").await;
    let second = bench.create(&key(2, 1)).await.unwrap().name_any();
    has_verdict(&bench, &second, "False Rejected").await;
    assert!(secret(&bench, &second).await.is_none());
    let revoke = Patch::Merge(json!({"spec": {"revokedAt": "2026-01-01T00:00:00Z"}}));
    let keys = bench.objects::<AttestationKey>().unwrap();
    keys.patch(&first, &PatchParams::default(), &revoke).await.unwrap();
    has_verdict(&bench, &first, "False Revoked").await;
    has_verdict(&bench, &second, "False Waiting").await;
    approve(&bench, &second).await;
    has_verdict(&bench, &second, "True MachineCreated").await;
    eventually("the other key is published", async || {
        Ok(bench.trust.ak(&id(1)) == Some(fingerprint(2)) && secret(&bench, &first).await.is_none())
    })
    .await
    .unwrap();
    bench.stop().await.unwrap();
}

/// Writes what `kubectl tec ak approve` writes.
async fn approve(bench: &Bench, name: &str) {
    let keys = bench.objects::<AttestationKey>().unwrap();
    let generation = keys.get(name).await.unwrap().metadata.generation;
    let mut conditions = Vec::new();
    set_condition(
        &mut conditions,
        ConditionKind::AdminApproved,
        Reason::ApprovedByAdmin,
        "",
        generation,
        tec_core::port::Clock::now(&SystemClock),
    )
    .unwrap();
    let status = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": "AttestationKey",
        "status": { "conditions": conditions },
    });
    let params = PatchParams::apply("an-admin").force();
    let status = Patch::Apply(status);
    keys.patch_status(name, &params, &status).await.unwrap();
}

#[tokio::test]
async fn a_strangers_key_waits_when_the_object_of_the_bound_key_is_deleted() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    let mut own = key(1, 1);
    own.spec.endorsement_key = Some(fingerprint(77).to_string());
    let own = bench.create(&own).await.unwrap().name_any();
    has_verdict(&bench, &own, "True MachineCreated").await;
    let keys = bench.objects::<AttestationKey>().unwrap();
    keys.delete(&own, &DeleteParams::default()).await.unwrap();
    eventually("the key is gone", async || {
        Ok(keys.get_opt(&own).await?.is_none() && bench.trust.ak(&id(1)).is_none())
    })
    .await
    .unwrap();
    let stranger = bench.create(&key(2, 1)).await.unwrap().name_any();
    has_verdict(&bench, &stranger, "False Waiting").await;
    assert!(bench.trust.ak(&id(1)).is_none());
    let mut other_tpm = key(3, 1);
    other_tpm.spec.endorsement_key = Some(fingerprint(78).to_string());
    let other_tpm = bench.create(&other_tpm).await.unwrap().name_any();
    has_verdict(&bench, &other_tpm, "False Waiting").await;
    // The previous TPM needs no approval.
    let mut same_tpm = key(4, 1);
    same_tpm.spec.endorsement_key = Some(fingerprint(77).to_string());
    let same_tpm = bench.create(&same_tpm).await.unwrap().name_any();
    has_verdict(&bench, &same_tpm, "True MachineCreated").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_object_of_a_bound_machine_gets_nothing_for_a_strangers_key() {
    let mut bench = Bench::at_work().await.unwrap();
    let mut own = machine(1);
    // The admin chose this name; the other one is assigned by the registration server.
    own.metadata.name = Some("rack-7".to_owned());
    bench.create(&own).await.unwrap();
    let bound = bench.create(&key(1, 1)).await.unwrap().name_any();
    has_verdict(&bench, &bound, "True MachineCreated").await;
    is_published(&bench, 1).await;
    bench.create(&machine(1)).await.unwrap();
    let stranger = bench.create(&key(2, 1)).await.unwrap().name_any();
    eventually("the stranger's key is judged", async || {
        Ok(verdict(&bench, &stranger).await.is_some())
    })
    .await
    .unwrap();
    // The next one is judged after both.
    bench.create(&machine(2)).await.unwrap();
    let next = bench.create(&key(3, 2)).await.unwrap().name_any();
    has_verdict(&bench, &next, "True MachineCreated").await;
    let said = verdict(&bench, &stranger).await.unwrap();
    assert!(said.starts_with("False"), "{said}");
    assert_eq!(bench.trust.ak(&id(1)), Some(fingerprint(1)));
    has_verdict(&bench, &bound, "True MachineCreated").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_key_that_an_admin_approved_needs_no_endorsement_key_of_the_list() {
    let mut bench = Bench::at_work().await.unwrap();
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let policy = json!({"spec": {"approval": {
        "policy": "EndorsementKey", "allowedEndorsementKeys": [fingerprint(77).to_string()],
    }}});
    let params = PatchParams::default();
    let patched = clusters.patch("cluster", &params, &Patch::Merge(policy)).await;
    patched.unwrap();
    bench.create(&machine(1)).await.unwrap();
    let name = bench.create(&key(1, 1)).await.unwrap().name_any();
    has_verdict(&bench, &name, "False Waiting").await;
    approve(&bench, &name).await;
    has_verdict(&bench, &name, "True MachineCreated").await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_machine_whose_disk_key_an_older_operator_made_is_no_first_use() {
    let mut bench = Bench::at_work().await.unwrap();
    let secret = Secret {
        metadata: kube::api::ObjectMeta { name: Some(id(1).to_string()), ..Default::default() },
        data: Some([("root".to_owned(), ByteString(disk_key()))].into()),
        ..Secret::default()
    };
    bench.create(&secret).await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    is_published(&bench, 1).await;
    assert_eq!(bench.trust.key(&id(1)).unwrap(), disk_key(), "no other key is made");
    let name = bench.create(&key(1, 1)).await.unwrap().name_any();
    has_verdict(&bench, &name, "False Waiting").await;
    approve(&bench, &name).await;
    has_verdict(&bench, &name, "True MachineCreated").await;
    bench.stop().await.unwrap();
}

/// A disk key in the existing operator's format.
fn disk_key() -> Vec<u8> {
    json!({"key_type": "oct", "key": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"}).to_string().into_bytes()
}

#[tokio::test]
async fn first_use_lets_in_no_more_machines_than_the_cluster_says() {
    let mut bench = Bench::at_work().await.unwrap();
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let limits = json!({"maxClaimed": 3, "maxClaimedPerSource": 2});
    let patch = Patch::Merge(json!({"spec": {"approval": limits}}));
    for cluster in clusters.list(&ListParams::default()).await.unwrap() {
        let params = PatchParams::default();
        let patched = clusters.patch(&cluster.name_any(), &params, &patch).await;
        patched.unwrap();
    }
    let submit = async |number: u64, network: u8| {
        bench.create(&machine(number)).await.unwrap();
        let mut record = sample::ak(number, number);
        record.source = Some(SourceNetwork::of([192, 0, 2, network].into()));
        let object = AttestationKey::from_core(&record);
        bench.create(&object).await.unwrap().name_any()
    };
    for (number, network, wanted) in [
        (1, 1, "True MachineCreated"),
        (2, 1, "True MachineCreated"),
        (3, 1, "False Waiting"),
        (4, 2, "True MachineCreated"),
        (5, 3, "False Waiting"),
    ] {
        let name = submit(number, network).await;
        has_verdict(&bench, &name, wanted).await;
        if wanted.starts_with("True") {
            continue;
        }
        let keys = bench.objects::<AttestationKey>().unwrap();
        let status = keys.get(&name).await.unwrap().status.unwrap();
        let said = &status.conditions;
        assert!(said.iter().any(|one| one.message.starts_with("TEC-R431")));
    }
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn an_edited_key_counts_no_more() {
    let mut bench = Bench::at_work().await.unwrap();
    bench.create(&machine(1)).await.unwrap();
    let name = bench.create(&key(1, 1)).await.unwrap().name_any();
    has_verdict(&bench, &name, "True MachineCreated").await;
    let keys = bench.objects::<AttestationKey>().unwrap();
    let set = async |number| {
        let pem = sample::public_key(number).to_pem();
        let patch = Patch::Merge(json!({"spec": {"publicKey": pem}}));
        keys.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    };
    set(2).await;
    has_verdict(&bench, &name, "False KeyChanged").await;
    eventually("neither key counts", async || {
        Ok(bench.trust.ak(&id(1)).is_none() && secret(&bench, &name).await.is_none())
    })
    .await
    .unwrap();
    set(1).await;
    has_verdict(&bench, &name, "True MachineCreated").await;
    eventually("it counts again", async || Ok(bench.trust.ak(&id(1)) == Some(fingerprint(1))))
        .await
        .unwrap();
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_machine_gets_a_key_of_the_known_form_and_it_is_published() {
    let mut bench = Bench::at_work().await.unwrap();
    let owner = bench.create(&machine(1)).await.unwrap();
    is_published(&bench, 1).await;
    let object = secret(&bench, &id(1).to_string()).await.unwrap();
    assert_eq!(Some(&object.owner_references()[0].uid), owner.uid().as_ref());
    assert_eq!(object.immutable, Some(true));
    let bytes = object.data.unwrap().remove("root").unwrap().0;
    assert_eq!(bench.trust.key(&id(1)).unwrap(), bytes);
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        (json["key_type"].as_str(), json["key"].as_str().map(str::len)),
        (Some("oct"), Some(32))
    );
    content_key(&SecretBytes::new(bytes)).unwrap();
    eventually("the machine says so", async || {
        let machine = bench.objects::<Machine>()?.get(&owner.name_any()).await?;
        Ok(machine.status.is_some_and(|status| status.published_to == ["trustee"]))
    })
    .await
    .unwrap();
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_deleted_machine_loses_its_key_also_when_the_trustee_is_down() {
    let mut bench = Bench::at_work().await.unwrap();
    let machines = bench.objects::<Machine>().unwrap();
    let names: Vec<String> = [1, 2].map(|number| machine(number).name_any()).into();
    for number in [1, 2] {
        bench.create(&machine(number)).await.unwrap();
        is_published(&bench, number).await;
    }
    let is_gone = async |name: &str| machines.get_opt(name).await.unwrap().is_none();
    machines.delete(&names[0], &DeleteParams::default()).await.unwrap();
    eventually("the first machine is gone", async || Ok(is_gone(&names[0]).await)).await.unwrap();
    assert_eq!(bench.trust.key(&id(1)), None, "the Trustee lost it first");
    bench.trust.set_down(true);
    machines.delete(&names[1], &DeleteParams::default()).await.unwrap();
    let rounds = bench.trust.rounds();
    eventually("the Trustee is tried", async || Ok(bench.trust.rounds() > rounds + 2))
        .await
        .unwrap();
    assert!(!is_gone(&names[1]).await, "it waits for the Trustee");
    bench.clock.advance(61);
    eventually("the second machine is gone", async || Ok(is_gone(&names[1]).await)).await.unwrap();
    bench.trust.set_down(false);
    eventually("the Trustee lost its key, too", async || Ok(bench.trust.key(&id(2)).is_none()))
        .await
        .unwrap();
    for number in [1, 2] {
        eventually("its Secret is collected", async || {
            Ok(secret(&bench, &id(number).to_string()).await.is_none())
        })
        .await
        .unwrap();
    }
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_poisoned_machine_holds_up_nobody() {
    let mut bench = Bench::at_work().await.unwrap();
    for (name, poison) in [
        ("a-not-a-uuid", "../../etc"),
        ("a-secret-of-somebody", "trustee-auth"),
        ("a-loud-uuid", "00000000-0000-0000-0000-00000000000A"),
        ("a-empty", ""),
    ] {
        let mut object = machine(1);
        object.metadata.name = Some(name.to_owned());
        object.spec.id = poison.to_owned();
        bench.create(&object).await.unwrap();
    }
    let mut twin = machine(9);
    twin.metadata.name = Some("a-twin".to_owned());
    bench.create(&twin).await.unwrap();
    bench.create(&machine(9)).await.unwrap();
    bench.create(&machine(2)).await.unwrap();
    for number in [2, 9] {
        is_published(&bench, number).await;
    }
    let machines = bench.objects::<Machine>().unwrap();
    for (name, reason) in
        [("a-not-a-uuid", "Malformed"), ("a-loud-uuid", "Malformed"), ("a-twin", "Duplicate")]
    {
        eventually(&format!("{name} is {reason}"), async || {
            let machine = machines.get(name).await?;
            let conditions = machine.status.map(|status| status.conditions).unwrap_or_default();
            Ok(conditions.iter().any(|c| c.type_ == "Ready" && c.reason == reason))
        })
        .await
        .unwrap();
    }
    machines.delete("a-twin", &DeleteParams::default()).await.unwrap();
    eventually("the twin is gone", async || Ok(machines.get_opt("a-twin").await?.is_none()))
        .await
        .unwrap();
    assert!(bench.trust.key(&id(9)).is_some(), "the key belongs to the other one");
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn everything_is_stated_again_after_a_restart_before_anything_is_published() {
    let mut bench = Bench::at_work().await.unwrap();
    for number in 1..=20 {
        bench.create(&machine(number)).await.unwrap();
    }
    for number in 1..=20 {
        is_published(&bench, number).await;
    }
    let secrets = bench.objects::<Secret>().unwrap();
    let versions = async || {
        let list = secrets.list(&kube::api::ListParams::default()).await.unwrap();
        list.items.iter().map(|s| (s.name_any(), s.resource_version())).collect::<Vec<_>>()
    };
    let before = versions().await;
    bench.kill().await;
    bench.trust = std::sync::Arc::default();
    bench.start("two").unwrap();
    eventually("a round", async || Ok(bench.trust.rounds() > 0)).await.unwrap();
    for number in 1..=20 {
        assert!(bench.trust.key(&id(number)).is_some(), "machine {number} is in the first round");
    }
    assert_eq!(versions().await, before, "no Secret was written");
    bench.stop().await.unwrap();
}
