//! Reference values as files (Trustee, RVPS; Trustee, key-value storage).

use serde_json::{Value, json};
use tec_core::time::Timestamp;

use super::super::desired::{Content, State};
use super::super::item::Item;
use super::super::item::common_names;

/// Version of the record; the only one (Trustee, RVPS).
const VERSION: &str = "0.1.0";

/// All reference values by name; those that policies ask for are present at least as an empty list: a missing
/// file has the same effect as an empty one, but only an empty one shows that it is intended.
pub(super) fn records(desired: &State, expiration: Timestamp) -> Vec<(String, Value)> {
    let mut records: Vec<(String, Value)> = desired
        .items()
        .filter_map(|(item, entry)| match (item, &entry.content) {
            (Item::Reference(name), Content::Reference(value)) => {
                Some((name.to_string(), record(name.as_str(), value, expiration)))
            }
            _ => None,
        })
        .collect();
    let empty = Value::Array(Vec::new());
    for item in common_names() {
        if let (Item::Reference(name), None) = (&item, desired.entry(&item)) {
            records.push((name.to_string(), record(name.as_str(), &empty, expiration)));
        }
    }
    records.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    records
}

/// One record. `expiration` has the form `YYYY-MM-DDTHH:MM:SSZ`, without a fraction, as the reader requires
/// (Trustee, RVPS).
fn record(name: &str, value: &Value, expiration: Timestamp) -> Value {
    let expiration = expiration.to_string();
    json!({"version": VERSION, "name": name, "expiration": expiration, "value": value})
}
