//! A namespace as left by the upstream operator: names, fields and owners are those of
//! trusted-cluster-operator, the text is ours.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tec_core::ak::PublicKey;
use tec_core::testing::sample;
use tec_e2e::kube::Bench;

const GROUP: &str = "trusted-execution-clusters.io";
const ADDRESS: &str = "publicAttestationKeyRegisterAddr";
/// A machine that attests without an attestation key, like confidential virtual machines.
pub(super) const WITHOUT_KEY: u64 = 3;
/// All machines.
pub(super) const MACHINES: [u64; 3] = [1, 2, WITHOUT_KEY];
/// The approved image.
pub(super) const IMAGE: &str = "coreos";

/// The machine, as named in its Secret and its object.
pub(super) fn id(number: u64) -> String {
    sample::machine_id(number).to_string()
}

pub(super) fn key(number: u64) -> PublicKey {
    sample::public_key(number)
}

pub(super) fn key_name(number: u64) -> String {
    format!("ak-{}", id(100 + number))
}

pub(super) fn reference() -> String {
    format!("registry.example/os@sha256:{:064x}", 1)
}

/// The bytes in the Secret.
pub(super) fn disk_key(number: u64) -> Vec<u8> {
    let text = format!("QUJDREVGR0hJSktMTU5PUFFSU1RVVl{number:02}");
    json!({"key_type": "oct", "key": text}).to_string().into_bytes()
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The definitions with the members of upstream's.
pub(super) fn definitions() -> Vec<Value> {
    let text = json!({"type": "string"});
    let port = json!({"type": "integer", "format": "int32"});
    let cluster = json!({
        "publicTrusteeAddr": text, ADDRESS: text, "trusteeSecret": text, "registerServerSecret": text,
        "attestationKeyRegisterSecret": text, "trusteeKbsPort": port, "registerServerPort": port,
        "attestationKeyRegisterPort": port,
    });
    vec![
        definition("TrustedExecutionCluster", &cluster),
        definition("Machine", &json!({"id": text})),
        definition("ApprovedImage", &json!({"image": text})),
        definition("AttestationKey", &json!({"publicKey": text, "uuid": text})),
    ]
}

fn definition(kind: &str, spec: &Value) -> Value {
    let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
    let condition = json!({"type": "object", "required": ["type", "status"], "properties": {
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "message": {"type": "string"}, "observedGeneration": {"type": "integer", "format": "int64"},
        "reason": {"type": "string"}, "status": {"type": "string"}, "type": {"type": "string"},
    }});
    let conditions = json!({
        "type": "array", "items": condition, "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    });
    let schema = json!({"type": "object", "required": ["spec"], "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": spec},
        "status": {"type": "object", "properties": {"conditions": conditions}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
            }],
        },
    })
}

/// Serves these definitions.
pub(super) async fn define(admin: Client, definitions: Vec<Value>) {
    let crds: Api<CustomResourceDefinition> = Api::all(admin);
    for definition in definitions {
        let definition = serde_json::from_value(definition).unwrap();
        let made = crds.create(&PostParams::default(), &definition).await.unwrap();
        await_condition(crds.clone(), &made.name_any(), is_crd_established()).await.unwrap();
    }
}

fn api(bench: &Bench, object: &Value) -> Api<DynamicObject> {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(bench.admin().unwrap(), &bench.namespace, &resource)
}

/// Creates an object with a plain request, and its status with another; returns an owner reference to it.
pub(super) async fn put(bench: &Bench, object: &Value) -> Value {
    let api = api(bench, object);
    let wanted: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let made = api.create(&PostParams::default(), &wanted).await.unwrap();
    if let Some(status) = object.get("status") {
        let patch = Patch::Merge(json!({ "status": status }));
        let params = PatchParams::default();
        api.patch_status(&made.name_any(), &params, &patch).await.unwrap();
    }
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": made.name_any(),
        "uid": made.uid(), "controller": true, "blockOwnerDeletion": true,
    })
}

fn custom(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": metadata, "spec": spec})
}

