//! The copy of the record of authority that the cluster object remembers.
//!
//! Removing or emptying the record's ConfigMap must not restore the authority of an anchor that gave it up.
//! So the record is kept twice: giving up is written to the cluster object *before* it takes effect, taking
//! over *after* it takes effect. If the ConfigMap is gone, what the cluster object remembers applies, which
//! never permits more than the last record did. A late writer undoes nothing: what is remembered is only ever
//! replaced by what came after it.

use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde_json::json;
use tec_core::migrate::{Authority, Role};
use tec_core::port::{PortError, PortErrorKind, chain};

use super::authority::record_of;
use super::error::{is_conflict, is_not_found, port_error};
use super::{ATTEMPTS, KubeRegistry};
use crate::api::TrustedExecutionCluster;

/// Annotation of the cluster object: the record of authority, JSON.
const REMEMBERED: &str = "trusted-execution-clusters.io/trust-authority";

/// The record that a cluster object remembers, if it was ever part of a migration.
///
/// # Errors
/// The remembered record is malformed: nobody may do anything then.
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
            latest = latest.into_iter().chain(record).max_by_key(Authority::epoch);
        }
        Ok(latest)
    }

    /// Makes the cluster objects remember a record that is about to take effect.
    pub(super) async fn remember_before(&self, record: &Authority) -> Result<(), PortError> {
        if record.role() == Role::Active {
            return Ok(());
        }
        self.remember(record).await
    }

    /// Makes them remember a record that is in effect. A failure is safe: what they remember permits less.
    pub(super) async fn remember_after(&self, record: &Authority) {
        if record.is_alone() {
            return;
        }
        if let Err(error) = self.remember(record).await {
            let error = chain(&error);
            tracing::warn!(error, "the cluster object does not remember the authority");
        }
    }

    /// Makes them remember the record in effect once more: for an object that was recreated, and one that the
    /// last change did not reach. Creates the record's object if it does not exist.
    pub async fn remember_again(&self) -> Result<(), PortError> {
        let object = self.authority_object().await?;
        match record_of(&object)?.filter(|record| !record.is_alone()) {
            Some(record) => self.remember(&record).await,
            None => Ok(()),
        }
    }

    async fn remember(&self, record: &Authority) -> Result<(), PortError> {
        let text = serde_json::to_string(record).map_err(|error| {
            let what = "write the record of authority";
            PortError::new(PortErrorKind::Internal, what).because(error)
        })?;
        let listed = self.clusters().list_metadata(&ListParams::default()).await;
        for object in listed.map_err(failed)?.items {
            self.remember_in(object, record, &text).await?;
        }
        Ok(())
    }

    /// Writes by compare-and-swap, and never over a later record.
    async fn remember_in(
        &self,
        mut object: PartialObjectMeta<TrustedExecutionCluster>,
        record: &Authority,
        text: &str,
    ) -> Result<(), PortError> {
        let name = object.name_any();
        for _ in 0..ATTEMPTS {
            if remembered_of(&object)?.is_some_and(|known| is_settled(&known, record)) {
                return Ok(());
            }
            let patch = Patch::Merge(json!({"metadata": {
                "resourceVersion": object.resource_version(),
                "annotations": {REMEMBERED: text},
            }}));
            let params = PatchParams::default();
            match self.clusters().patch_metadata(&name, &params, &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if is_conflict(&error) => {}
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
            let now = self.clusters().get_metadata_opt(&name).await;
            match now.map_err(failed)? {
                Some(now) => object = now,
                None => return Ok(()),
            }
        }
        let why = "remember the record of authority: others were faster each time";
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }
}

fn failed(error: kube::Error) -> PortError {
    port_error("remember the record of authority", error)
}

/// Whether what is remembered is this record already, or one that came after it.
fn is_settled(known: &Authority, record: &Authority) -> bool {
    // Within one epoch an anchor only ever permits less.
    let closed = |role| match role {
        Role::Active => 0,
        Role::Forward => 2,
        Role::Retired => 3,
        _ => 1,
    };
    let age = |record: &Authority| {
        let (passes, transfers) = (record.passes(), record.transfers());
        (record.epoch(), closed(record.role()), passes, transfers)
    };
    known == record || (known.anchor() == record.anchor() && age(known) > age(record))
}
