//! The objects.

mod secrets;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tec_core::id::ResourcePath;
use tec_core::secret::SecretBytes;

use super::super::desired::{Content, Desired, State, canonical};
use super::super::item::Item;
use super::layout::{CONFIG_DIR, Layout, SHARDS, shard, shard_name};
use super::pod::Pod;
use super::reference;
use crate::config::DEFAULT_POLICIES;

/// Largest size of an object, names and values together (Trustee, KBS configuration: 1 MiB).
const MAX_OBJECT: usize = 1024 * 1024;

/// ConfigMaps, Secrets, and the parts of the pod template that use them.
///
/// The same desired state and layout give the same bytes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Form {
    /// Content of the ConfigMaps by name and key.
    pub config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Content of the Secrets by name and key.
    pub secrets: BTreeMap<String, BTreeMap<String, SecretBytes>>,
    /// Volumes, mounts and annotation.
    pub pod: Pod,
    /// Secrets and their keys that stay as they are, if they exist.
    pub kept: BTreeSet<(String, String)>,
}

/// The desired state has no mounted form.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// Only disk keys, `default/<machine>/root`, have a place.
    #[error(
        "the secret {0} is not the disk key of a machine; the mounted form holds only disk keys"
    )]
    Path(ResourcePath),
    /// An object would be larger than a cluster accepts.
    #[error(
        "{object} would have {bytes} bytes, more than the limit of {max}; publish to the admin API instead"
    )]
    TooLarge {
        /// The object.
        object: String,
        /// Its size.
        bytes: usize,
        /// The largest size allowed.
        max: usize,
    },
}

/// Renders the mounted form.
///
/// # Errors
/// If an object is too large, or a secret has no place.
pub fn render(desired: &Desired, layout: &Layout) -> Result<Form, RenderError> {
    desired.read(|state| render_state(state, layout))
}

pub(super) fn render_state(desired: &State, layout: &Layout) -> Result<Form, RenderError> {
    let mut form = Form::default();
    form.configuration(desired, layout);
    form.policies(desired, layout);
    form.references(desired, layout);
    form.images(desired);
    form.resources(desired, layout)?;
    form.sizes()?;
    form.pod = form.pod.sealed(&layout.config);
    Ok(form)
}

impl Form {
    fn put(&mut self, config_map: &str, key: &str, content: impl Into<Vec<u8>>) {
        let data = self.config_maps.entry(config_map.to_owned()).or_default();
        data.insert(key.to_owned(), content.into());
    }

    fn hide(&mut self, secret: &str, key: &str, content: SecretBytes) {
        let data = self.secrets.entry(secret.to_owned()).or_default();
        data.insert(key.to_owned(), content);
    }

    /// `trustee-data`: configuration and resource policy.
    fn configuration(&mut self, desired: &State, layout: &Layout) {
        self.put("trustee-data", "kbs-config.toml", layout.config.as_str());
        self.put("trustee-data", "policy.rego", policy(desired, &Item::ResourcePolicy));
        let whole = json!({"configMap": {"name": "trustee-data"}});
        self.pod.mount("trustee-data", whole, CONFIG_DIR.to_owned());
        let items = json!([{"key": "policy.rego", "path": "resource-policy.rego"}]);
        let policy = json!({"configMap": {"name": "trustee-data", "items": items}});
        self.pod.mount("resource-policy", policy, layout.below("kbs"));
    }

    /// `attestation-policy`: the policy that applies, and empty ones where the service would otherwise try to
    /// write its own into a read-only directory and fail to start (Trustee, KBS configuration).
    fn policies(&mut self, desired: &State, layout: &Layout) {
        for id in DEFAULT_POLICIES {
            let text = match id {
                "default_cpu" => policy(desired, &Item::AttestationPolicy),
                _ => "",
            };
            self.put("attestation-policy", &format!("{id}.rego"), text);
        }
        let source = json!({"configMap": {"name": "attestation-policy"}});
        self.pod.mount("attestation-policy", source, layout.below("attestation_service_policy"));
    }

    /// The reference values, one file each.
    fn references(&mut self, desired: &State, layout: &Layout) {
        for number in 0..SHARDS {
            self.config_maps.entry(shard_name(number)).or_default();
        }
        for (name, record) in reference::records(desired, layout.expiration) {
            self.put(&shard_name(shard(&name)), &name, canonical(&record));
        }
        self.pod.mount("reference-values", shards(), layout.below("reference_value"));
    }

    /// `image-pcrs`: what the operator knows about its images. Trustee does not read it.
    fn images(&mut self, desired: &State) {
        let images = desired.images().iter().map(|image| {
            let told = json!({
                "first_seen": image.approved_at,
                "reference": image.reference,
                "pcrs": image.expected.pcrs,
            });
            (image.name.to_string(), told)
        });
        let images = Value::Object(images.collect::<Map<_, _>>());
        self.put("image-pcrs", "image-pcrs.json", canonical(&images));
    }

    fn sizes(&self) -> Result<(), RenderError> {
        let config_maps = self.config_maps.iter().map(|(name, data)| {
            (name, data.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>())
        });
        let secrets = self.secrets.iter().map(|(name, data)| {
            (name, data.iter().map(|(key, value)| key.len() + value.len()).sum())
        });
        match config_maps.chain(secrets).find(|(_, bytes)| *bytes > MAX_OBJECT) {
            Some((object, bytes)) => {
                Err(RenderError::TooLarge { object: object.clone(), bytes, max: MAX_OBJECT })
            }
            None => Ok(()),
        }
    }
}

fn policy<'a>(desired: &'a State, item: &Item) -> &'a str {
    match desired.entry(item).map(|entry| &entry.content) {
        Some(Content::Policy(text)) => text,
        _ => "",
    }
}

/// All shards of the reference values in one directory.
fn shards() -> Value {
    let source = |number| json!({"configMap": {"name": shard_name(number), "optional": true}});
    let sources: Vec<Value> = (0..SHARDS).map(source).collect();
    json!({"projected": {"sources": sources}})
}
