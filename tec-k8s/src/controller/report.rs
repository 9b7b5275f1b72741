//! Writes the results of controllers: conditions, status, owners, finalizers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::{PartialObjectMeta, Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use tec_core::port::{PortError, PortErrorKind};

use super::context::Context;
use crate::api::{ConditionKind, PAUSED, Reason, set_condition};
use crate::client::{Object, port_error};

/// The conditions to set; unknown ones stay.
pub(super) type Said = Vec<(ConditionKind, Reason, String)>;

/// The current conditions, updated with `said` for the object's present generation.
pub(super) fn conditions(
    ctx: &Context,
    object: &impl Resource,
    known: Option<&Vec<Condition>>,
    said: &Said,
) -> Result<Vec<Condition>, PortError> {
    let mut conditions = known.cloned().unwrap_or_default();
    for (kind, reason, message) in said {
        let generation = object.meta().generation;
        set_condition(&mut conditions, *kind, *reason, message, generation, ctx.now()).map_err(
            |error| PortError::new(PortErrorKind::Internal, "set a condition").because(error),
        )?;
    }
    Ok(conditions)
}

/// The condition for an object that is no longer paused.
pub(super) fn resumed(known: Option<&Vec<Condition>>) -> Option<(ConditionKind, Reason, String)> {
    let mut known = known.into_iter().flatten();
    known
        .any(|condition| condition.type_ == ConditionKind::Paused.as_str())
        .then(|| (ConditionKind::Paused, Reason::Resumed, String::new()))
}

impl Context {
    /// Reports that an object is paused, and nothing else.
    pub(super) async fn say_paused<K>(
        &self,
        object: &K,
        known: Option<&Vec<Condition>>,
    ) -> Result<(), PortError>
    where
        K: Object + HasStatus<Status: Serialize>,
    {
        let message = format!("remove the annotation {PAUSED} to resume");
        let said = vec![(ConditionKind::Paused, Reason::PausedByAnnotation, message)];
        self.say(object, known, &said, json!({})).await
    }

    /// Sets conditions, of which `known` are there already, and these other fields of the status.
    pub(super) async fn say<K>(
        &self,
        object: &K,
        known: Option<&Vec<Condition>>,
        said: &Said,
        mut status: Value,
    ) -> Result<(), PortError>
    where
        K: Object + HasStatus<Status: Serialize>,
    {
        let conditions = conditions(self, object, known, said)?;
        if let Some(members) = status.as_object_mut() {
            members.insert("conditions".to_owned(), json!(conditions));
        }
        let known = object.status().and_then(|known| serde_json::to_value(known).ok());
        self.write_status(object, known.as_ref(), status).await
    }

    /// Writes fields of the status, unless they already have these values; `known` is the status as it was
    /// read. A status that has been changed since then is not overwritten.
    pub(super) async fn write_status<K: Object>(
        &self,
        object: &K,
        known: Option<&Value>,
        status: Value,
    ) -> Result<(), PortError> {
        let is_said = |(member, value): (&String, &Value)| {
            let old = known.and_then(|known| known.get(member));
            old == Some(value) || (old.is_none() && is_empty(value))
        };
        if status.as_object().is_some_and(|members| members.iter().all(is_said)) {
            return Ok(());
        }
        let name = object.name_any();
        let patch = json!({
            "metadata": {"resourceVersion": object.resource_version()},
            "status": status,
        });
        let params = PatchParams::default();
        let written = self.objects::<K>().patch_status(&name, &params, &Patch::Merge(patch)).await;
        written.map_err(|error| port_error(format!("write the status of {name}"), error))?;
        Ok(())
    }

    /// Changes metadata of an object that nobody else has changed since it was read.
    pub(super) async fn write_metadata<K: Object>(
        &self,
        object: &K,
        mut metadata: Value,
    ) -> Result<(), PortError> {
        let name = object.name_any();
        if let Some(members) = metadata.as_object_mut() {
            members.insert("resourceVersion".to_owned(), json!(object.resource_version()));
        }
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let params = PatchParams::default();
        let written = self.objects::<K>().patch_metadata(&name, &params, &patch).await;
        written.map_err(|error| port_error(format!("change the metadata of {name}"), error))?;
        Ok(())
    }

    /// Makes sure that the object is removed with its owner, and not before its finalizer is removed. Other
    /// owners stay; one that is a controller of a kind in `replaces` gives way, since there can be only one.
    /// Returns whether anything was changed; the watch then reports it.
    pub(super) async fn claim<K: Object, O: Object>(
        &self,
        object: &K,
        owner: Option<&O>,
        replaces: &[&str],
        finalizer: Option<&str>,
    ) -> Result<bool, PortError> {
        let mut changes = serde_json::Map::new();
        let is_known = |owner: &OwnerReference| {
            object.owner_references().iter().any(|known| known.uid == owner.uid)
        };
        if let Some(owner) = owner
            && let Some(reference) = owner_of(owner).filter(|reference| !is_known(reference))
        {
            still_exists(&self.objects(), owner).await?;
            let owners = with_owner(object.owner_references(), reference, replaces);
            changes.insert("ownerReferences".to_owned(), json!(owners));
        }
        if let Some(finalizer) = finalizer
            && !object.finalizers().iter().any(|known| known == finalizer)
        {
            let all: Vec<_> =
                object.finalizers().iter().map(String::as_str).chain([finalizer]).collect();
            changes.insert("finalizers".to_owned(), json!(all));
        }
        if changes.is_empty() {
            return Ok(false);
        }
        self.write_metadata(object, Value::Object(changes)).await?;
        Ok(true)
    }

