//! Machines, their configs, and when there are none.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

use kube::{Api, ResourceExt as _};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::render::Component;
use tokio::time::Instant;

use super::world::{CONFIG, SOON, World, id_of, pin};

/// Removes null members, which mean the same as missing ones.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            members.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_get_two_machines_and_the_documented_config() {
    let world = World::new("register").await;
    let cluster = world
        .cluster(
            "c",
            &json!({
                "publicTrusteeAddr": "kbs.example:8080",
                "publicAttestationKeyRegisterAddr": "ak.example:8001",
            }),
        )
        .await;
    let server = world.server(Component::RegisterServer, &[]).await;
    let first = world.until(&server, StatusCode::OK).await;
    let mut ids = BTreeSet::from([id_of(&pin(&first))]);
    for path in ["/ignition", "/register", "/ignitioni-clevis-pin-trustee"] {
        let (status, config) = world.get(&server, path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        ids.insert(id_of(&pin(&config)));
    }
    let machines = world.machines().await;
    assert_eq!((ids.len(), machines.len()), (4, 4));
    for machine in machines {
        assert!(ids.contains(&machine.spec.id));
        assert_eq!(machine.name_any(), format!("machine-{}", machine.spec.id));
        let owners = machine.owner_references();
        assert_eq!(owners.len(), 1);
        assert_eq!(Some(&owners[0].uid), cluster.metadata.uid.as_ref());
    }
    let id = id_of(&pin(&first));
    let expected = json!({
        "servers": [{ "url": "http://kbs.example:8080", "cert": "" }],
        "path": format!("default/{id}/root"),
        "attestation_key": { "registration": {
            "url": "http://ak.example:8001/register-ak", "uuid": id, "cert": "",
        }},
    });
    assert_eq!(without_nulls(pin(&first)), expected);
    let mut outer = without_nulls(first);
    outer["storage"]["luks"][0]["clevis"]["custom"]["config"] = Value::Null;
    let expected = json!({
        "ignition": { "version": "3.6.0" },
        "storage": {
            "filesystems": [{
                "device": "/dev/mapper/root", "format": "ext4", "label": "root",
                "wipeFilesystem": true,
            }],
            "luks": [{
                "name": "root", "label": "root", "device": "/dev/disk/by-partlabel/root",
                "wipeVolume": true,
                "clevis": { "custom": { "pin": "trustee", "needsNetwork": true } },
            }],
        },
    });
    assert_eq!(without_nulls(outer), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_address_or_authority_nobody_is_registered() {
    let world = World::new("fail-closed").await;
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.crt");
    let flags = [OsStr::new("--kbs-ca"), ca.as_os_str()];
    let server = world.server(Component::RegisterServer, &flags).await;
    let not_ready = StatusCode::SERVICE_UNAVAILABLE;
    let body = world.until(&server, not_ready).await;
    assert_eq!((&body["code"], &body["error"]), (&json!(503), &json!("TEC-R504")));

    let cluster = world.cluster("c", &json!({ "trusteeSecret": "kbs-tls" })).await;
    assert_eq!(world.get(&server, CONFIG).await.0, not_ready);
    let patch = json!({ "spec": { "publicTrusteeAddr": "kbs.example" } });
    let clusters: Api<TrustedExecutionCluster> = world.api();
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Merge(patch);
    clusters.patch(&cluster.name_any(), &params, &patch).await.unwrap();
    // The address exists, but the CA does not: what the log says is not shown to nodes.
    let end = Instant::now() + SOON;
    while !server.log().unwrap().contains("ca.crt") {
        assert!(Instant::now() < end, "{}", server.log().unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (status, body) = world.get(&server, CONFIG).await;
    assert_eq!(status, not_ready);
    assert!(!body.to_string().contains("ca.crt"), "{body}");
    fs::write(&ca, "no certificate").unwrap();
    assert_eq!(world.get(&server, CONFIG).await.0, not_ready);
    assert_eq!(world.machines().await.len(), 0);

    // Once it exists, nodes that come back are registered.
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
    fs::write(&ca, &authority).unwrap();
    let pin = pin(&world.until(&server, StatusCode::OK).await);
    assert_eq!(pin["servers"][0], json!({ "url": "https://kbs.example", "cert": authority }));
    assert_eq!(pin["attestation_key"], Value::Null);
    assert_eq!(world.machines().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registration_policy_counts_at_once() {
    let world = World::new("policy").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "0123456789abcdef\n").unwrap();
    let flags = [OsStr::new("--token-file"), file.as_os_str()];
    let server = world.server(Component::RegisterServer, &flags).await;
    world
        .cluster(
            "c",
            &json!({
                "publicTrusteeAddr": "kbs.example", "registration": { "mode": "Token" },
            }),
        )
        .await;
    world.until(&server, StatusCode::UNAUTHORIZED).await;
    let call = world.http.get(format!("http://{}{CONFIG}", server.address));
    let call = call.header("authorization", "Bearer 0123456789abcdef");
    assert_eq!(call.send().await.unwrap().status(), StatusCode::OK);
    let manual = json!({ "spec": { "registration": { "mode": "Manual" } } });
    let clusters: Api<TrustedExecutionCluster> = world.api();
    let params = kube::api::PatchParams::default();
    let manual = kube::api::Patch::Merge(manual);
    clusters.patch("c", &params, &manual).await.unwrap();
    let body = world.until(&server, StatusCode::FORBIDDEN).await;
    assert_eq!(body["error"], "TEC-R403");
    assert_eq!(world.machines().await.len(), 1);
}
