//! What the cluster object remembers of the record of authority.
//!
//! Whoever removes the ConfigMap of the record, or empties it, must not make an anchor the authority
//! again that gave it up. So the record is kept twice: what gives up is written to the cluster object
//! *before* it counts, what takes over *after* it counts. Where the ConfigMap is gone, what the cluster
//! object remembers counts, which never permits more than the last record did.

use kube::Api;
use kube::Resource;
use kube::ResourceExt as _;
use kube::api::ListParams;
use kube::api::Patch;
use kube::api::PatchParams;
use serde_json::json;
use tec_core::migrate::Authority;
use tec_core::migrate::Role;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::port::chain;

use super::KubeRegistry;
use super::error::port_error;
use crate::api::TrustedExecutionCluster;

/// Annotation of the cluster object: the record of authority, JSON.
const REMEMBERED: &str = "trusted-execution-clusters.io/trust-authority";

/// The record that a cluster object remembers, if it was ever part of a migration.
///
/// # Errors
/// What it remembers is malformed: nobody may do anything then.
pub fn remembered_of(object: &impl Resource) -> Result<Option<Authority>, PortError> {
    let text = object.annotations().get(REMEMBERED);
    let parsed = text.map(|text| serde_json::from_str(text)).transpose();
    parsed.map_err(|error| {
        let what = format!("read the annotation {REMEMBERED} of {}", object.name_any());
        PortError::new(PortErrorKind::Invalid, what).because(error)
    })
}

impl KubeRegistry {
    fn clusters(&self) -> Api<TrustedExecutionCluster> {
        self.objects()
    }

    /// The latest record that a cluster object remembers.
    pub(super) async fn remembered(&self) -> Result<Option<Authority>, PortError> {
        let listed = self.clusters().list_metadata(&ListParams::default()).await;
        let listed = listed.map_err(|error| port_error("list cluster objects", error))?;
        let mut latest: Option<Authority> = None;
        for object in &listed.items {
            let record = remembered_of(object)?;
            latest = latest
                .into_iter()
                .chain(record)
                .max_by_key(Authority::epoch);
        }
        Ok(latest)
    }

    /// Has the cluster objects remember a record that is about to count.
    pub(super) async fn remember_before(&self, record: &Authority) -> Result<(), PortError> {
        if record.role() == Role::Active {
            return Ok(());
        }
        self.remember(record).await
    }

    /// Has them remember a record that counts. Failing is safe: what they remember permits less.
    pub(super) async fn remember_after(&self, record: &Authority) {
        if record.is_alone() {
            return;
        }
        if let Err(error) = self.remember(record).await {
            let error = chain(&error);
            tracing::warn!(error, "the cluster object does not remember the authority");
        }
    }

    async fn remember(&self, record: &Authority) -> Result<(), PortError> {
        let failed = |error| port_error("remember the record of authority", error);
        let text = serde_json::to_string(record).map_err(|error| {
            let what = "write the record of authority";
            PortError::new(PortErrorKind::Internal, what).because(error)
        })?;
        let listed = self.clusters().list_metadata(&ListParams::default()).await;
        let patch = json!({"metadata": {"annotations": {REMEMBERED: text}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        for object in listed.map_err(failed)?.items {
            let name = object.name_any();
            let patched = self.clusters().patch_metadata(&name, &params, &patch).await;
            patched.map_err(failed)?;
        }
        Ok(())
    }
}