    /// Removes finalizers.
    pub(super) async fn unclaim<K: Object>(
        &self,
        object: &K,
        finalizer: &str,
    ) -> Result<(), PortError> {
        let is_other = |known: &&String| known.as_str() != finalizer;
        let others: Vec<_> = object.finalizers().iter().filter(is_other).collect();
        if others.len() == object.finalizers().len() {
            return Ok(());
        }
        self.write_metadata(object, json!({ "finalizers": others })).await
    }
}

/// Asks the API server whether an owner exists as it was seen. The garbage collector removes what belongs to an
/// owner that is gone, a machine with its disk key too, and the watches of two kinds do not keep their order.
async fn still_exists<O: Object>(owners: &Api<O>, seen: &O) -> Result<(), PortError> {
    let name = seen.name_any();
    let now = owners.get_metadata_opt(&name).await;
    let now = now.map_err(|error| port_error(format!("read the metadata of {name}"), error))?;
    let is_same = |now: &PartialObjectMeta<O>| {
        now.uid() == seen.uid() && now.metadata.deletion_timestamp.is_none()
    };
    if now.as_ref().is_some_and(is_same) {
        return Ok(());
    }
    Err(PortError::new(PortErrorKind::Conflict, format!("give something to {name}, which is gone")))
}

fn with_owner(
    known: &[OwnerReference],
    mut owner: OwnerReference,
    replaces: &[&str],
) -> Vec<OwnerReference> {
    let gives_way = |known: &OwnerReference| {
        known.controller == Some(true)
            && known.api_version == owner.api_version
            && replaces.contains(&known.kind.as_str())
    };
    let mut owners: Vec<_> = known.iter().filter(|known| !gives_way(known)).cloned().collect();
    if owners.iter().any(|known| known.controller == Some(true)) {
        owner.controller = Some(false);
    }
    owners.push(owner);
    owners
}

/// The reference with which an object owns others.
pub(super) fn owner_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<OwnerReference> {
    let mut owner = object.controller_owner_ref(&())?;
    owner.block_owner_deletion = Some(true);
    Some(owner)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tower::service_fn;

    use super::*;
    use crate::api::TrustedExecutionCluster;

    fn owner(kind: &str, uid: &str, is_controller: bool) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            controller: Some(is_controller),
            ..OwnerReference::default()
        }
    }

    #[tokio::test]
    async fn nothing_is_given_to_an_owner_that_is_gone_replaced_or_being_removed() {
        let cluster = |uid: &str, removed: Option<&str>| {
            json!({
                "apiVersion": "trusted-execution-clusters.io/v1alpha1",
                "kind": "TrustedExecutionCluster",
                "metadata": {"name": "trusted", "uid": uid, "deletionTimestamp": removed},
                "spec": {},
            })
        };
        let gone =
            json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
        let cases = [
            (200, cluster("a", None), true),
            (200, cluster("b", None), false),
            (200, cluster("a", Some("2026-12-02T00:00:00Z")), false),
            (404, gone, false),
        ];
        for (code, answer, exists) in cases {
            let said = answer.to_string();
            let service = service_fn(move |_: Request<Body>| {
                let body = Body::from(answer.to_string().into_bytes());
                let response = Response::builder().status(code).body(body).unwrap();
                async { Ok::<_, Infallible>(response) }
            });
            let seen: TrustedExecutionCluster = serde_json::from_value(cluster("a", None)).unwrap();
            let api = Api::namespaced(Client::new(service, "default"), "default");
            let kind = still_exists(&api, &seen).await.map_err(|error| error.kind());
            assert_eq!(kind, if exists { Ok(()) } else { Err(PortErrorKind::Conflict) }, "{said}");
        }
    }

    #[test]
    fn owners_of_others_stay_and_one_of_them_is_the_controller() {
        let known = [owner("Theirs", "a", true), owner("Theirs", "b", false)];
        let owners = with_owner(&known, owner("Ours", "c", true), &["Old"]);
        assert_eq!(owners[..2], known);
        assert_eq!(owners[2].controller, Some(false), "there is one already");
        let old = [owner("Old", "a", true), owner("Theirs", "b", false)];
        let owners = with_owner(&old, owner("Ours", "c", true), &["Old"]);
        let uids: Vec<_> = owners.iter().map(|owner| &*owner.uid).collect();
        assert_eq!(uids, ["b", "c"]);
        assert_eq!(owners[1].controller, Some(true));
    }
}
