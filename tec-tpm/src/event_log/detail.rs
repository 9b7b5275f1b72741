//! Event data in a few readable words. All of it is unproven input of unknown quality, so nothing
//! fails: what cannot be read has no detail.

use super::content::Content;
use super::text::{decoded, printable};

pub(super) fn describe(content: &Content<'_>) -> Option<String> {
    let text = match content {
        Content::Variable { name, .. } | Content::Signature { name } => name.clone(),
        Content::Image { path, .. } => path.clone(),
        Content::Firmware { name, base, length } => match name {
            Some(name) => name.clone(),
            None => format!("{length} bytes at {base:#x}"),
        },
        Content::Tables { name, tables } => match (name, tables.as_slice()) {
            (Some(name), _) => name.clone(),
            (None, tables) => listed(tables.iter().map(ToString::to_string)),
        },
        Content::Partitions { partitions, .. } => {
            let names = partitions.iter().map(|partition| match &partition.name {
                name if name.is_empty() => partition.kind.to_string(),
                name => name.clone(),
            });
            listed(names)
        }
        Content::Separator { value: 0 | u32::MAX } | Content::Opaque => return None,
        Content::Separator { value: 1 } => "error".to_owned(),
        Content::Separator { value } => decoded(&value.to_le_bytes()),
        // Linux puts a text there, others binary data.
        Content::Tagged { data, .. } => decoded(data),
        Content::StartupLocality { locality } => format!("StartupLocality {locality}"),
        Content::Text { text } => text.clone(),
    };
    printable(&text).filter(|text| text.is_ascii() || !matches!(content, Content::Tagged { .. }))
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
