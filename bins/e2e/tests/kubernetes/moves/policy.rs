//! What an anchor keeps in addition to its units moves along: demands, CA, certificates, audit log.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_core::migrate::Role;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::client::{AUDIT_OF, CA_SECRET, RENEW_AT};

use super::pair::{Pair, Place};

/// The same namespace with a different cluster object.
async fn demand(place: &Place, spec: Value) {
    let clusters = place.bench.objects::<TrustedExecutionCluster>().unwrap();
    clusters.delete("cluster", &DeleteParams::default()).await.unwrap();
    let cluster: TrustedExecutionCluster = serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": "TrustedExecutionCluster", "metadata": {"name": "cluster"}, "spec": spec,
    }))
    .unwrap();
    place.bench.create(&cluster).await.unwrap();
}

async fn certificate(place: &Place, name: &str, ca: &str) {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": name}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": format!("leaf of {ca}"), "tls.key": "key", "ca.crt": ca},
    }))
    .unwrap();
    place.bench.create(&secret).await.unwrap();
}

/// Stores a certificate as issued by an operator.
async fn issue(place: &Place, name: &str, ca: &str) {
    let clusters = place.bench.objects::<TrustedExecutionCluster>().unwrap();
    let owner = clusters.get("cluster").await.unwrap();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {
            "name": name, "annotations": {RENEW_AT: "1"},
            "ownerReferences": [owner.controller_owner_ref(&()).unwrap()],
        },
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": format!("leaf of {ca}"), "tls.key": "key", "ca.crt": ca},
    }))
    .unwrap();
    place.bench.create(&secret).await.unwrap();
}

async fn entry(place: &Place, name: &str, entry: &str) -> Option<String> {
    let secrets = place.bench.objects::<Secret>().unwrap();
    let data = secrets.get_opt(name).await.unwrap()?.data?;
    Some(String::from_utf8(data.get(entry)?.0.clone()).unwrap())
}

async fn spec(place: &Place) -> Value {
    let clusters = place.bench.objects::<TrustedExecutionCluster>().unwrap();
    serde_json::to_value(clusters.get("cluster").await.unwrap().spec).unwrap()
}

