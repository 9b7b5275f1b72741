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
    /// What each run last learned from the server, and the slots that the disk had before. A crash loses it.
    known: [Option<(BTreeSet<Key>, Keys<Key>)>; 2],
    /// The slots that each run found on the disk.
    looked: [BTreeSet<Key>; 2],
    /// Confirmations on their way.
    sent: Vec<(Confirmation, Key)>,
    drawn: Key,
    /// Keys that the server forgot because an admin canceled, and keys whose slot a late run added by means of
    /// such a slot.
    canceled: BTreeSet<Key>,
}

#[derive(Clone, Debug)]
enum Action {
    /// An admin begins a rotation.
    Begin,
    /// An admin cancels it.
    Cancel(Forget),
    /// A run lists the slots of the disk.
    Look(usize),
    /// It asks the server, once or more often.
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
        1 => prop_oneof![Just(Forget::Pending), Just(Forget::DangerouslyPrevious)]
            .prop_map(Action::Cancel),
        3 => (0..2_usize).prop_map(Action::Look),
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
            looked: [BTreeSet::new(), BTreeSet::new()],
            sent: Vec::new(),
            drawn: 0,
            canceled: BTreeSet::new(),
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Begin => {
                let begun = self.server.clone().begin(self.drawn + 1);
                self.drawn += u32::from(begun.is_ok());
                self.server = begun.unwrap_or_else(|unchanged| unchanged);
            }
            Action::Cancel(forget) => self.cancel(*forget),
            Action::Look(run) => self.looked[*run] = self.disk.clone(),
            Action::Ask(run) => {
                self.known[*run] = Some((self.looked[*run].clone(), self.server.clone()));
            }
            Action::Step(run) => self.step(*run),
            Action::Crash(run) => {
                self.known[*run] = None;
                self.looked[*run].clear();
            }
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

    fn cancel(&mut self, forget: Forget) {
        let before = self.kept();
        self.server = self.server.clone().cancel(forget).unwrap_or_else(|unchanged| unchanged);
        self.canceled.extend(before.difference(&self.kept()));
    }

    fn deliver(&mut self, confirmation: Confirmation, key: Key) {
        if let Confirmed::Changed(keys) = self.server.confirm(confirmation, &key) {
            self.server = keys;
        }
    }

    fn step(&mut self, run: usize) {
        let Some((before, known)) = self.known[run].clone() else {
            return;
        };
        let kept = kept(&known);
        let dead: BTreeSet<Key> = before.difference(&kept).copied().collect();
        let has = |slots: Slots<'_, Key>| match slots {
            Slots::Of(key) => self.disk.contains(key),
            Slots::Dead => !self.disk.is_disjoint(&dead),
        };
        match next_step(&known, has) {
            NodeStep::Rest => {}
            NodeStep::AddSlot { new, by } => {
                // LUKS adds a slot only for a passphrase that opens another.
                if self.disk.contains(by) {
                    self.disk.insert(*new);
                    if self.canceled.contains(by) {
                        self.canceled.insert(*new);
                    }
                }
            }
            NodeStep::RemoveSlots(Slots::Of(key)) => {
                self.disk.remove(key);
            }
            NodeStep::RemoveSlots(Slots::Dead) => self.disk.retain(|key| !dead.contains(key)),
            NodeStep::Confirm(confirmation, key) => self.sent.push((confirmation, *key)),
        }
    }

    fn kept(&self) -> BTreeSet<Key> {
        kept(&self.server)
    }

    fn check(&self) {
        assert!(self.disk.contains(self.server.current()), "a boot would not open: {self:?}");
        let known: BTreeSet<Key> = self.kept().union(&self.canceled).copied().collect();
        assert!(self.disk.is_subset(&known), "a key was forgotten too early: {self:?}");
    }

    /// No faults from here on: one run, whose confirmations arrive.
    fn recover(&mut self) {
        for _ in 0..8 {
            self.act(&Action::Look(0));
            self.act(&Action::Ask(0));
            self.step(0);
            for (confirmation, key) in std::mem::take(&mut self.sent) {
                self.deliver(confirmation, key);
            }
            self.check();
        }
    }
}

fn kept(keys: &Keys<Key>) -> BTreeSet<Key> {
    match *keys {
        Keys::Settled { current } => BTreeSet::from([current]),
        Keys::Pending { current, pending: other } | Keys::Promoted { current, previous: other } => {
            BTreeSet::from([current, other])
        }
    }
}

proptest! {
    #[test]
    fn the_released_key_opens_the_disk_at_every_moment_and_the_old_slot_goes(
        actions in prop::collection::vec(actions(), 0..160)
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
    let step = next_step(&promoted, |slots| slots == Slots::Of(&1));
    assert_eq!(step, NodeStep::AddSlot { new: &2, by: &1 });
    assert_eq!(next_step(&promoted, |_| true), NodeStep::RemoveSlots(Slots::Of(&1)));
}

#[test]
fn a_canceled_rotation_keeps_the_released_key_and_refuses_a_late_confirmation() {
    let settled = Keys::Settled { current: 1 };
    let pending = settled.clone().begin(2).unwrap();
    let promoted = Keys::Promoted { current: 2, previous: 1 };
    assert_eq!(pending.clone().cancel(Forget::Pending), Ok(settled.clone()));
    assert_eq!(settled.confirm(Confirmation::Staged, &2), Confirmed::Unknown);
    let forgotten = promoted.clone().cancel(Forget::DangerouslyPrevious);
    assert_eq!(forgotten, Ok(Keys::Settled { current: 2 }));
    for (keys, forget) in [
        (settled.clone(), Forget::Pending),
        (settled, Forget::DangerouslyPrevious),
        (pending, Forget::DangerouslyPrevious),
        (promoted, Forget::Pending),
    ] {
        assert_eq!(keys.clone().cancel(forget), Err(keys));
    }
}

#[test]
fn dead_slots_go_only_while_the_released_key_opens_the_disk() {
    for keys in [Keys::Settled { current: 2 }, Keys::Promoted { current: 2, previous: 1 }] {
        let step = next_step(&keys, |slots| matches!(slots, Slots::Of(2) | Slots::Dead));
        assert_eq!(step, NodeStep::RemoveSlots(Slots::Dead), "{keys:?}");
        let step = next_step(&keys, |slots| slots == Slots::Dead);
        assert!(!matches!(step, NodeStep::RemoveSlots(_)), "{keys:?}: {step:?}");
    }
    let pending = Keys::Pending { current: 1, pending: 2 };
    assert_eq!(next_step(&pending, |_| true), NodeStep::Confirm(Confirmation::Staged, &2));
}
