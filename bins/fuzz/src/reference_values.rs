//! Reference values for Trustee, in both forms.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tec_core::pcr::PcrIndex;
use tec_core::time::Timestamp;
use tec_tpm::output::{OutputError, ReferenceValues};

use crate::label::{image, text};
use crate::{Seed, outcome};

/// Whichever form the values were read from, both forms reproduce them; and they are read from exactly the
/// names that policies use.
pub(crate) fn reference_values(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Ok(values) = ReferenceValues::read_config_map(text) {
        let records: Vec<Value> = serde_json::from_str(text).expect("a list that was read");
        let names = records.iter().filter_map(|record| record.get("name")?.as_str());
        check(&values, &names.collect::<Vec<_>>());
    }
    if let Ok(values) = ReferenceValues::read_message(text) {
        let names = payload(text);
        let names: Vec<&str> = names.keys().map(String::as_str).collect();
        check(&values, &names);
    }
}

fn payload(message: &str) -> BTreeMap<String, Value> {
    let message: Value = serde_json::from_str(message).expect("a message that was read");
    let payload = message.get("payload").and_then(Value::as_str).unwrap_or_default();
    let payload = STANDARD.decode(payload).expect("a payload that was read");
    serde_json::from_slice(&payload).expect("a payload that was read")
}

fn check(values: &ReferenceValues, names: &[&str]) {
    let list = values.to_config_map(Timestamp::from_unix_seconds(0)).expect("a list is written");
    assert_eq!(ReferenceValues::read_config_map(&list).ok().as_ref(), Some(values));
    let message = values.to_message().expect("a message is written");
    assert_eq!(ReferenceValues::read_message(&message).ok().as_ref(), Some(values));
    let asked = |pcr: &PcrIndex| names.contains(&format!("tpm_pcr{pcr}").as_str());
    assert!(values.registers().eq(PcrIndex::all().filter(asked)));
}

fn read_list(data: &[u8]) -> Result<(), String> {
    outcome(ReferenceValues::read_config_map(text(data).ok_or("no text")?))
}

fn read_message(data: &[u8]) -> Result<(), String> {
    outcome(ReferenceValues::read_message(text(data).ok_or("no text")?))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let values = ReferenceValues::of_image(&image("shim", "kernel"));
    let written: Result<[String; 2], OutputError> = (|| {
        Ok([
            values.to_config_map(Timestamp::from_unix_seconds(4_000_000_000))?,
            values.to_message()?,
        ])
    })();
    let [list, message] = written.expect("values are written");
    let seeds = vec![
        Seed::new("list", list.clone()),
        Seed::new("message", message.clone()),
        Seed::new("empty_list", "[]"),
    ];
    [seeds, hostile_lists(&list), hostile_messages(&message)].concat()
}

fn hostile_lists(good: &str) -> Vec<Seed> {
    let lying = |name, text: String| Seed::new(name, text).refused(read_list);
    let named = |name: &str| good.replacen("tpm_pcr4", name, 1);
    vec![
        lying("list_of_nothing", String::new()),
        lying("list_of_brackets", "[".repeat(2000)),
        lying("list_with_register_24", named("tpm_pcr24")),
        lying("list_with_a_zero_before", named("tpm_pcr04")),
        lying("list_with_a_sign", named("tpm_pcr+4")),
        lying("list_with_a_register_twice", named("tpm_pcr14")),
    ]
}

fn hostile_messages(good: &str) -> Vec<Seed> {
    let lying = |name, text: String| Seed::new(name, text).refused(read_message);
    let with = |payload: &[u8]| {
        json!({"version": "0.1.0", "type": "sample", "payload": STANDARD.encode(payload)})
            .to_string()
    };
    vec![
        lying("message_of_another_version", good.replace("0.1.0", "0.2.0")),
        lying("message_of_another_type", good.replace("sample", "swid")),
        lying("message_without_base64", good.replace("\"payload\": \"", "\"payload\": \"-")),
        lying("message_of_no_text", with(&[0xff])),
        lying("message_of_no_object", with(b"[]")),
        lying("message_of_a_value_that_is_no_list", with(b"{\"tpm_pcr4\":\"00\"}")),
        lying("message_of_a_short_digest", with(b"{\"tpm_pcr4\":[\"00\"]}")),
    ]
}
