//! Conditions, Events and metrics about untrusted machines.

use serde_json::json;
use tec_core::port::PortError;

use super::super::context::Context;
use super::super::report::conditions;
use super::decide::{Decision, Deeds, Link, Verdict};
use super::write;
use crate::api::{ConditionKind, Machine, Reason, TrustedExecutionCluster, UntrustedAction};
use crate::render::{Component, node_rights_name};
use crate::signal::{Event, Metric};

/// How many machines are in which state.
#[derive(Debug)]
pub(super) struct Tally {
    acted_on: usize,
    dry_run: usize,
    over_limit: usize,
    no_node: usize,
    no_rights: usize,
    /// Whether the policy, or what has to be undone, is about Nodes.
    pub(super) needs_nodes: bool,
}

impl Tally {
    pub(super) fn new(acted_on: usize, needs_nodes: bool) -> Self {
        Self { acted_on, dry_run: 0, over_limit: 0, no_node: 0, no_rights: 0, needs_nodes }
    }

    pub(super) fn count(&mut self, decision: &Decision, was_acted_on: bool) {
        match decision {
            Decision::Act(_) if !was_acted_on => self.acted_on += 1,
            Decision::Undo => self.acted_on = self.acted_on.saturating_sub(1),
            Decision::WouldAct(_) => self.dry_run += 1,
            Decision::OverLimit => self.over_limit += 1,
            Decision::CannotAct(Link::NoRights) => self.no_rights += 1,
            Decision::CannotAct(_) => self.no_node += 1,
            Decision::Act(_) | Decision::Leave | Decision::Clear => {}
        }
    }
}

/// Sets the condition `ActedOn` of a machine; if it changed, with an Event.
pub(super) async fn machine(
    ctx: &Context,
    machine: &Machine,
    verdict: &Verdict,
    decision: &Decision,
    limit: usize,
) -> Result<Machine, PortError> {
    let status = machine.status.as_ref().map(|status| &status.conditions);
    let mut known = status.into_iter().flatten();
    let known = known.find(|condition| condition.type_ == ConditionKind::ActedOn.as_str());
    let said = said(verdict, decision, limit).filter(|(reason, message, _)| match known {
        Some(known) => known.reason != reason.as_str() || known.message != *message,
        None => *decision != Decision::Clear,
    });
    let Some((reason, message, event)) = said else {
        return Ok(machine.clone());
    };
    let said = vec![(ConditionKind::ActedOn, reason, message.clone())];
    let conditions = conditions(ctx, machine, status, &said)?;
    let written = write(ctx, machine, json!({ "conditions": conditions })).await?;
    if let Some(event) = event {
        tracing::info!(machine.id = machine.spec.id, reason = reason.as_str(), "{message}");
        ctx.event(machine, event, &message).await;
    }
    Ok(written)
}

fn said(
    verdict: &Verdict,
    decision: &Decision,
    limit: usize,
) -> Option<(Reason, String, Option<Event>)> {
    let why = match verdict {
        Verdict::Untrusted(why) => why.as_str(),
        // What was done before stays, and so does the message.
        _ if matches!(decision, Decision::Act(_)) => return None,
        _ => "",
    };
    let (reason, message, event) = match decision {
        Decision::Leave => return None,
        Decision::Clear => return Some((Reason::Restored, String::new(), None)),
        Decision::Undo => {
            return Some((Reason::Restored, String::new(), Some(Event::UntrustedRestored)));
        }
        Decision::Act(deeds) => (Reason::Untrusted, done(deeds), Event::UntrustedActedOn),
        Decision::WouldAct(deeds) => {
            (Reason::DryRun, format!("dry run: {}", done(deeds)), Event::UntrustedDryRun)
        }
        Decision::OverLimit => {
            let message = format!(
                "nothing is done: spec.onUntrusted.maxNodes allows {limit} at the same time; if the \
                 refusals are right, raise it"
            );
            (Reason::LimitReached, message, Event::UntrustedLimitReached)
        }
        Decision::CannotAct(Link::Unproven(missing)) => {
            let message = format!("nothing is done: {missing}");
            (Reason::NoNode, message, Event::UntrustedNoNode)
        }
        Decision::CannotAct(_) => {
            let message = "nothing is done: the operator may not change Nodes".to_owned();
            (Reason::NoNodeRights, message, Event::UntrustedNoRights)
        }
    };
    let message = if why.is_empty() { message } else { format!("{why}: {message}") };
    Some((reason, message, Some(event)))
}

