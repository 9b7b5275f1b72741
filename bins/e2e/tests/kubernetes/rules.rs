//! What the API server itself
//! refuses.

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tec_e2e::kube::Bench;
use tec_k8s::api::{ApprovedImage, AttestationKey, Machine, TrustedExecutionCluster};

const IMAGE: &str = "registry.example/os@sha256:\
    3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";

async fn create<K>(api: &Api<K>, kind: &str, name: &str, spec: &Value) -> Result<K, String>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }))
    .unwrap();
    let made = api.create(&PostParams::default(), &object).await;
    made.map_err(|error| error.to_string())
}

async fn change<K>(api: &Api<K>, name: &str, spec: &Value) -> Result<K, String>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({ "spec": spec }));
    let changed = api.patch(name, &PatchParams::default(), &patch).await;
    changed.map_err(|error| error.to_string())
}

#[tokio::test]
async fn further_key_brokers_come_and_go_and_each_has_its_ca_or_plain_http() {
    let bench = Bench::new().await.unwrap();
    let api = bench.objects::<TrustedExecutionCluster>().unwrap();
    create(&api, "TrustedExecutionCluster", "list", &json!({})).await.unwrap();
    let (ca, plain) = (
        json!({"address": "a", "certificateAuthority": "PEM"}),
        json!({"address": "b", "dangerousPlainHttp": true}),
    );
    for list in [json!([ca]), json!([ca, plain]), json!([plain]), Value::Null] {
        change(&api, "list", &json!({"additionalTrustees": list})).await.unwrap();
    }
    let both = json!({"address": "a", "certificateAuthority": "PEM", "dangerousPlainHttp": true});
    let neither = json!({"address": "a"});
    let denied = json!({"address": "a", "dangerousPlainHttp": false});
    for bad in [both, neither, denied] {
        let list = json!({"additionalTrustees": [bad]});
        let refused = change(&api, "list", &list).await.unwrap_err();
        assert!(refused.contains("Either certificateAuthority"), "{refused}");
    }
    let many = json!({"additionalTrustees": vec![ca; 9]});
    assert!(change(&api, "list", &many).await.unwrap_err().contains("Too many"));
}

#[tokio::test]
async fn evidence_of_azure_needs_a_key_broker_that_checks_it_and_guests_that_are_named() {
    let bench = Bench::new().await.unwrap();
    let api = bench.objects::<TrustedExecutionCluster>().unwrap();
    let guests = json!({"idKeys": ["1d".repeat(48)]});
    let azure = json!({"kinds": ["Tpm", "AzSnpVtpm"], "snp": guests});
    create(&api, "TrustedExecutionCluster", "trustee", &json!({})).await.unwrap();
    let refused = change(&api, "trustee", &json!({"evidence": azure})).await.unwrap_err();
    assert!(refused.contains("needs keyBroker Builtin"), "{refused}");
    let spec = json!({"keyBroker": "Builtin", "evidence": azure});
    change(&api, "trustee", &spec).await.unwrap();
    let back = change(&api, "trustee", &json!({"keyBroker": "Trustee"})).await.unwrap_err();
    assert!(back.contains("needs keyBroker Builtin"), "{back}");
    for (bad, message) in [
        (json!({"snp": null}), "needs snp.idKeys or snp.measurements"),
        (json!({"snp": {"idKeys": []}}), "needs snp.idKeys or snp.measurements"),
        (json!({"kinds": ["Tpm"]}), "snp needs the kind AzSnpVtpm"),
        (json!({"kinds": []}), "at least 1 items"),
        (json!({"snp": {"idKeys": ["1d"]}}), "should match"),
        (json!({"kinds": ["Sample"]}), "Unsupported value"),
    ] {
        let refused = change(&api, "trustee", &json!({"evidence": bad})).await.unwrap_err();
        assert!(refused.contains(message), "{bad}: {refused}");
    }
}

