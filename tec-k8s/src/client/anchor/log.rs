//! The audit log of a namespace as one list, and the logs of other anchors that the namespace keeps.
//!
//! ```text
//!   trust-audit-<anchor>          the index: how many lines, SHA-256 over all of them, the pages
//!   trust-audit-<anchor>-<hash>   a page: lines, JSON, unchanged; immutable
//! ```
//! Kept logs are never removed with anything else: no object owns them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ObjectMeta, PostParams};
use kube::{Resource, ResourceExt as _};
use tec_core::digest::Sha256Digest;
use tec_core::migrate::AnchorId;
use tec_core::port::{AuditEvent, PortError};

use crate::api;
use crate::client::error::{is_conflict, port_error};
use crate::client::pages::{each, whole_pages};
use crate::client::recovery::none_if_unknown;
use crate::client::{AUDIT, KubeRegistry, Object, is_terminating, metadata_pages};

/// Label of everything that is kept of an anchor; its value is the anchor.
pub const AUDIT_OF: &str = "trusted-execution-clusters.io/audit-of";
/// Entry of a page with its lines.
const LINES: &str = "lines";

fn index_name(of: AnchorId) -> String {
    format!("trust-audit-{of}")
}

impl KubeRegistry {
    /// The audit lines of this namespace, in order of time: from objects, and from Events, which the API
    /// server forgets after an hour by default.
    pub async fn audit_lines(&self) -> Result<Vec<AuditEvent>, PortError> {
        let mut lines = BTreeSet::new();
        self.take_from::<api::Machine>(&mut lines).await?;
        self.take_from::<api::AttestationKey>(&mut lines).await?;
        self.take_from::<api::ApprovedImage>(&mut lines).await?;
        self.take_from::<Secret>(&mut lines).await?;
        none_if_unknown(self.take_from::<api::RecoveryKey>(&mut lines).await)?;
        let record = self.authority_object().await?;
        take(&mut lines, &record);
        each(self.objects(), whole_pages(), |event: Event| {
            if event.name_any().starts_with("tec-audit-") {
                lines.extend(event.note);
            }
        })
        .await?;
        // A note that was too long for an Event is in its object too.
        let parsed = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
        let mut parsed: Vec<AuditEvent> = parsed.collect();
        parsed.sort_by_key(|line| line.at);
        Ok(parsed)
    }

    /// Lines in annotations. Only metadata is read: no key leaves the API server for a list.
    async fn take_from<K: Object>(&self, lines: &mut BTreeSet<String>) -> Result<(), PortError> {
        let mut pages = pin!(metadata_pages(self.objects::<K>()));
        while let Some(page) = pages.try_next().await? {
            let live = page.iter().filter(|object| !is_terminating(*object));
            live.for_each(|object| take(lines, object));
        }
        Ok(())
    }

    /// Whether the complete log of an anchor is kept here.
    pub async fn keeps_log(&self, of: AnchorId) -> Result<bool, PortError> {
        let found = self.authorities().get_opt(&index_name(of)).await;
        let found = found.map_err(|error| port_error("look for an audit log", error))?;
        Ok(found.is_some())
    }

    /// Keeps one page and returns its name. Repeating it changes nothing.
    pub async fn keep_page(&self, of: AnchorId, lines: String) -> Result<String, PortError> {
        let hash = Sha256Digest::of(&lines).to_string();
        let hash = hash.get(..16).unwrap_or(&hash);
        let name = format!("{}-{hash}", index_name(of));
        let entries = BTreeMap::from([(LINES.to_owned(), lines)]);
        self.keep_entries(of, name.clone(), entries).await?;
        Ok(name)
    }

    /// Keeps the index, after all pages, and returns its name.
    pub async fn keep_index(
        &self,
        of: AnchorId,
        (lines, digest): (u64, Sha256Digest),
        pages: &[String],
    ) -> Result<String, PortError> {
        let entries = BTreeMap::from([
            ("count".to_owned(), lines.to_string()),
            ("sha256".to_owned(), digest.to_string()),
            ("pages".to_owned(), pages.join("\n")),
        ]);
        self.keep_entries(of, index_name(of), entries).await?;
        Ok(index_name(of))
    }

    async fn keep_entries(
        &self,
        of: AnchorId,
        name: String,
        entries: BTreeMap<String, String>,
    ) -> Result<(), PortError> {
        let object = ConfigMap {
            metadata: ObjectMeta {
                labels: Some(BTreeMap::from([(AUDIT_OF.to_owned(), of.to_string())])),
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            immutable: Some(true),
            data: Some(entries),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        match self.authorities().create(&params, &object).await {
            Ok(_) => Ok(()),
            // Its name is derived from its content.
            Err(error) if is_conflict(&error) => Ok(()),
            Err(error) => Err(port_error(format!("keep {name}"), error)),
        }
    }
}

fn take(lines: &mut BTreeSet<String>, object: &impl Resource) {
    lines.extend(object.annotations().get(AUDIT).cloned());
}
