//! One step, taken at a key broker.

use serde_json::Value;
use tec_core::port::{KeyBroker, PolicySlot, PortError, PortErrorKind};

use super::super::desired::{Content, Entry};
use super::super::item::common_names;
use super::super::item::{Item, ReferenceName};
use super::super::record::Known;

/// Whether what was sent is stored.
pub(super) enum Stays {
    /// Yes, with what is then known; `None` if there is nothing to remember.
    Yes(Option<Known>),
    No,
}

/// Sends the content of an item, and reads back what can be read.
pub(super) async fn set(
    broker: &dyn KeyBroker,
    item: &Item,
    entry: &Entry,
) -> Result<Stays, PortError> {
    let holds = Some(Known::Holds(entry.fingerprint));
    match (item, &entry.content) {
        (Item::AttestationPolicy, Content::Policy(text)) => {
            broker.set_policy(PolicySlot::Attestation, text).await?;
        }
        (Item::ResourcePolicy, Content::Policy(text)) => {
            broker.set_policy(PolicySlot::Resource, text).await?;
        }
        (Item::Reference(name), Content::Reference(value)) => {
            return reference(broker, name, value, holds).await;
        }
        (Item::Secret(path), Content::Secret(secret)) => broker.put(path, secret).await?,
        _ => return Err(mismatch(item)),
    }
    Ok(Stays::Yes(holds))
}

/// Withdraws an item: a secret is removed, a reference value emptied.
pub(super) async fn withdraw(broker: &dyn KeyBroker, item: &Item) -> Result<Stays, PortError> {
    match item {
        Item::Secret(path) => {
            broker.remove(path).await?;
            Ok(Stays::Yes(None))
        }
        Item::Reference(name) if common_names().contains(item) => {
            let empty = Value::Array(Vec::new());
            reference(broker, name, &empty, Some(Known::Nothing)).await
        }
        Item::Reference(name) => reference(broker, name, &Value::Null, None).await,
        Item::AttestationPolicy | Item::ResourcePolicy => Err(mismatch(item)),
    }
}

async fn reference(
    broker: &dyn KeyBroker,
    name: &ReferenceName,
    value: &Value,
    known: Option<Known>,
) -> Result<Stays, PortError> {
    let name = name.as_str();
    broker.set_reference_value(name, value).await?;
    let there = broker.reference_value(name).await?;
    let stays = there.as_ref() == Some(value) || (there.is_none() && value.is_null());
    Ok(if stays { Stays::Yes(known) } else { Stays::No })
}

/// Policies always exist, and content always has the type of its item: only a bug leads here.
fn mismatch(item: &Item) -> PortError {
    PortError::new(PortErrorKind::Internal, format!("publish {item}"))
        .because("the content is of another sort than its name")
}
