//! Planning, without a target.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::desired::State;
use super::super::item::Item;
use super::super::plan::{Action, Step};
use super::super::record::{Known, Record};
use super::*;

fn plan(desired: &Desired, record: &Record) -> Vec<Step> {
    desired.read(|state| super::super::plan::plan(state, record))
}

/// Records the steps as done.
fn done(record: &mut Record, desired: &Desired, steps: &[Step]) {
    for step in steps {
        match desired.entry(&step.item) {
            Some(entry) => record.note(&step.item, Known::Holds(entry.fingerprint)),
            None => record.note(&step.item, Known::Nothing),
        }
    }
    record.reached(desired.read(State::position));
}

/// What a publisher knows that starts from the notes of this one.
fn adopted(record: &Record) -> Record {
    let notes = record.items().map(|item| (item.clone(), record.known(item)));
    let mut adopted = Record::default();
    adopted.adopt(notes.collect(), "epoch", "stamp");
    adopted
}

fn text(steps: &[Step]) -> Vec<String> {
    steps.iter().map(|step| format!("{:?} {}", step.action, step.item)).collect()
}

#[test]
fn policies_come_first_then_what_goes_then_values_then_secrets() {
    let wanted = desired([1, 2]);
    let mut record = Record::default();
    let first = plan(&wanted, &record);
    let names = text(&first);
    assert_eq!(names[..2], ["Set attestation-policy", "Set resource-policy"]);
    let last_withdrawal = first.iter().rposition(|step| step.action == Action::Withdraw);
    assert_eq!(last_withdrawal, Some(25), "23 registers and the list of keys are emptied");
    assert!(names[26..].is_sorted(), "reference values before secrets: {names:?}");
    done(&mut record, &wanted, &first);
    assert_eq!(plan(&wanted, &record), []);

    revoke(&wanted, 1);
    register(&wanted, 3);
    wanted.set_policies(rego(1), rego(9));
    let names = text(&plan(&wanted, &record));
    let key = |number| crate::policy::ak_reference_name(&sample::public_key(number));
    assert_eq!(
        names,
        [
            "Set resource-policy".to_owned(),
            format!("Withdraw reference/{}", key(1)),
            format!("Withdraw secret/{}", sample::secret_path(1)),
            format!("Set reference/{}", key(3)),
            format!("Set secret/{}", sample::secret_path(3)),
        ]
    );
}

#[test]
fn one_of_many_machines_is_two_steps() {
    let wanted = desired(1..=500);
    let mut record = Record::default();
    let steps = plan(&wanted, &record);
    done(&mut record, &wanted, &steps);
    register(&wanted, 501);
    assert_eq!(plan(&wanted, &record).len(), 2);
}

#[test]
fn what_the_notes_of_a_target_do_not_say_or_say_otherwise_is_in_doubt() {
    let wanted = desired([1, 2]);
    let mut record = Record::default();
    let steps = plan(&wanted, &record);
    done(&mut record, &wanted, &steps);
    assert_eq!(plan(&wanted, &adopted(&record)), []);

    let item = |number| Item::Secret(sample::secret_path(number));
    let mut notes: BTreeMap<_, _> =
        record.items().map(|item| (item.clone(), record.known(item))).collect();
    notes.remove(&item(1));
    notes.insert(item(2), Some(Known::Nothing));
    notes.insert(item(3), Some(Known::Nothing));
    notes.insert(Item::ResourcePolicy, None);
    record.adopt(notes, "epoch", "stamp");
    assert_eq!(
        text(&plan(&wanted, &record)),
        [
            "Set resource-policy".to_owned(),
            format!("Set secret/{}", sample::secret_path(1)),
            format!("Set secret/{}", sample::secret_path(2)),
        ]
    );
}

proptest! {
    /// The changes since the last time give the same steps as a look at everything.
    #[test]
    fn the_journal_misses_nothing(
        before in prop::collection::vec((any::<bool>(), 0_u64..6, any::<u8>()), 0..12),
        after in prop::collection::vec((any::<bool>(), 0_u64..6, any::<u8>()), 0..12),
        doubted in 0_usize..8,
    ) {
        let change = |desired: &Desired, (set, number, content): (bool, u64, u8)| {
            let path = sample::secret_path(number);
            if set {
                desired.put_secret(path, SecretBytes::new(vec![content]));
            } else {
                desired.remove_secret(&path);
            }
        };
        let wanted = desired([]);
        for one in before {
            change(&wanted, one);
        }
        let mut record = Record::default();
        let steps = plan(&wanted, &record);
        done(&mut record, &wanted, &steps);
        for one in after {
            change(&wanted, one);
        }
        record.doubt_next(doubted);
        // Notes have no position in the changes, so everything is examined.
        prop_assert_eq!(plan(&wanted, &record), plan(&wanted, &adopted(&record)));
    }
}