fn verdict(report: &Value, what: &str) -> Value {
    let all = report["belongings"].as_array().unwrap();
    let found = all.iter().find(|one| one["what"] == what);
    found.map_or(Value::Null, |one| one["verdict"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_and_certificates_come_along_and_nothing_is_overwritten() {
    let pair = Pair::with(2).await;
    let demands = json!({
        "registration": {"mode": "Token", "tokenSecret": "nodes"},
        "approval": {"policy": "Manual"}, "trusteeSecret": "old-tls",
    });
    demand(&pair.source, demands).await;
    demand(&pair.target, json!({"trusteeSecret": "new-tls"})).await;
    certificate(&pair.source, "old-tls", "one").await;
    certificate(&pair.source, CA_SECRET, "one").await;
    let token: Secret = serde_json::from_value(json!({
        "metadata": {"name": "nodes"}, "stringData": {"token": "of the nodes"},
    }))
    .unwrap();
    pair.source.bench.create(&token).await.unwrap();

    let planned = pair.migrate("plan").unwrap();
    for what in
        ["registration and approval", "registration token", "CA", "certificate of the key broker"]
    {
        assert_eq!(verdict(&planned, what), "bring", "{what}: {planned}");
    }
    assert_eq!(entry(&pair.target, CA_SECRET, "ca.crt").await, None, "a plan changes nothing");
    pair.migrate("apply").unwrap();
    for (name, key, value) in [
        (CA_SECRET, "ca.crt", "one"),
        ("new-tls", "tls.crt", "leaf of one"),
        ("trust-registration-token", "token", "of the nodes"),
    ] {
        assert_eq!(entry(&pair.target, name, key).await.as_deref(), Some(value), "{name}");
    }
    let here = spec(&pair.target).await;
    assert_eq!(here["approval"]["policy"], "Manual");
    assert_eq!(here["registration"]["mode"], "Token");
    assert_eq!(here["trusteeSecret"], "new-tls");
    pair.migrate("verify").unwrap();
    let again = pair.migrate("apply").unwrap();
    assert_eq!(verdict(&again, "CA"), "same", "{again}");
    pair.migrate("cutover").unwrap();
    assert_eq!(pair.roles().await, [Role::ServeOnly, Role::Active]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_demands_something_else_is_a_conflict_or_a_stated_choice() {
    let pair = Pair::with(1).await;
    demand(&pair.source, json!({"approval": {"policy": "Manual"}})).await;
    demand(&pair.target, json!({"approval": {"policy": "FirstUse"}})).await;
    certificate(&pair.source, CA_SECRET, "one").await;
    certificate(&pair.target, CA_SECRET, "two").await;
    for verb in ["apply", "cutover"] {
        let said = pair.migrate(verb).unwrap_err();
        assert!(said.contains("TEC-M409") && said.contains("registration and approval"), "{said}");
        assert!(said.contains("CA"), "{said}");
    }
    assert!(pair.target.authority().await.is_alone(), "nothing was begun");
    let said = pair.migrate("verify").unwrap_err();
    assert!(said.contains("TEC-M422"), "{said}");
    let half = pair.run(pair.command("apply", &["--keep-target=policy"]));
    assert!(half.unwrap_err().contains("CA"), "each is chosen by its name");
    pair.run(pair.command("cutover", &["--keep-target=policy,ca"])).unwrap();
    assert_eq!(spec(&pair.target).await["approval"]["policy"], "FirstUse", "it stays");
    assert_eq!(entry(&pair.target, CA_SECRET, "ca.crt").await.as_deref(), Some("two"));
    assert_eq!(pair.roles().await, [Role::ServeOnly, Role::Active]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_was_issued_for_no_node_gives_way_to_the_one_that_nodes_pin() {
    let pair = Pair::with(1).await;
    for name in [CA_SECRET, "tec-kbs-tls"] {
        issue(&pair.source, name, "one").await;
        issue(&pair.target, name, "two").await;
    }
    let planned = pair.migrate("plan").unwrap();
    for what in ["CA", "certificate of the key broker"] {
        assert_eq!(verdict(&planned, what), "bring", "{what}: {planned}");
    }
    pair.migrate("apply").unwrap();
    for name in [CA_SECRET, "tec-kbs-tls"] {
        let ca = entry(&pair.target, name, "ca.crt").await;
        assert_eq!(ca.as_deref(), Some("one"), "{name}");
    }
    // Pinned data here is never replaced.
    let again = pair.migrate("apply").unwrap();
    assert_eq!(verdict(&again, "CA"), "same", "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_log_of_the_old_anchor_is_kept_by_the_new_one() {
    let pair = Pair::with(2).await;
    pair.migrate("cutover").unwrap();
    let of = pair.source.authority().await.anchor();
    // Nothing is published here, so nothing is waiting to be published, either.
    let machines = pair.target.bench.objects::<tec_k8s::api::Machine>().unwrap();
    for machine in machines.list(&ListParams::default()).await.unwrap().items {
        let status = json!({"status": {"conditions": [{
            "type": "KeyPublished", "status": "True", "reason": "AsDesired", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let patch = kube::api::Patch::Merge(status);
        let params = kube::api::PatchParams::default();
        machines.patch_status(&machine.name_any(), &params, &patch).await.unwrap();
    }
    let retired = pair.migrate("retire").unwrap();
    let kept = &retired["audit"];
    assert!(kept["lines"].as_u64().unwrap() >= 4, "{retired}");
    let maps = pair.target.bench.objects::<ConfigMap>().unwrap();
    let params = ListParams::default().labels(&format!("{AUDIT_OF}={of}"));
    assert!(maps.list(&params).await.unwrap().items.len() >= 2, "an index, and pages");
    let index = maps.get(kept["kept_as"].as_str().unwrap()).await.unwrap().data.unwrap();
    let mut lines = String::new();
    for name in index["pages"].lines() {
        let page = maps.get(name).await.unwrap();
        assert_eq!(page.immutable, Some(true));
        lines += &page.data.unwrap()["lines"];
    }
    assert_eq!(index["sha256"], Sha256Digest::of(&lines).to_string(), "all of it, in order");
    assert_eq!(kept["sha256"], index["sha256"].as_str());
    for said in ["authority-moved", "keys-shredded", "ak-bound"] {
        assert!(lines.contains(said), "{said} is not in {lines}");
    }
    let again = pair.migrate("retire").unwrap();
    assert_eq!(again["audit"], Value::Null, "it is there already");
    assert_eq!(pair.roles().await, [Role::Retired, Role::Active]);
}
