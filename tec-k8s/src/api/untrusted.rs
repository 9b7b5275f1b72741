//! What is done about a machine that is no longer trusted after boot.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tec_core::time::Timestamp;

use super::convert::time_schema;

/// Key of the taint of a Node whose machine is untrusted.
pub const UNTRUSTED_TAINT: &str = "trusted-execution-clusters.io/untrusted";

/// Annotation of a Node that the operator cordoned. A cordon without it is someone else's, and stays.
pub const CORDONED: &str = "trusted-execution-clusters.io/cordoned";

/// Label of a Node that holds the id of its machine, like [`MACHINE_LABEL`](super::MACHINE_LABEL), but that
/// the admission plugin NodeRestriction keeps kubelets from changing. If it is there, it counts.
pub const PROTECTED_MACHINE_LABEL: &str =
    "trusted-execution-clusters.io.node-restriction.kubernetes.io/machine";

/// Percent of the machines that are acted on at the same time by default.
const DEFAULT_PERCENT: usize = 10;

/// What is done about an untrusted machine.
#[derive(
    JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum UntrustedAction {
    /// Its Node gets a taint with the effect NoSchedule: no new pods.
    Taint,
    /// Its Node is marked unschedulable.
    Cordon,
    /// No longer exists: counts as Taint, so that objects that have it stay valid.
    Evict,
    /// The machine is quarantined: its key is withheld at the next boot, until an admin releases it.
    Quarantine,
}

impl UntrustedAction {
    /// As written in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taint => "Taint",
            Self::Cordon => "Cordon",
            Self::Evict => "Evict",
            Self::Quarantine => "Quarantine",
        }
    }

    /// Whether it changes the Node of the machine.
    pub const fn needs_node(self) -> bool {
        !matches!(self, Self::Quarantine)
    }
}

/// Actions on machines that no longer attest well.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct OnUntrustedSpec {
    /// Taint, Cordon, Quarantine: all that are listed are done, in this order. All but Quarantine are undone when
    /// the machine attests well again. Evict no longer exists, and counts as Taint.
    #[schemars(length(min = 1, max = 4))]
    pub actions: Vec<UntrustedAction>,

    /// Whether to report what would be done, and to change nothing (default false).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,

    /// Most machines that are acted on at the same time: a number, or a percentage of the machines with a node
    /// name (default 10%). One may always be acted on. Machines without a proven Node are counted apart, up to
    /// the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_nodes_schema")]
    pub max_nodes: Option<IntOrString>,

    /// Seconds after which a machine that does not attest is untrusted (default: never). At least one hour; a
    /// node attests every ten to fifteen minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "stale_schema")]
    pub stale_after_seconds: Option<u32>,
}

impl OnUntrustedSpec {
    /// The actions, sorted, each once.
    pub fn actions(&self) -> Vec<UntrustedAction> {
        let existing = |action: &UntrustedAction| match action {
            UntrustedAction::Evict => UntrustedAction::Taint,
            action => *action,
        };
        let mut actions: Vec<_> = self.actions.iter().map(existing).collect();
        actions.sort_unstable();
        actions.dedup();
        actions
    }

    /// Most machines that are acted on at the same time, of a fleet of this size. A text that is neither a
    /// number nor a percentage means one.
    pub fn limit(&self, fleet: usize) -> usize {
        let share = |percent: usize| fleet.saturating_mul(percent.min(100)) / 100;
        let limit = match &self.max_nodes {
            None => share(DEFAULT_PERCENT),
            Some(IntOrString::Int(most)) => usize::try_from(*most).unwrap_or_default(),
            Some(IntOrString::String(text)) => match text.strip_suffix('%') {
                Some(percent) => percent.parse().map(share).unwrap_or_default(),
                None => text.parse().unwrap_or_default(),
            },
        };
        limit.max(1)
    }
}

/// What the operator did about an untrusted machine, so that it can undo it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ActedOn {
    /// Since when, RFC 3339.
    #[schemars(schema_with = "time_schema")]
    pub since: String,

    /// What is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<UntrustedAction>,

    /// Name of the Node, if it was proven to be the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub node: Option<String>,

    /// UID of that Node: another Node of the same name is not touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub node_uid: Option<String>,
}

impl ActedOn {
    /// Nothing yet.
    pub fn new(since: Timestamp) -> Self {
        Self { since: since.to_string(), ..Self::default() }
    }

    /// As a merge patch that replaces an earlier one.
    #[cfg(feature = "controller")]
    pub(crate) fn patch(&self) -> serde_json::Value {
        serde_json::json!({
            "since": self.since,
            "actions": self.actions,
            "node": self.node,
            "nodeUid": self.node_uid,
        })
    }
}

/// A number or a percentage; zero would switch the actions off without saying so.
fn max_nodes_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        // Otherwise kube would allow null.
        "nullable": false,
        "minimum": 1,
        "maximum": 100_000,
        "pattern": "^([1-9]|[1-9][0-9]|100)%$",
    })
}

fn stale_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 3600, "maximum": u32::MAX})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limit(max_nodes: Option<IntOrString>, fleet: usize) -> usize {
        OnUntrustedSpec { max_nodes, ..OnUntrustedSpec::default() }.limit(fleet)
    }

    #[test]
    fn the_limit_is_a_number_or_a_share_and_never_zero() {
        assert_eq!(limit(None, 5), 1);
        assert_eq!(limit(None, 200), 20);
        assert_eq!(limit(Some(IntOrString::Int(3)), 2), 3);
        let text = |text: &str| Some(IntOrString::String(text.to_owned()));
        assert_eq!(limit(text("25%"), 10), 2);
        assert_eq!(limit(text("100%"), 10), 10);
        assert_eq!(limit(text("900%"), 10), 10);
        for bad in ["all", "-5%", "", "%"] {
            assert_eq!(limit(text(bad), 1000), 1, "{bad}");
        }
        assert_eq!(limit(Some(IntOrString::Int(-4)), 1000), 1);
    }

    #[test]
    fn actions_are_done_in_one_order_and_once() {
        use UntrustedAction::{Cordon, Quarantine, Taint};
        let spec = OnUntrustedSpec {
            actions: vec![Quarantine, Taint, Cordon, Taint],
            ..OnUntrustedSpec::default()
        };
        assert_eq!(spec.actions(), [Taint, Cordon, Quarantine]);
    }

    #[test]
    fn what_no_longer_exists_is_read_and_evict_counts_as_taint() {
        let stored = json!({
            "actions": ["Evict", "Quarantine"],
            "webhook": {"url": "https://alerts.example.org/hooks", "secretName": "tec-webhook"},
        });
        let spec: OnUntrustedSpec = serde_json::from_value(stored).unwrap();
        assert_eq!(spec.actions(), [UntrustedAction::Taint, UntrustedAction::Quarantine]);
        let stored = json!({"since": "2026-11-21T10:57:11Z", "actions": ["Taint", "Evict"]});
        serde_json::from_value::<ActedOn>(stored).unwrap();
    }
}
