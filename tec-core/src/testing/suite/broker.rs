use serde_json::{Value, json};

use super::ok;
use crate::port::{KeyBroker, PolicySlot};
use crate::testing::sample;

/// A policy that every broker can compile and that allows nothing.
const DENY_ALL: &str = "package policy\n\nimport rego.v1\n\ndefault allow := false\n";

/// Checks the contract of [`KeyBroker`]; `make` returns an empty broker.
///
/// # Panics
/// If the contract is broken.
pub async fn key_broker<B: KeyBroker>(make: impl AsyncFn() -> B) {
    policies_are_set_again_and_again(&make().await).await;
    resources_are_put_listed_and_removed(&make().await).await;
    reference_values_read_back(&make().await).await;
}

async fn policies_are_set_again_and_again(broker: &dyn KeyBroker) {
    for slot in [PolicySlot::Attestation, PolicySlot::Resource] {
        for _ in 0..2 {
            ok(broker.set_policy(slot, DENY_ALL).await);
        }
    }
}

async fn resources_are_put_listed_and_removed(broker: &dyn KeyBroker) {
    ok(broker.set_policy(PolicySlot::Resource, DENY_ALL).await);
    let (first, second) = (sample::secret_path(1), sample::secret_path(2));
    ok(broker.remove(&first).await);
    ok(broker.put(&first, &sample::secret(1)).await);
    ok(broker.put(&first, &sample::secret(1)).await);
    ok(broker.put(&second, &sample::secret(2)).await);
    ok(broker.put(&second, &sample::secret(3)).await);
    if let Some(mut paths) = ok(broker.list().await) {
        paths.sort_unstable();
        assert_eq!(paths, [first.clone(), second.clone()]);
    }
    for _ in 0..2 {
        ok(broker.remove(&first).await);
    }
    if let Some(paths) = ok(broker.list().await) {
        assert_eq!(paths, [second]);
    }
}

async fn reference_values_read_back(broker: &dyn KeyBroker) {
    assert_eq!(ok(broker.reference_value("unknown").await), None);
    for value in [json!(["a", "b"]), json!("7c9e"), json!({"machine": "7c9e"})] {
        for _ in 0..2 {
            ok(broker.set_reference_value("tec-ak-1", &value).await);
            assert_eq!(ok(broker.reference_value("tec-ak-1").await), Some(value.clone()));
        }
    }
    ok(broker.set_reference_value("tec-ak-2", &json!(["c"])).await);
    for _ in 0..2 {
        ok(broker.set_reference_value("tec-ak-1", &Value::Null).await);
        let revoked = ok(broker.reference_value("tec-ak-1").await);
        assert!(revoked.is_none_or(|value| value.is_null()), "null revokes");
    }
    assert_eq!(ok(broker.reference_value("tec-ak-2").await), Some(json!(["c"])));
}