fn done(deeds: &Deeds) -> String {
    let actions: Vec<_> = deeds.actions.iter().map(|action| action.as_str()).collect();
    let actions = actions.join(", ");
    match &deeds.link {
        Link::Proven { name, .. } => format!("{actions} (Node {name})"),
        Link::Unproven(missing) => format!("{actions}; no Node: {missing}"),
        Link::NoRights => format!("{actions}; no Node: the operator may not change Nodes"),
    }
}

/// Whether the cluster object says that the operator acts.
pub(super) fn is_acting(cluster: &TrustedExecutionCluster) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| {
        condition.type_ == ConditionKind::ActsOnUntrusted.as_str()
            && condition.reason != Reason::NoActions.as_str()
    })
}

/// Sets the metric, and the condition `ActsOnUntrusted` of the cluster object.
pub(super) async fn cluster(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    tally: &Tally,
    limit: usize,
    may_change_nodes: bool,
) -> Result<(), PortError> {
    let policy = cluster.spec.on_untrusted.as_ref();
    let outcomes = [
        ("acted_on", tally.acted_on),
        ("dry_run", tally.dry_run),
        ("over_limit", tally.over_limit),
        ("no_node", tally.no_node),
        ("no_rights", tally.no_rights),
    ];
    for (outcome, count) in outcomes {
        ctx.metrics.set(Metric::Untrusted, &[outcome], count);
    }
    let (reason, message) = match policy {
        _ if !may_change_nodes => (Reason::NoNodeRights, grant(ctx)),
        None => (Reason::NoActions, String::new()),
        Some(policy) if tally.over_limit > 0 => {
            let message = format!(
                "{} more are untrusted than the {limit} that spec.onUntrusted.maxNodes allows; see \
                 kubectl tec machine list",
                tally.over_limit
            );
            (if policy.dry_run { Reason::DryRun } else { Reason::LimitReached }, message)
        }
        Some(policy) => {
            let actions: Vec<_> =
                policy.actions().into_iter().map(UntrustedAction::as_str).collect();
            let message = format!("{}, at most {limit} machines at a time", actions.join(", "));
            (if policy.dry_run { Reason::DryRun } else { Reason::Acting }, message)
        }
    };
    if policy.is_none() {
        ctx.metrics.keep_only(Metric::Untrusted, &[]);
    }
    let asks_to_evict = policy.is_some_and(|it| it.actions.contains(&UntrustedAction::Evict));
    let gone = if asks_to_evict { "Evict no longer exists and counts as Taint. " } else { "" };
    let message = format!("{gone}{message}");
    let said = vec![(ConditionKind::ActsOnUntrusted, reason, message)];
    let known = cluster.status.as_ref().map(|status| &status.conditions);
    ctx.say(cluster, known, &said, json!({})).await
}

/// What to run so that the operator may change Nodes.
fn grant(ctx: &Context) -> String {
    let (namespace, account) = (&ctx.parts.namespace, Component::Operator.service_account());
    let name = node_rights_name(namespace);
    format!(
        "the operator may not get and patch Nodes. Set actOnNodes=true in the chart, or run: kubectl \
         create clusterrole {name} --verb=get,patch --resource=nodes && kubectl create \
         clusterrolebinding {name} --clusterrole={name} --serviceaccount={namespace}:{account}"
    )
}
