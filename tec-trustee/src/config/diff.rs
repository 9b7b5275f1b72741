//! A readable diff: by key, not by line.

use std::collections::BTreeMap;
use std::fmt;

use tec_core::trustee::PatchError;
use toml::Value;

use super::parse;

/// One key that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Dotted path; list members by index: `plugins[0].name`.
    pub key: String,
    /// Value before, as TOML.
    pub before: Option<String>,
    /// Value after, as TOML.
    pub after: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "~ {key}: {before} -> {after}"),
            (None, Some(after)) => write!(f, "+ {key}: {after}"),
            (Some(before), None) => write!(f, "- {key}: {before}"),
            (None, None) => Ok(()),
        }
    }
}

/// What differs between two configurations, ordered by key. Comments and layout are ignored.
pub fn changes(before: &str, after: &str) -> Result<Vec<Change>, PatchError> {
    let (before, mut after) = (flat(before)?, flat(after)?);
    let mut changes = Vec::new();
    for (key, old) in before {
        let new = after.remove(&key);
        if new.as_ref() != Some(&old) {
            changes.push(Change { key, before: Some(old), after: new });
        }
    }
    changes.extend(after.into_iter().map(|(key, new)| Change {
        key,
        before: None,
        after: Some(new),
    }));
    changes.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(changes)
}

fn flat(text: &str) -> Result<BTreeMap<String, String>, PatchError> {
    let mut flat = BTreeMap::new();
    for (key, value) in parse(text)? {
        flatten(key, &value, &mut flat);
    }
    Ok(flat)
}

fn flatten(key: String, value: &Value, flat: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (name, value) in table {
                flatten(format!("{key}.{name}"), value, flat);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_table) => {
            for (number, value) in list.iter().enumerate() {
                flatten(format!("{key}[{number}]"), value, flat);
            }
        }
        value => {
            flat.insert(key, value.to_string());
        }
    }
}
