//! YAML with a line that states its origin.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

/// First line of every generated file.
pub(crate) const GENERATED: &str = "# Written by `cargo xtask codegen` from tec-k8s.\n";

/// One file with these documents.
pub(crate) fn documents<T: Serialize>(objects: &[T]) -> Result<String> {
    let mut text = GENERATED.to_owned();
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string(object)?);
    }
    Ok(text)
}

/// One file with this document.
pub(crate) fn document<T: Serialize>(object: &T) -> Result<String> {
    documents(std::slice::from_ref(object))
}

/// Sets a member of an object.
pub(crate) fn set(value: &mut Value, member: &str, to: Value) {
    if let Value::Object(members) = value {
        members.insert(member.to_owned(), to);
    }
}