fn said(kind: &str, reason: &str) -> Value {
    json!([{
        "type": kind, "status": "True", "reason": reason, "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }])
}

/// The cluster object, as written by its users.
pub(super) fn cluster() -> Value {
    let spec = json!({
        "publicTrusteeAddr": "kbs.example:8080", ADDRESS: "keys.example:8001",
        "trusteeSecret": "kbs-tls", "registerServerSecret": "register-tls",
        "attestationKeyRegisterSecret": "keys-tls",
    });
    custom("TrustedExecutionCluster", &json!({"name": "trusted-execution-cluster"}), &spec)
}

/// Creates what the operator created for the cluster object, and what nodes and admins did since.
pub(super) async fn everything(bench: &Bench, mut cluster: Value) {
    cluster["status"] = json!({"conditions": said("Installed", "InstallationCompleted")});
    let owner = put(bench, &cluster).await;
    for secret in ["kbs-tls", "register-tls", "keys-tls"] {
        let text = base64(b"-----BEGIN CERTIFICATE-----\n");
        let data = json!({"tls.crt": text, "tls.key": text, "ca.crt": text});
        put(bench, &data_of("Secret", &json!({"name": secret}), &data)).await;
    }
    for object in children(&owner) {
        put(bench, &object).await;
    }
    for number in MACHINES {
        machine(bench, &owner, number).await;
    }
    let metadata = json!({
        "name": IMAGE, "ownerReferences": [owner],
        "finalizers": ["finalizer.approved-image.trusted-execution-clusters.io"],
    });
    let mut image = custom("ApprovedImage", &metadata, &json!({"image": reference()}));
    image["status"] = json!({"conditions": said("Committed", "ImageCommitted")});
    put(bench, &image).await;
}

async fn machine(bench: &Bench, owner: &Value, number: u64) {
    let id = id(number);
    let metadata = json!({
        "name": format!("machine-{id}"), "ownerReferences": [owner],
        "finalizers": ["finalizer.machine.trusted-execution-clusters.io"],
    });
    let owner = put(bench, &custom("Machine", &metadata, &json!({"id": id}))).await;
    let metadata = json!({"name": id, "ownerReferences": [owner]});
    let data = json!({"root": base64(&disk_key(number))});
    put(bench, &data_of("Secret", &metadata, &data)).await;
    if number == WITHOUT_KEY {
        return;
    }
    let pem = key(number).to_pem();
    let metadata = json!({"name": key_name(number), "ownerReferences": [owner]});
    let mut key = custom("AttestationKey", &metadata, &json!({"publicKey": pem, "uuid": id}));
    key["status"] = json!({"conditions": said("Approved", "MachineCreated")});
    let owner = put(bench, &key).await;
    let metadata = json!({
        "name": key_name(number), "ownerReferences": [owner],
        "finalizers": ["trusted-execution-clusters.io/attestationkey-secret-finalizer"],
    });
    let data = json!({"public_key": base64(pem.as_bytes())});
    put(bench, &data_of("Secret", &metadata, &data)).await;
}

fn data_of(kind: &str, metadata: &Value, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data})
}

fn children(owner: &Value) -> Vec<Value> {
    let owned = |name: &str| json!({"name": name, "ownerReferences": [owner]});
    let config = json!({"kbs-config.toml": "[http_server]\nsockets = [\"0.0.0.0:8080\"]\n"});
    let values = json!({"reference-values.json": "[]"});
    let pair = json!({
        "private.key": base64(b"-----BEGIN PRIVATE KEY-----\nupstream\n"),
        "public.pub": base64(b"-----BEGIN PUBLIC KEY-----\nupstream\n"),
    });
    vec![
        data_of("ConfigMap", &owned("trustee-data"), &config),
        data_of("ConfigMap", &owned("trustee-rv-data"), &values),
        // It has no owner.
        data_of("ConfigMap", &json!({"name": "image-pcrs"}), &json!({"image-pcrs.json": "{}"})),
        data_of("Secret", &owned("trustee-auth"), &pair),
        service(&owned("kbs-service"), "kbs", ("kbs-port", 8080)),
        service(&owned("register-server"), "register-server", ("register-server-port", 8000)),
        service(&owned("attestation-key-register"), "attestation-key-register", ("http", 8001)),
        deployment(&owned("trustee-deployment"), "kbs", &trustee()),
        deployment(
            &owned("register-server"),
            "register-server",
            &server("register-server", 8000, "register-tls"),
        ),
        deployment(
            &owned("attestation-key-register"),
            "attestation-key-register",
            &server("attestation-key-register", 8001, "keys-tls"),
        ),
    ]
}

fn service(metadata: &Value, app: &str, (name, port): (&str, u16)) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {
        "type": "ClusterIP", "selector": {"app": app},
        "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"}],
    }})
}

/// A Deployment with the status of a running one.
fn deployment(metadata: &Value, app: &str, pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": app}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {"app": app}}, "spec": pod},
        },
        "status": running(1, 1),
    })
}

/// Status of a Deployment whose controller has observed this generation, and runs this many pods.
pub(super) fn running(generation: i64, pods: i32) -> Value {
    json!({
        "observedGeneration": generation, "replicas": pods, "updatedReplicas": pods,
        "readyReplicas": pods, "availableReplicas": pods,
        "conditions": [{"type": "Available", "status": "True"}],
    })
}

fn trustee() -> Value {
    json!({
        "containers": [{
            "name": "kbs", "image": "registry.example/key-broker-service:1",
            "command": ["/usr/local/bin/kbs", "--config-file", "/etc/kbs/kbs-config.toml"],
            "env": [{"name": "RUST_LOG", "value": "debug"}], "ports": [{"containerPort": 8080}],
            "volumeMounts": [
                {"name": "trustee-data", "mountPath": "/etc/kbs"},
                {"name": "trustee-auth", "mountPath": "/opt/trustee/keys"},
                {"name": "trustee-storage", "mountPath": "/opt/trustee/storage"},
                {"name": "kbs-tls", "mountPath": "/etc/tls"},
            ],
        }],
        "volumes": [
            {"name": "trustee-data", "configMap": {"name": "trustee-data"}},
            {"name": "trustee-auth", "secret": {
                "secretName": "trustee-auth", "items": [{"key": "public.pub", "path": "public.pub"}],
            }},
            {"name": "trustee-storage", "emptyDir": {}},
            {"name": "kbs-tls", "secret": {"secretName": "kbs-tls"}},
        ],
    })
}

fn server(name: &str, port: u16, tls: &str) -> Value {
    json!({
        "serviceAccountName": "trusted-cluster-operator",
        "containers": [{
            "name": name, "image": "registry.example/server:1", "ports": [{"containerPort": port}],
            "args": [
                "--port", port.to_string(), "--cert-path", "/etc/tls/tls.crt", "--key-path",
                "/etc/tls/tls.key",
            ],
            "volumeMounts": [{"name": tls, "mountPath": "/etc/tls"}],
        }],
        "volumes": [{"name": tls, "secret": {"secretName": tls}}],
    })
}
