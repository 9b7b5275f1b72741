//! What admins change of attestation keys on a cluster. Keys have objects, whose names are accepted, too.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use serde_json::json;
use tec_core::flow;
use tec_core::port::Clock as _;
use tec_k8s::api::{AttestationKey, ConditionKind, Reason, set_condition};
use tec_k8s::client::is_object_name;
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use super::access::Cluster;
use super::{failed, of};
use crate::ak::not_one;
use crate::args::DryRun;
use crate::known::PREFIX;

/// The object with this name, or of the key with this fingerprint or one that starts with these digits.
pub(crate) async fn find(cluster: &Cluster, text: &str) -> Result<AttestationKey, CodedError> {
    let named = if is_object_name(text) { cluster.find(text).await? } else { None };
    let mut found: Vec<_> = match named {
        Some(object) => vec![object],
        None if text.len() < PREFIX => Vec::new(),
        None => {
            let mut keys = cluster.list::<AttestationKey>().await?;
            keys.retain(|key| fingerprint(key).is_some_and(|key| key.starts_with(text)));
            keys
        }
    };
    match (found.pop(), found.is_empty()) {
        (Some(object), true) => Ok(object),
        (found, _) => Err(not_one(text, found.is_some())),
    }
}

fn fingerprint(key: &AttestationKey) -> Option<String> {
    Some(key.to_core(None).ok()?.fingerprint().to_string())
}

/// Approves the key as reviewed; the operator binds it.
pub(crate) async fn approve(
    cluster: &Cluster,
    key: &AttestationKey,
    dry_run: DryRun,
) -> anyhow::Result<()> {
    let status = json!({"conditions": approval(key)?});
    cluster.apply_status::<AttestationKey>(&key.name_any(), &status, dry_run).await?;
    Ok(())
}

pub(crate) async fn revoke(
    cluster: &Cluster,
    key: &AttestationKey,
    dry_run: DryRun,
) -> anyhow::Result<()> {
    let (name, record) = (key.name_any(), key.to_core(None));
    if let (Ok(record), false) = (record, dry_run.dry_run) {
        let key = record.fingerprint();
        let registry = of(cluster).with_key_object(key, &*name);
        let revoked = flow::revoke_ak(&registry, &SystemClock, key).await;
        return Ok(revoked.map_err(failed(format!("revoke key {name}")))?);
    }
    // An object that is no key can be revoked as an object only.
    let change = json!({"spec": {"revokedAt": SystemClock.now().to_string()}});
    cluster.merge::<AttestationKey>(&name, &change, dry_run).await?;
    Ok(())
}

/// The condition with which an admin approves the key as reviewed: a key edited later is not approved.
fn approval(key: &AttestationKey) -> anyhow::Result<Vec<Condition>> {
    let mut conditions = Vec::new();
    set_condition(
        &mut conditions,
        ConditionKind::AdminApproved,
        Reason::ApprovedByAdmin,
        "approved with kubectl tec",
        key.metadata.generation,
        SystemClock.now(),
    )?;
    Ok(conditions)
}
