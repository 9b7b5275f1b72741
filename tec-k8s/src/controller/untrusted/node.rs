//! The Node of a machine: whether it is proven, and what is changed on it.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};
use tec_core::port::PortError;

use super::super::context::Context;
use super::decide::Link;
use crate::api::{
    ActedOn, CORDONED, MACHINE_LABEL, Machine, PROTECTED_MACHINE_LABEL, UNTRUSTED_TAINT,
    UntrustedAction,
};
use crate::client::port_error;

const NO_SCHEDULE: &str = "NoSchedule";

/// Whether the operator may read and change Nodes.
pub(super) async fn may_change(ctx: &Context) -> Result<bool, PortError> {
    for verb in ["get", "patch"] {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    resource: Some("nodes".to_owned()),
                    verb: Some(verb.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews = Api::<SelfSubjectAccessReview>::all(ctx.client());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| port_error("ask for the rights on Nodes", error))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The Node of a machine, if both name each other, or did when it was acted on.
///
/// # Security
/// A kubelet can label its own Node with any machine, and a node can claim any name for its machine. Neither
/// alone can harm another node: the admission plugin NodeRestriction keeps a kubelet from labeling the Node of
/// another one.
pub(super) async fn link(
    ctx: &Context,
    machine: &Machine,
    acted: Option<&ActedOn>,
) -> Result<Link, PortError> {
    if let Some((name, uid)) =
        acted.and_then(|acted| acted.node.as_ref().zip(acted.node_uid.as_ref()))
        && find(ctx, name).await?.is_some_and(|node| node.uid().as_ref() == Some(uid))
    {
        return Ok(Link::Proven { name: name.clone(), uid: uid.clone() });
    }
    let id = &machine.spec.id;
    let Some(name) = &machine.spec.node_name else {
        let why = format!("the machine has no node name; run kubectl tec machine name {id} <node>");
        return Ok(Link::Unproven(why));
    };
    let Some(node) = find(ctx, name).await? else {
        let why = format!("this cluster has no Node {name}");
        return Ok(Link::Unproven(why));
    };
    Ok(proven(&node, name, id))
}

/// Whether the Node names the machine that names it.
fn proven(node: &Node, name: &str, id: &str) -> Link {
    let labels = node.labels();
    let claim = labels.get(PROTECTED_MACHINE_LABEL).or_else(|| labels.get(MACHINE_LABEL));
    match (claim, node.uid()) {
        (Some(claim), Some(uid)) if claim == id => Link::Proven { name: name.to_owned(), uid },
        _ => {
            let command = format!("kubectl label node {name} {PROTECTED_MACHINE_LABEL}={id}");
            Link::Unproven(format!("the Node {name} does not name the machine; run {command}"))
        }
    }
}

async fn find(ctx: &Context, name: &str) -> Result<Option<Node>, PortError> {
    let found = Api::<Node>::all(ctx.client()).get_opt(name).await;
    found.map_err(|error| port_error(format!("read the Node {name}"), error))
}

/// Makes the marks of a Node those of the actions; none removes them all. A Node that is gone, or another one
/// of the same name, is not touched.
pub(super) async fn apply(
    ctx: &Context,
    name: &str,
    uid: &str,
    actions: &[UntrustedAction],
) -> Result<(), PortError> {
    let node = find(ctx, name).await?.filter(|node| node.uid().as_deref() == Some(uid));
    let Some(patch) = node.as_ref().and_then(|node| patch(node, actions)) else {
        return Ok(());
    };
    let (nodes, params) = (Api::<Node>::all(ctx.client()), PatchParams::default());
    let written = nodes.patch(name, &params, &Patch::Merge(patch)).await;
    written.map(drop).map_err(|error| port_error(format!("change the Node {name}"), error))
}

/// What to change on the Node, if anything. It fails if someone else has changed the Node since.
fn patch(node: &Node, actions: &[UntrustedAction]) -> Option<Value> {
    let mut spec = Map::new();
    let mut metadata = Map::new();
    let known = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let taints = taints(&known, actions);
    if taints != known {
        spec.insert("taints".to_owned(), json!(taints));
    }
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
    let is_ours = node.annotations().contains_key(CORDONED);
    match (actions.contains(&UntrustedAction::Cordon), is_cordoned, is_ours) {
        (true, false, _) => {
            spec.insert("unschedulable".to_owned(), json!(true));
            metadata.insert("annotations".to_owned(), json!({ CORDONED: "true" }));
        }
        (false, _, true) => {
            spec.insert("unschedulable".to_owned(), Value::Null);
            metadata.insert("annotations".to_owned(), json!({ CORDONED: null }));
        }
        _ => {}
    }
    if spec.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".to_owned(), json!(node.resource_version()));
    Some(json!({ "metadata": metadata, "spec": spec }))
}

/// The taints of others, and ours. One of ours with another effect is from before, and goes.
fn taints(known: &[Taint], actions: &[UntrustedAction]) -> Vec<Taint> {
    let is_wanted = actions.contains(&UntrustedAction::Taint);
    let is_it = |taint: &Taint| taint.key == UNTRUSTED_TAINT && taint.effect == NO_SCHEDULE;
    let stays = |taint: &&Taint| taint.key != UNTRUSTED_TAINT || (is_wanted && is_it(taint));
    let mut taints: Vec<Taint> = known.iter().filter(stays).cloned().collect();
    if is_wanted && !taints.iter().any(is_it) {
        let (key, effect) = (UNTRUSTED_TAINT.to_owned(), NO_SCHEDULE.to_owned());
        taints.push(Taint { key, effect, ..Taint::default() });
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::UntrustedAction::{Cordon, Taint as Mark};
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
    }

    #[test]
    fn the_taints_of_others_stay_and_ours_come_and_go() {
        let (foreign, ours) = (taint("gpu", NO_SCHEDULE), taint(UNTRUSTED_TAINT, NO_SCHEDULE));
        let both = taints(std::slice::from_ref(&foreign), &[Mark]);
        assert_eq!(both, [foreign.clone(), ours]);
        assert_eq!(taints(&both, &[Mark]), both, "again");
        assert_eq!(taints(&both, &[]), [foreign]);
    }

    #[test]
    fn a_taint_that_evicts_is_replaced_by_one_that_does_not() {
        let (before, ours) =
            (taint(UNTRUSTED_TAINT, "NoExecute"), taint(UNTRUSTED_TAINT, NO_SCHEDULE));
        assert_eq!(taints(std::slice::from_ref(&before), &[Mark]), [ours]);
        assert_eq!(taints(&[before], &[Cordon]), []);
    }

    #[test]
    fn the_cordon_of_an_admin_is_neither_taken_over_nor_undone() {
        let cordoned = node(json!({"spec": {"unschedulable": true}}));
        assert_eq!(patch(&cordoned, &[Cordon]), None);
        assert_eq!(patch(&cordoned, &[]), None);
    }

    #[test]
    fn our_own_cordon_is_remembered_on_the_node_and_undone() {
        let patched = patch(&node(json!({})), &[Cordon]).unwrap();
        assert_eq!(patched["spec"], json!({"unschedulable": true}));
        let ours = node(json!({
            "metadata": {"annotations": {CORDONED: "true"}}, "spec": {"unschedulable": true},
        }));
        assert_eq!(patch(&ours, &[Cordon]), None, "again");
        let undone = patch(&ours, &[]).unwrap();
        assert_eq!(undone["spec"], json!({"unschedulable": null}));
        assert_eq!(undone["metadata"]["annotations"], json!({CORDONED: null}));
    }

    #[test]
    fn a_node_is_proven_only_if_it_names_the_machine_and_the_protected_label_counts_first() {
        let is_proven = |labels: Value| {
            let metadata = json!({"name": "n", "uid": "u", "labels": labels});
            matches!(proven(&node(json!({ "metadata": metadata })), "n", "id"), Link::Proven { .. })
        };
        assert!(is_proven(json!({MACHINE_LABEL: "id"})));
        assert!(is_proven(json!({PROTECTED_MACHINE_LABEL: "id", MACHINE_LABEL: "other"})));
        assert!(!is_proven(json!({PROTECTED_MACHINE_LABEL: "other", MACHINE_LABEL: "id"})));
        assert!(!is_proven(json!({MACHINE_LABEL: "other"})));
        assert!(!is_proven(json!({})));
    }
}
