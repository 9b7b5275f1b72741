//! Derives the steps to take from what is desired and what is known.

use std::collections::BTreeSet;

use super::desired::State;
use super::item::{Item, common_names};
use super::record::Record;

/// What to do with one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) item: Item,
    pub(super) action: Action,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The target should hold the desired content.
    Set,
    /// The target should hold nothing: a secret is removed, a reference value emptied.
    Withdraw,
}

/// The steps from what is known about a target to what is desired: policies, then what is withdrawn, then
/// reference values, then secrets. Empty if both agree.
///
/// Pure. It looks at what changed since the target last matched the desired state and at what is in doubt;
/// only if that is unknown does it look at everything. Names that policies of any origin ask for (`tpm_pcr0`
/// to `tpm_pcr23`, `trusted_aks`) are emptied on every target that may still have them.
///
/// # Security
/// No secret before the policies: a Trustee's default policies release keys to anyone's TPM (Trustee,
/// resource policy).
pub(super) fn plan(desired: &State, record: &Record) -> Vec<Step> {
    let mut steps: Vec<Step> = match desired.changes_since(record.position()) {
        Some(changes) => {
            let candidates: BTreeSet<&Item> = changes.chain(record.doubts()).collect();
            candidates.into_iter().filter_map(|item| step(desired, record, item)).collect()
        }
        None => everything(desired, record),
    };
    steps.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
    steps
}

fn everything(desired: &State, record: &Record) -> Vec<Step> {
    let common = common_names();
    let unknown = common.iter().filter(|item| !record.knows(item));
    let emptied = unknown.filter(|item| desired.entry(item).is_none()).map(withdraw);
    let there = record.items().filter(|item| desired.entry(item).is_none());
    let there = there.filter_map(|item| step(desired, record, item));
    let wanted = desired.items().filter_map(|(item, _)| step(desired, record, item));
    wanted.chain(there).chain(emptied).collect()
}

fn step(desired: &State, record: &Record, item: &Item) -> Option<Step> {
    let wanted = desired.entry(item).map(|entry| entry.fingerprint);
    if record.is(item, wanted) || desired.kept().contains(item) {
        return None;
    }
    match wanted {
        Some(_) => Some(Step { item: item.clone(), action: Action::Set }),
        // Policies always exist, so this is not one.
        None => Some(withdraw(item)),
    }
}

fn withdraw(item: &Item) -> Step {
    Step { item: item.clone(), action: Action::Withdraw }
}

fn order(step: &Step) -> (u8, &Item) {
    let phase = match (&step.item, step.action) {
        (Item::AttestationPolicy | Item::ResourcePolicy, _) => 0,
        (_, Action::Withdraw) => 1,
        (_, Action::Set) => 2,
    };
    (phase, &step.item)
}