#[tokio::test]
async fn every_field_of_a_cluster_is_fixed_but_the_address_may_come_later() {
    let bench = Bench::new().await.unwrap();
    let api = bench.objects::<TrustedExecutionCluster>().unwrap();
    let kind = "TrustedExecutionCluster";
    create(&api, kind, "late", &json!({})).await.unwrap();
    change(&api, "late", &json!({"publicTrusteeAddr": "a:1"})).await.unwrap();
    for (value, message) in
        [(json!("b:1"), "Value is immutable"), (Value::Null, "Value is required once set")]
    {
        let refused = change(&api, "late", &json!({"publicTrusteeAddr": value})).await.unwrap_err();
        assert!(refused.contains(message), "{refused}");
    }
    for (number, (field, one, two)) in [
        ("publicAttestationKeyRegisterAddr", json!("a"), json!("b")),
        ("trusteeSecret", json!("a"), json!("b")),
        ("registerServerSecret", json!("a"), json!("b")),
        ("attestationKeyRegisterSecret", json!("a"), json!("b")),
        ("trusteeKbsPort", json!(1), json!(2)),
        ("registerServerPort", json!(1), json!(2)),
        ("attestationKeyRegisterPort", json!(1), json!(2)),
    ]
    .into_iter()
    .enumerate()
    {
        let refused = change(&api, "late", &json!({field: one})).await.unwrap_err();
        assert!(refused.contains("Value must be set at creation"), "{field}: {refused}");
        let name = format!("with-{number}");
        create(&api, kind, &name, &json!({field: one})).await.unwrap();
        change(&api, &name, &json!({field: one})).await.unwrap();
        for (value, message) in
            [(two, "Value is immutable"), (Value::Null, "Value is required once set")]
        {
            let refused = change(&api, &name, &json!({field: value})).await.unwrap_err();
            assert!(refused.contains(message), "{field}: {refused}");
        }
    }
}

#[tokio::test]
async fn ids_and_images_never_change_and_what_is_revoked_stays_so() {
    let bench = Bench::new().await.unwrap();
    let machines = bench.objects::<Machine>().unwrap();
    create(&machines, "Machine", "m", &json!({"id": "anything"})).await.unwrap();
    assert!(change(&machines, "m", &json!({"id": "other"})).await.is_err());
    let keys = bench.objects::<AttestationKey>().unwrap();
    create(&keys, "AttestationKey", "k", &json!({"publicKey": "text"})).await.unwrap();
    change(&keys, "k", &json!({"publicKey": "other", "uuid": "x"})).await.unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    create(&images, "ApprovedImage", "i", &json!({"image": IMAGE})).await.unwrap();
    let other = IMAGE.replace("/os@", "/other@");
    assert!(change(&images, "i", &json!({"image": other})).await.is_err());
    change(&images, "i", &json!({"expiresAt": "2030-01-01T00:00:00Z"})).await.unwrap();
    change(&images, "i", &json!({"expiresAt": null})).await.unwrap();
    let since = json!({"revokedAt": "2026-01-01T00:00:00Z"});
    change(&machines, "m", &since).await.unwrap();
    assert!(change(&machines, "m", &json!({"revokedAt": null})).await.is_err());
    change(&keys, "k", &since).await.unwrap();
    change(&machines, "m", &json!({"quarantinedAt": "2026-01-01T00:00:00Z"})).await.unwrap();
    change(&machines, "m", &json!({"quarantinedAt": null})).await.unwrap();
    change(&machines, "m", &json!({"retiredAt": "2026-01-01T00:00:00Z"})).await.unwrap();
    assert!(change(&machines, "m", &json!({"retiredAt": null})).await.is_err());
    assert!(change(&keys, "k", &json!({"revokedAt": null})).await.is_err());
    change(&images, "i", &since).await.unwrap();
    assert!(change(&images, "i", &json!({"revokedAt": null})).await.is_err());
    let odd = change(&images, "i", &json!({"expiresAt": "tomorrow"})).await;
    assert!(odd.is_err(), "a time is RFC 3339");
}

#[tokio::test]
async fn an_image_is_referenced_by_digest() {
    let bench = Bench::new().await.unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    for bad in ["", "registry.example/os:latest", "registry.example/os@sha512:00"] {
        let refused = create(&images, "ApprovedImage", "bad", &json!({"image": bad})).await;
        assert!(refused.is_err(), "{bad}");
    }
    create(&images, "ApprovedImage", "good", &json!({"image": IMAGE})).await.unwrap();
}
