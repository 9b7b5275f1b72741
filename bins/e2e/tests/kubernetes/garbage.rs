//! Garbage and megabytes in every text field of the objects. Conflicting machines, edited keys and a second
//! cluster object are in `check_12`, `check_07` and `check_05`.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::api::Machine;
use tec_support::SystemClock;

/// Possible content, from nothing to a megabyte.
fn garbage() -> Vec<String> {
    let small = [
        "",
        " ",
        "../../../etc/passwd",
        "a\u{0}b",
        "line\nbreak\r\n---\nkind: Secret",
        "\u{202e}\u{1f4a3}\u{fffd}",
        "{{ .Values.x }}${HOME}$(id)`id`%s%n",
        "trustee-auth",
        "9999-99-99T99:99:99Z",
    ];
    let mut all: Vec<String> = small.map(str::to_owned).into();
    all.push("a".repeat(1 << 20));
    all
}

/// A valid object, except for one string.
fn good(kind: &str) -> Value {
    match kind {
        "Machine" => json!({"id": sample::machine_id(1).to_string()}),
        "AttestationKey" => json!({
            "publicKey": sample::public_key(1).to_pem(), "uuid": sample::machine_id(1).to_string(),
        }),
        "ApprovedImage" => json!({"image": format!("registry.example/os@sha256:{:064x}", 1)}),
        _ => json!({}),
    }
}

/// Specs in which each string of the schema in turn is replaced with this one.
fn spoiled(schema: &Value, base: &Value, text: &str) -> Vec<Value> {
    let mut all = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        for value in values(field, text) {
            let mut spec = base.clone();
            spec[name] = value;
            all.push(spec);
        }
    }
    all
}

/// Values of a field with the string in each possible place.
fn values(field: &Value, text: &str) -> Vec<Value> {
    match field["type"].as_str() {
        // The API server refuses anything but the few allowed values.
        Some("string") => vec![json!(text)],
        Some("array") => {
            values(&field["items"], text).into_iter().map(|value| json!([value])).collect()
        }
        Some("object") => {
            let required = field["required"].as_array().into_iter().flatten();
            let base = required.filter_map(|name| Some((name.as_str()?.to_owned(), json!("x"))));
            spoiled(field, &Value::Object(base.collect()), text)
        }
        _ => Vec::new(),
    }
}

/// Adds the members of another spec.
fn merge(spec: &mut Value, other: Value) {
    let (Some(spec), Value::Object(other)) = (spec.as_object_mut(), other) else {
        return;
    };
    spec.extend(other);
}

fn api(bench: &Bench, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("trusted-execution-clusters.io", "v1alpha1", kind);
    let resource = ApiResource::from_gvk(&kind);
    Api::namespaced_with(bench.admin().unwrap(), &bench.namespace, &resource)
}

fn object(kind: &str, name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

fn schema(kind: &str) -> Value {
    let crds = tec_k8s::api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let whole = serde_json::to_value(crd).unwrap();
    whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Creates objects with each kind of garbage in each string; returns the names of those accepted by the API
/// server.
async fn litter(bench: &Bench, kind: &str) -> Vec<String> {
    let (api, schema) = (api(bench, kind), schema(kind));
    let mut taken = Vec::new();
    let mut count = 0;
    for text in garbage() {
        for spec in spoiled(&schema, &good(kind), &text) {
            count += 1;
            let name = format!("g-{count:03}");
            match api.create(&PostParams::default(), &object(kind, &name, &spec)).await {
                Ok(_) => taken.push(name),
                Err(kube::Error::Api(status)) if status.is_invalid() || status.code == 400 => {}
                Err(error) => panic!("{kind} {name}: {error}"),
            }
        }
    }
    assert!(count >= garbage().len(), "{kind} has texts");
    taken
}

async fn says_something(api: &Api<DynamicObject>, name: &str, condition: &str) {
    eventually(&format!("{name} has {condition}"), async || {
        let object = api.get(name).await?;
        let all = object.data["status"]["conditions"].as_array().cloned();
        Ok(all.unwrap_or_default().iter().any(|c| c["type"] == condition))
    })
    .await
    .unwrap();
}

async fn still_works(bench: &mut Bench, number: u64) {
    let (id, now) = (sample::machine_id(number), SystemClock.now());
    let machine = Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, now));
    bench.create(&machine).await.unwrap();
    eventually("the operator goes on", async || Ok(bench.trust.key(&id).is_some())).await.unwrap();
    assert!(!bench.take_ended());
}

#[tokio::test]
async fn garbage_in_any_text_of_any_object_is_told_of_and_stops_nobody() {
    let mut bench = Bench::at_work().await.unwrap();
    for (kind, condition) in
        [("Machine", "Ready"), ("AttestationKey", "Approved"), ("ApprovedImage", "Committed")]
    {
        let taken = litter(&bench, kind).await;
        let api = api(&bench, kind);
        for name in &taken {
            says_something(&api, name, condition).await;
        }
        // A garbage machine has no key, and Secrets are named after IDs.
        let secrets = bench.objects::<Secret>().unwrap();
        let all = secrets.list(&kube::api::ListParams::default()).await.unwrap();
        for secret in all.items.iter().filter(|secret| secret.immutable == Some(true)) {
            secret.name_any().parse::<tec_core::id::MachineId>().unwrap();
        }
        for name in &taken {
            api.delete(name, &DeleteParams::default()).await.unwrap();
        }
    }
    still_works(&mut bench, 1000).await;
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn a_cluster_object_of_garbage_is_told_of_and_can_be_replaced() {
    let mut bench = Bench::new().await.unwrap();
    bench.start("one").unwrap();
    let kind = "TrustedExecutionCluster";
    let (api, schema) = (api(&bench, kind), schema(kind));
    let try_out = PostParams { dry_run: true, ..PostParams::default() };
    let texts = ["../../etc/passwd".to_owned(), String::new(), "a".repeat(1 << 20)];
    for (number, text) in texts.into_iter().enumerate() {
        // Each one separately, because only one of two objects counts; all accepted texts together.
        let mut whole = json!({});
        for spec in spoiled(&schema, &json!({}), &text) {
            if api.create(&try_out, &object(kind, "g", &spec)).await.is_ok() {
                merge(&mut whole, spec);
            }
            // A megabyte in more than one place is refused.
            if text.len() > 1000 && whole != json!({}) {
                break;
            }
        }
        let name = format!("g-{number}");
        let params = PostParams::default();
        api.create(&params, &object(kind, &name, &whole)).await.unwrap();
        says_something(&api, &name, "Installed").await;
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        eventually("it is gone", async || Ok(api.get_opt(&name).await?.is_none())).await.unwrap();
    }
    let good = object(kind, "good", &json!({}));
    api.create(&PostParams::default(), &good).await.unwrap();
    still_works(&mut bench, 1000).await;
    bench.stop().await.unwrap();
}
