use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

type Key = u32;

/// A server, a disk, and two runs of the node's program at the same time: by its timer, and by hand.
#[derive(Debug)]
struct World {
    server: Keys<Key>,
    /// Keys that open a slot.
    disk: BTreeSet<Key>,
    /// What each run last learned from the server. A crash loses it.
    known: [Option<Keys<Key>>; 2],
    /// Confirmations on their way.
    sent: Vec<(Confirmation, Key)>,
    drawn: Key,
}

#[derive(Clone, Debug)]
enum Action {
    /// An admin begins a rotation.
    Begin,
    /// A run asks the server.
    Ask(usize),
    /// A run does one step.
    Step(usize),
    /// A run ends: power cut, or the answer of the server was lost.
    Crash(usize),
    /// A confirmation arrives.
    Deliver(prop::sample::Index),
    /// It arrives, and arrives again later.
    Duplicate(prop::sample::Index),
    /// It is lost.
    Drop(prop::sample::Index),
}

fn actions() -> impl Strategy<Value = Action> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => Just(Action::Begin),
        3 => (0..2_usize).prop_map(Action::Ask),
        6 => (0..2_usize).prop_map(Action::Step),
        1 => (0..2_usize).prop_map(Action::Crash),
        4 => index().prop_map(Action::Deliver),
        1 => index().prop_map(Action::Duplicate),
        1 => index().prop_map(Action::Drop),
    ]
}

impl World {
    fn new() -> Self {
        Self {
            server: Keys::Settled { current: 0 },
            disk: BTreeSet::from([0]),
            known: [None, None],
            sent: Vec::new(),
            drawn: 0,
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Begin => {
                let begun = self.server.clone().begin(self.drawn + 1);
                self.drawn += u32::from(begun.is_ok());
                self.server = begun.unwrap_or_else(|unchanged| unchanged);
            }
            Action::Ask(run) => self.known[*run] = Some(self.server.clone()),
            Action::Step(run) => self.step(*run),
            Action::Crash(run) => self.known[*run] = None,
            Action::Deliver(index) | Action::Duplicate(index) | Action::Drop(index) => {
                if self.sent.is_empty() {
                    return;
                }
                let at = index.index(self.sent.len());
                let (confirmation, key) = self.sent[at];
                if !matches!(action, Action::Duplicate(_)) {
                    self.sent.remove(at);
                }
                if !matches!(action, Action::Drop(_)) {
                    self.deliver(confirmation, key);
                }
            }
        }
    }

    fn deliver(&mut self, confirmation: Confirmation, key: Key) {
        if let Confirmed::Changed(keys) = self.server.confirm(confirmation, &key) {
            self.server = keys;
        }
    }

    fn step(&mut self, run: usize) {
        let Some(known) = self.known[run].clone() else {
            return;
        };
        match next_step(&known, |key| self.disk.contains(key)) {
            NodeStep::Rest => {}
            NodeStep::AddSlot { new, by } => {
                // LUKS adds a slot only for a passphrase that opens another.
                if self.disk.contains(by) {
                    self.disk.insert(*new);
                }
            }
            NodeStep::RemoveSlots(key) => {
                self.disk.remove(key);
            }
            NodeStep::Confirm(confirmation, key) => self.sent.push((confirmation, *key)),
        }
    }

    fn kept(&self) -> BTreeSet<Key> {
        match self.server {
            Keys::Settled { current } => BTreeSet::from([current]),
            Keys::Pending { current, pending: other }
            | Keys::Promoted { current, previous: other } => BTreeSet::from([current, other]),
        }
    }

    fn check(&self) {
        assert!(self.disk.contains(self.server.current()), "a boot would not open: {self:?}");
        assert!(self.disk.is_subset(&self.kept()), "a key was forgotten too early: {self:?}");
    }

    /// No faults from here on: one run, whose confirmations arrive.
    fn recover(&mut self) {
        for _ in 0..8 {
            self.act(&Action::Ask(0));
            self.step(0);
            for (confirmation, key) in std::mem::take(&mut self.sent) {
                self.deliver(confirmation, key);
            }
            self.check();
        }
    }
}

proptest! {
    #[test]
    fn the_released_key_opens_the_disk_at_every_moment_and_the_old_slot_goes(
        actions in prop::collection::vec(actions(), 0..120)
    ) {
        let mut world = World::new();
        for action in &actions {
            world.act(action);
            world.check();
        }
        world.recover();
        prop_assert!(world.server.is_settled(), "{world:?}");
        prop_assert_eq!(world.disk, BTreeSet::from([*world.server.current()]));
    }
}

#[test]
fn a_rotation_without_faults_ends_with_the_new_key_alone() {
    let mut world = World::new();
    world.act(&Action::Begin);
    world.recover();
    assert_eq!(world.server, Keys::Settled { current: 1 });
    assert_eq!(world.disk, BTreeSet::from([1]));
}

#[test]
fn there_is_at_most_one_rotation_at_a_time() {
    let pending = Keys::Settled { current: 0 }.begin(1).unwrap();
    assert_eq!(pending.clone().begin(2), Err(pending.clone()));
    let Confirmed::Changed(promoted) = pending.confirm(Confirmation::Staged, &1) else {
        panic!("not promoted");
    };
    assert_eq!(promoted.clone().begin(2), Err(promoted));
}

#[test]
fn confirmations_about_another_key_change_nothing() {
    let pending = Keys::Pending { current: 1, pending: 2 };
    assert_eq!(pending.confirm(Confirmation::Staged, &9), Confirmed::Unknown);
    assert_eq!(pending.confirm(Confirmation::Removed, &2), Confirmed::Unknown);
    let promoted = Keys::Promoted { current: 2, previous: 1 };
    assert_eq!(promoted.confirm(Confirmation::Removed, &1), Confirmed::Unknown, "late");
    assert_eq!(promoted.confirm(Confirmation::Staged, &2), Confirmed::Already, "repeated");
}

#[test]
fn a_disk_that_was_away_gets_the_new_key_before_the_old_slot_goes() {
    let promoted = Keys::Promoted { current: 2, previous: 1 };
    let step = next_step(&promoted, |key| *key == 1);
    assert_eq!(step, NodeStep::AddSlot { new: &2, by: &1 });
    assert_eq!(next_step(&promoted, |_| true), NodeStep::RemoveSlots(&1));
}
