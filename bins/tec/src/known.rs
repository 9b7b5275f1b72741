//! A machine as admins see it, and the words with which they mean it.

use serde::Serialize;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::machine::{Machine, MachineState};
use tec_support::exit::CodedError;

use crate::attempt::LastSeen;
use crate::output::word;

/// Minimum number of digits to identify an ID or a fingerprint.
pub(crate) const PREFIX: usize = 4;

/// A machine, and what an admin wants to know of it at a glance.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Known {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Nodes of the cluster that say they run on it; anyone with a kubelet can say so, and no command finds it by
    /// them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) claimed_by: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen: Option<LastSeen>,
    /// Conditions of its object that are not met, each as a line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unmet: Vec<String>,
}

impl Known {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, name: None, claimed_by: Vec::new(), last_seen: None, unmet: Vec::new() }
    }

    /// For example `worker-1 (7c9e6679-…)`.
    pub(crate) fn label(&self) -> String {
        let id = self.machine.id;
        self.name.as_ref().map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
    }

    /// Its name; in parentheses, what a Node claims.
    pub(crate) fn shown_name(&self) -> String {
        match (&self.name, self.claimed_by.as_slice()) {
            (Some(name), _) => name.clone(),
            (None, []) => "-".to_owned(),
            (None, [node]) => format!("({node})"),
            (None, nodes) => format!("({} Nodes claim it)", nodes.len()),
        }
    }

    /// What keeps it from its key whatever it boots.
    pub(crate) fn standing(&self, program: &str) -> Vec<String> {
        let (id, state) = (self.machine.id, self.machine.state);
        let mut lines = match state {
            MachineState::Unclaimed | MachineState::Active => Vec::new(),
            MachineState::Quarantined => vec![format!(
                "machine {id} is quarantined, so it gets no key: {program} machine release {id}"
            )],
            _ => vec![format!("machine {id} is {}, so it gets no key", word(&state))],
        };
        lines.extend(self.unmet.iter().map(|unmet| format!("  not {unmet}")));
        lines
    }
}

/// No machine, or more than one, matches the given string.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    /// No machine matches.
    #[error("no machine has the ID or name {0}")]
    None(String),
    /// Several IDs start with the string, or several machines have that name.
    #[error("{0} matches several machines: {ids}", ids = .1.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(String, Vec<MachineId>),
}

/// Resolves a name, or the first digits of an ID, among these machines with their names.
pub(crate) fn meant(
    known: impl IntoIterator<Item = (MachineId, Option<String>)>,
    text: &str,
) -> Result<MachineId, Unknown> {
    let wanted = text.to_ascii_lowercase();
    let digits = wanted.chars().filter(char::is_ascii_hexdigit).count();
    let is_prefix = digits >= PREFIX && wanted.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let (mut named, mut begun) = (Vec::new(), Vec::new());
    for (id, name) in known {
        if name.as_deref() == Some(text) {
            named.push(id);
        } else if is_prefix && id.to_string().starts_with(&wanted) {
            begun.push(id);
        }
    }
    let found = if named.is_empty() { begun } else { named };
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(Unknown::None(text.to_owned())),
        several => Err(Unknown::Several(text.to_owned(), several.to_vec())),
    }
}

pub(crate) fn unknown(context: String) -> CodedError {
    CodedError::new(Code::MachineUnknown, context)
}

/// Whether no machine was meant.
pub(crate) fn is_unknown(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CodedError>().is_some_and(|error| error.code == Code::MachineUnknown)
}

#[cfg(test)]
mod tests {
    use tec_core::machine::RegisteredBy;
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn a_machine_is_meant_by_its_name_or_by_the_first_digits_of_its_id() {
        let id = |text: &str| text.parse::<MachineId>().unwrap();
        let first = id("7c9e6679-7425-40de-944b-e07fc1f90ae7");
        let second = id("7c9e6679-aaaa-40de-944b-e07fc1f90ae7");
        let third = id("00000000-7425-40de-944b-e07fc1f90ae7");
        let known = || {
            let name = |name: &str| Some(name.to_owned());
            [(first, name("beef")), (second, None), (third, name("7c9e"))]
        };
        assert_eq!(meant(known(), "beef"), Ok(first));
        assert_eq!(meant(known(), "7c9e"), Ok(third), "a name comes before digits");
        assert_eq!(meant(known(), "7C9E6679-a"), Ok(second));
        assert_eq!(meant(known(), "0000"), Ok(third));
        let several = Unknown::Several("7c9e6679".to_owned(), vec![first, second]);
        assert_eq!(meant(known(), "7c9e6679"), Err(several));
        for unknown in ["000", "worker", "7c9e6679x", "", "dead"] {
            assert!(meant(known(), unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn a_name_that_somebody_set_counts_before_what_nodes_claim_and_two_claims_are_none() {
        let machine =
            Machine::unclaimed(sample::machine_id(1), RegisteredBy::Admin, sample::time(1));
        let shown = |name: Option<&str>, nodes: &[&str]| {
            let claimed_by = nodes.iter().map(ToString::to_string).collect();
            let name = name.map(str::to_owned);
            Known { name, claimed_by, ..Known::new(machine.clone()) }.shown_name()
        };
        assert_eq!(shown(None, &[]), "-");
        assert_eq!(shown(None, &["worker-1"]), "(worker-1)");
        assert_eq!(shown(None, &["worker-1", "evil"]), "(2 Nodes claim it)");
        assert_eq!(shown(Some("worker-1"), &["evil"]), "worker-1");
    }
}
