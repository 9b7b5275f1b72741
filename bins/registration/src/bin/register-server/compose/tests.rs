use serde_json::{Value, json};
use tec_k8s::api::TrustedExecutionClusterStatus;
use tempfile::TempDir;

use super::*;

fn cluster(spec: &Value) -> Arc<TrustedExecutionCluster> {
    let object = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": "TrustedExecutionCluster",
        "metadata": { "name": "c" },
        "spec": spec,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A directory with a `ca.crt` created by the built-in CA.
fn ca() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let source = tec_support::tls::Source::BuiltIn {
        directory: directory.path().to_owned(),
        names: vec!["localhost".to_owned()],
    };
    tec_support::tls::LiveCertificate::load(source, &SystemClock).unwrap();
    let file = tec_support::tls::built_in_ca(directory.path());
    (directory, file)
}

#[test]
fn plain_addresses_are_told_where_the_object_asks_for_plain_http() {
    let cluster = cluster(&json!({
        "publicTrusteeAddr": "kbs.example:8080", "dangerousPlainHttp": true,
        "registration": { "mode": "Open" },
    }));
    let setting = read(Some(&cluster), &Files::default()).unwrap();
    assert_eq!(setting.kbs.url.as_str(), "http://kbs.example:8080");
    assert_eq!((setting.kbs.cert.as_str(), setting.ak), ("", None));
}

#[test]
fn without_secrets_nodes_are_told_of_issued_certificates_or_nothing() {
    let (_directory, file) = ca();
    let cluster = cluster(&json!({
        "publicTrusteeAddr": "kbs.example:8080",
        "publicAttestationKeyRegisterAddr": "ak.example:8001",
        "registration": { "mode": "Open" },
    }));
    let mut files = Files::default();
    assert!(matches!(read(Some(&cluster), &files), Err(NotReady::NoFlag { .. })));
    (files.kbs_ca, files.ak_ca) = (Some(file.clone()), Some(file));
    let setting = read(Some(&cluster), &files).unwrap();
    assert_eq!(setting.kbs.url.as_str(), "https://kbs.example:8080");
    assert_eq!(setting.ak.unwrap().url.as_str(), "https://ak.example:8001");
}

#[test]
fn a_server_with_a_secret_is_told_with_its_ca_or_not_at_all() {
    let (directory, file) = ca();
    let cluster = cluster(&json!({
        "publicTrusteeAddr": "kbs.example", "trusteeSecret": "kbs-tls",
        "dangerousPlainHttp": true, "publicAttestationKeyRegisterAddr": "ak.example:8001",
        "registration": { "mode": "Open" },
    }));
    let mut files = Files::default();
    assert!(matches!(read(Some(&cluster), &files), Err(NotReady::NoFlag { .. })));
    files.kbs_ca = Some(directory.path().join("absent"));
    assert!(matches!(read(Some(&cluster), &files), Err(NotReady::Read(_))));
    let garbage = directory.path().join("garbage");
    std::fs::write(&garbage, "no certificate").unwrap();
    files.kbs_ca = Some(garbage);
    assert!(matches!(read(Some(&cluster), &files), Err(NotReady::NoCertificate { .. })));
    files.kbs_ca = Some(file);
    let setting = read(Some(&cluster), &files).unwrap();
    assert_eq!(setting.kbs.url.as_str(), "https://kbs.example");
    assert!(setting.kbs.cert.contains("BEGIN CERTIFICATE"));
    assert_eq!(setting.ak.unwrap().url.as_str(), "http://ak.example:8001");
}

#[test]
fn all_key_brokers_are_handed_out_in_order_or_none_is() {
    let trustees = |trustees: Value| {
        cluster(&json!({
            "publicTrusteeAddr": "kbs.example", "dangerousPlainHttp": true,
            "registration": { "mode": "Open" }, "additionalTrustees": trustees,
        }))
    };
    let (b, c) = (
        json!({ "address": "b.example:1", "dangerousPlainHttp": true }),
        json!({ "address": "https://c.example", "dangerousPlainHttp": true }),
    );
    let setting = read(Some(&trustees(json!([b]))), &Files::default()).unwrap();
    let more: Vec<_> = setting.more.iter().map(|one| one.url.as_str()).collect();
    assert_eq!(more, ["http://b.example:1"]);
    let refused = read(Some(&trustees(json!([b, c]))), &Files::default());
    assert!(matches!(refused, Err(NotReady::AdditionalTrustee(_))));
}

#[test]
fn nothing_is_served_without_cluster_address_or_token() {
    let none = read(None, &Files::default());
    assert!(matches!(none, Err(NotReady::NoCluster)));
    let bare = cluster(&json!({}));
    assert!(matches!(read(Some(&bare), &Files::default()), Err(NotReady::NoAddress)));
    let odd =
        cluster(&json!({ "publicTrusteeAddr": "not an address", "dangerousPlainHttp": true }));
    assert!(matches!(read(Some(&odd), &Files::default()), Err(NotReady::Address { .. })));
    // A token is required by default.
    let locked = cluster(&json!({
        "publicTrusteeAddr": "kbs.example", "dangerousPlainHttp": true,
    }));
    let directory = TempDir::new().unwrap();
    let mut files = Files::default();
    assert!(matches!(read(Some(&locked), &files), Err(NotReady::NoToken)));
    let file = directory.path().join("token");
    std::fs::write(&file, "short").unwrap();
    files.token = Some(file.clone());
    assert!(matches!(read(Some(&locked), &files), Err(NotReady::NoToken)));
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let setting = read(Some(&locked), &files).unwrap();
    assert_eq!(setting.token.as_deref(), Some("0123456789abcdef"));
    // What the operator reports makes no other service, which would forget what each network registered.
    let mut reported = (*locked).clone();
    reported.metadata.resource_version = Some("2".to_owned());
    reported.status = Some(TrustedExecutionClusterStatus::default());
    assert_eq!(read(Some(&Arc::new(reported)), &files).unwrap(), setting);
}
