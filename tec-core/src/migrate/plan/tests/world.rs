//! The world of the plan: everything that survives a crash, and everything in flight.

use std::collections::{BTreeMap, BTreeSet};

use crate::ak::AkState;
use crate::digest::Sha256Digest;
use crate::id::{MachineId, ResourcePath};
use crate::machine::MachineState;
use crate::migrate::{
    AdoptPage, Adopted, Authority, Deed, Epoch, Goal, Intake, MigrateEffect, MigrateEvent,
    MigrateOutcome, MigratePlan, Role, Side, SwapOutcome, Transition, TrustAnchor, TrustUnit,
    UnitName, verify,
};
use crate::plan::Plan as _;
use crate::port::{AkRegistry, ImageRegistry, MachineRegistry, SecretStore, UnclaimedLimit};
use crate::secret::SecretBytes;
use crate::testing::{MemoryRegistry, block_on, sample};

/// Units per page; few, so that passes have several pages.
const PAGE: usize = 2;
/// More steps than any run without mishaps takes.
const STEPS: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    None,
    /// It does not happen, and the admin gets an error.
    Fails,
    /// It happens, and the admin gets an error.
    LostAck,
    /// It happens, and the admin's process is gone.
    Crash,
    /// It happens later; the admin gets an error.
    Delayed,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Begin(usize, Goal),
    Go(usize, Mishap),
    Late(usize),
    Register(Side),
    Revoke(Side, usize),
    Remove(Side, usize),
    /// The machine deposits a recovery key.
    Escrow(Side, usize),
    Approve(Side),
}

/// A request to one anchor.
#[derive(Clone)]
enum Request {
    Swap(Side, Box<Transition>),
    Adopt(Side, AdoptPage),
    Shred,
}

/// What an admin's process is about to do.
enum Task {
    Rest,
    Effect(MigrateEffect),
    ReadTarget(Box<Authority>),
    Export { from: Side, intake: Intake, after: Option<UnitName>, conflicts: bool },
    Adopt { from: Side, page: AdoptPage, conflicts: bool },
}

struct Admin {
    plan: MigratePlan,
    task: Task,
    ended: Option<MigrateOutcome>,
}

pub(super) struct World {
    anchors: [MemoryRegistry; 2],
    admins: [Admin; 2],
    late: Vec<Request>,
    machines: Vec<MachineId>,
    /// The one disk key of each machine that has one.
    keys: BTreeMap<MachineId, Sha256Digest>,
    /// The recovery keys that machines deposited, by number.
    escrows: BTreeMap<(MachineId, u32), Sha256Digest>,
    removed: BTreeSet<MachineId>,
    /// Revoked by the authority.
    revoked: BTreeSet<MachineId>,
    revoked_at: [BTreeSet<MachineId>; 2],
    epochs: [Epoch; 2],
    images: u64,
}

fn rest() -> Admin {
    Admin { plan: MigratePlan::new(), task: Task::Rest, ended: None }
}

fn index(side: Side) -> usize {
    match side {
        Side::Source => 0,
        Side::Target => 1,
    }
}

impl World {
    /// `foreign`: whether the target has objects of its own.
    pub(super) fn new(foreign: bool) -> Self {
        let mut world = Self {
            anchors: [MemoryRegistry::anchor(1), MemoryRegistry::anchor(2)],
            admins: [rest(), rest()],
            late: Vec::new(),
            machines: Vec::new(),
            keys: BTreeMap::new(),
            escrows: BTreeMap::new(),
            removed: BTreeSet::new(),
            revoked: BTreeSet::new(),
            revoked_at: [BTreeSet::new(), BTreeSet::new()],
            epochs: [Epoch::default(); 2],
            images: 0,
        };
        if foreign {
            world.perform(&Step::Register(Side::Target));
        }
        world
    }

    fn anchor(&self, side: Side) -> &MemoryRegistry {
        &self.anchors[index(side)]
    }

    fn authority(&self, side: Side) -> Authority {
        block_on(self.anchor(side).authority()).unwrap()
    }

    pub(super) fn roles(&self) -> [Role; 2] {
        [Side::Source, Side::Target].map(|side| self.authority(side).role())
    }

    pub(super) fn perform(&mut self, step: &Step) {
        match *step {
            Step::Begin(admin, goal) => self.begin(admin, goal),
            Step::Go(admin, mishap) => self.go(admin, mishap),
            Step::Late(number) if !self.late.is_empty() => {
                let request = self.late.remove(number % self.late.len());
                let _ = self.serve(&request);
            }
            Step::Late(_) => {}
            Step::Register(side) => self.register(side),
            Step::Revoke(side, machine) => self.revoke(side, machine),
            Step::Remove(side, machine) => self.remove(side, machine),
            Step::Escrow(side, machine) => self.escrow(side, machine),
            Step::Approve(side) => {
                self.images += 1;
                let image = sample::image(self.images % 3);
                let _ = block_on(ImageRegistry::put(self.anchor(side), &image));
            }
        }
    }

    fn begin(&mut self, admin: usize, goal: Goal) {
        let mut new = rest();
        let effects = new.plan.step(MigrateEvent::Begin(goal));
        new.task = Task::Effect(effects[0].clone());
        self.admins[admin] = new;
    }

    fn tell(&mut self, admin: usize, event: MigrateEvent) {
        let admin = &mut self.admins[admin];
        let effects = admin.plan.step(event);
        assert_eq!(effects.len(), 1, "one thing after the other");
        admin.task = Task::Effect(effects[0].clone());
    }

    fn go(&mut self, admin: usize, mishap: Mishap) {
        let task = std::mem::replace(&mut self.admins[admin].task, Task::Rest);
        if let Task::Effect(MigrateEffect::Finish(outcome)) = task {
            self.admins[admin].ended = Some(outcome);
            return;
        }
        if matches!(task, Task::Rest) {
            return;
        }
        let Some((request, then)) = self.request_of(task, admin) else {
            if mishap == Mishap::Crash {
                self.admins[admin] = rest();
            } else if mishap != Mishap::None {
                self.tell(admin, MigrateEvent::Failed);
            }
            return;
        };
        match mishap {
            Mishap::Fails => self.tell(admin, MigrateEvent::Failed),
            Mishap::Delayed => {
                self.late.push(request);
                self.tell(admin, MigrateEvent::Failed);
            }
            Mishap::LostAck => {
                let _ = self.serve(&request);
                self.tell(admin, MigrateEvent::Failed);
            }
            Mishap::Crash => {
                let _ = self.serve(&request);
                self.admins[admin] = rest();
            }
            Mishap::None => match self.serve(&request) {
                Ok(answer) => self.go_on(admin, then, answer),
                Err(()) => self.tell(admin, MigrateEvent::Failed),
            },
        }
    }

    fn go_on(&mut self, admin: usize, then: Task, answer: bool) {
        match then {
            Task::Adopt { from, page, conflicts } => {
                let conflicts = conflicts || answer;
                if page.more {
                    self.admins[admin].task = Task::Export {
                        from,
                        intake: page.intake,
                        after: page.units.last().map(TrustUnit::name),
                        conflicts,
                    };
                } else {
                    self.tell(admin, MigrateEvent::Copied { from, conflicts });
                }
            }
            Task::Effect(MigrateEffect::Shred) => self.tell(admin, MigrateEvent::Shredded),
            _ => self.tell(admin, MigrateEvent::Answered { won: answer }),
        }
    }

    /// Reads are carried out immediately and return `None`; writes become requests, with the task
    /// that follows.
    fn request_of(&mut self, task: Task, admin: usize) -> Option<(Request, Task)> {
        match task {
            Task::Effect(MigrateEffect::Read) => {
                self.admins[admin].task = Task::ReadTarget(Box::new(self.authority(Side::Source)));
                None
            }
            Task::ReadTarget(source) => {
                let target = Box::new(self.authority(Side::Target));
                self.tell(admin, MigrateEvent::Read { source, target });
                None
            }
            Task::Effect(MigrateEffect::Copy(from, intake)) => {
                let after = block_on(self.anchor(from.other()).progress(intake.epoch())).unwrap();
                self.admins[admin].task = Task::Export { from, intake, after, conflicts: false };
                None
            }
            Task::Export { from, intake, after, conflicts } => {
                let units = block_on(self.anchor(from).export(after.as_ref(), PAGE)).unwrap();
                let (more, at) = (units.len() == PAGE, sample::time(9));
                let page = AdoptPage { intake, after, units: units.into(), more, at };
                self.admins[admin].task = Task::Adopt { from, page, conflicts };
                None
            }
            Task::Adopt { from, ref page, .. } => {
                Some((Request::Adopt(from.other(), page.clone()), task))
            }
            Task::Effect(MigrateEffect::Compare(from)) => {
                let (one, two) = (self.anchor(from), self.anchor(from.other()));
                let found = block_on(verify(one, two, &[7; 32])).unwrap();
                let same = !found.iter().any(|mismatch| mismatch.difference.is_loss());
                self.tell(admin, MigrateEvent::Compared { from, same });
                None
            }
            Task::Effect(MigrateEffect::Swap(side, ref change)) => {
                Some((Request::Swap(side, change.clone()), task))
            }
            Task::Effect(MigrateEffect::Shred) => Some((Request::Shred, task)),
            Task::Effect(MigrateEffect::Finish(_)) | Task::Rest => None,
        }
    }

    /// Whether the swap was won, or units clashed; an error if the anchor refused.
    fn serve(&self, request: &Request) -> Result<bool, ()> {
        let line = sample::line();
        match request {
            Request::Swap(side, change) => {
                let outcome = block_on(self.anchor(*side).swap(change, &line));
                Ok(outcome.map_err(drop)? == SwapOutcome::Swapped)
            }
            Request::Shred => {
                block_on(self.anchor(Side::Source).shred(&line)).map_err(drop)?;
                Ok(false)
            }
            Request::Adopt(to, page) => {
                let adopted = block_on(self.anchor(*to).adopt(page)).map_err(drop)?;
                Ok(adopted.iter().any(|a| matches!(a, Adopted::Clash(_))))
            }
        }
    }

    /// A node's first boot: machine, attestation key, disk key; it may be refused at any point.
    fn register(&mut self, side: Side) {
        let number = u64::try_from(self.machines.len()).unwrap() + 1;
        let (id, line) = (sample::machine_id(number), sample::line());
        self.machines.push(id);
        let anchor = &self.anchors[index(side)];
        let made = block_on(anchor.create(&sample::machine(number), UnclaimedLimit::Unlimited));
        if made.is_err() {
            return;
        }
        let bound = block_on(anchor.bind(&sample::approved_ak(number, number), &line));
        bound.unwrap();
        let key = sample::secret(number);
        block_on(anchor.put_new(&ResourcePath::luks_root(&id), &key, &line)).unwrap();
        self.keys.insert(id, Sha256Digest::of(key.expose("test")));
    }

    fn revoke(&mut self, side: Side, machine: usize) {
        let Some(id) = self.machines.get(machine).copied() else {
            return;
        };
        let is_authority = self.authority(side).role() == Role::Active;
        let anchor = self.anchor(side);
        if block_on(MachineRegistry::revoke(anchor, &id, &sample::line())).is_ok() {
            self.revoked_at[index(side)].insert(id);
            if is_authority {
                self.revoked.insert(id);
            }
        }
    }

    fn remove(&mut self, side: Side, machine: usize) {
        let Some(id) = self.machines.get(machine).copied() else {
            return;
        };
        let has_it = block_on(MachineRegistry::find(self.anchor(side), &id)).unwrap().is_some();
        let is_authority = self.authority(side).role() == Role::Active;
        let anchor = self.anchor(side);
        if has_it && block_on(MachineRegistry::remove(anchor, &id)).is_ok() {
            block_on(SecretStore::remove(anchor, &ResourcePath::luks_root(&id))).unwrap();
            for number in self.numbers(&id) {
                let path = ResourcePath::recovery(&id, number);
                block_on(SecretStore::remove(anchor, &path)).unwrap();
            }
            // On standby an admin may still remove the target's own objects.
            if is_authority || !self.units(self.newest()).contains_key(&id) {
                self.removed.insert(id);
            }
        }
    }

    fn numbers(&self, id: &MachineId) -> Vec<u32> {
        let own = self.escrows.keys().filter(|(of, _)| of == id);
        own.map(|(_, number)| *number).collect()
    }

    /// Like `flow::escrow`: uses the first free number.
    fn escrow(&mut self, side: Side, machine: usize) {
        let Some(id) = self.machines.get(machine).copied() else {
            return;
        };
        let anchor = &self.anchors[index(side)];
        if block_on(MachineRegistry::find(anchor, &id)).unwrap().is_none() {
            return;
        }
        let paths = (1..).map(|number| (number, ResourcePath::recovery(&id, number)));
        let mut free = paths.filter(|(_, path)| !block_on(anchor.exists(path)).unwrap());
        let (number, path) = free.next().unwrap();
        let key = sample::secret(1000 + u64::try_from(self.escrows.len()).unwrap());
        if block_on(anchor.put_new(&path, &key, &sample::line())).is_ok() {
            let digest = Sha256Digest::of(key.expose("test"));
            self.escrows.insert((id, number), digest);
        }
    }

    /// Simulates a cutover by a release that did not carry recovery keys.
    pub(super) fn escrows_stayed_behind(&self) {
        for (id, number) in self.escrows.keys() {
            let path = ResourcePath::recovery(id, *number);
            block_on(SecretStore::remove(self.anchor(Side::Target), &path)).unwrap();
        }
    }

    pub(super) fn has_escrow(&self, side: Side, machine: usize, number: u32) -> bool {
        let path = ResourcePath::recovery(&self.machines[machine], number);
        block_on(self.anchor(side).exists(&path)).unwrap()
    }

    /// The attestation key of the first machine belongs to another machine at the target.
    pub(super) fn clash(&self) {
        let (target, line) = (self.anchor(Side::Target), sample::line());
        block_on(target.create(&sample::machine(50), UnclaimedLimit::Unlimited)).unwrap();
        block_on(target.bind(&sample::approved_ak(1, 50), &line)).unwrap();
    }

    fn units(&self, side: Side) -> BTreeMap<MachineId, TrustUnit> {
        let units = block_on(self.anchor(side).export(None, usize::MAX)).unwrap();
        let machine = |unit: TrustUnit| match &unit {
            TrustUnit::Machine(machine) => Some((machine.machine.id, unit)),
            TrustUnit::Image(_) => None,
        };
        units.into_iter().filter_map(machine).collect()
    }

    /// The anchor that had the authority last.
    fn newest(&self) -> Side {
        let (source, target) = (self.authority(Side::Source), self.authority(Side::Target));
        if target.domain() == source.domain() && target.held() > source.held() {
            Side::Target
        } else {
            Side::Source
        }
    }

    /// The invariants, by name.
    pub(super) fn check(&mut self) {
        let records = [Side::Source, Side::Target].map(|side| self.authority(side));
        let [source, target] = records;
        let one_authority = source.domain() != target.domain()
            || source.role() != Role::Active
            || target.role() != Role::Active;
        assert!(one_authority, "{source:?} {target:?}");
        for (record, known) in records.iter().zip(&mut self.epochs) {
            let epochs_only_grow = record.epoch() >= *known;
            assert!(epochs_only_grow, "{record:?} was at {known}");
            *known = record.epoch();
        }
        let alone = target.is_alone() && target.domain() != source.domain();
        for side in [Side::Source, Side::Target] {
            self.check_keys(side, alone);
        }
        self.check_no_key_is_lost(alone);
    }

    fn check_keys(&self, side: Side, alone: bool) {
        let newest = self.newest() == side || alone;
        let units = self.units(side);
        for (id, unit) in &units {
            let TrustUnit::Machine(unit) = unit else {
                continue;
            };
            if let Some(key) = &unit.secret {
                let no_key_changes = self.keys[id] == Sha256Digest::of(key.expose("test"));
                assert!(no_key_changes, "{id} has another key at {side:?}");
            }
            let bound = unit.keys.iter().filter(|key| key.state == AkState::Bound);
            assert!(bound.count() <= 1, "{id} is bound twice at {side:?}");
            let is_out = unit.machine.state == MachineState::Revoked;
            let knows = self.revoked_at[index(side)].contains(id);
            let must = knows || (newest && !alone && self.revoked.contains(id));
            let removed_since = self.removed.contains(id);
            assert!(is_out || !must || removed_since, "shut_out_stays_out: {id} at {side:?}");
            let removed_stays_removed = !newest || !removed_since;
            assert!(removed_stays_removed, "{id} is back at {side:?}");
        }
    }

    /// Every acknowledged key is at an anchor that releases it.
    fn check_no_key_is_lost(&self, alone: bool) {
        let serving = [Side::Source, Side::Target]
            .into_iter()
            .filter(|side| self.authority(*side).permit(Deed::Release).is_ok());
        let held: BTreeSet<MachineId> = serving
            .flat_map(|side| self.units(side))
            .filter(|(_, unit)| matches!(unit, TrustUnit::Machine(unit) if unit.secret.is_some()))
            .map(|(id, _)| id)
            .collect();
        for id in self.keys.keys().filter(|id| !self.removed.contains(id)) {
            // What a target had on its own is not served while it is on standby.
            let own = !alone && self.authority(Side::Target).role() == Role::Standby;
            let at_target = own && self.units(Side::Target).contains_key(id);
            assert!(held.contains(id) || at_target, "no_key_is_lost: {id}");
        }
        self.check_no_escrow_is_lost(alone);
    }

    /// Every acknowledged recovery key is at an anchor that releases it.
    fn check_no_escrow_is_lost(&self, alone: bool) {
        let standby = !alone && self.authority(Side::Target).role() == Role::Standby;
        let escrows = self.escrows.iter();
        for ((id, number), digest) in escrows.filter(|((id, _), _)| !self.removed.contains(id)) {
            let path = ResourcePath::recovery(id, *number);
            let at = |side| block_on(SecretStore::find(self.anchor(side), &path)).ok()?;
            let found: Vec<_> = [Side::Source, Side::Target].into_iter().filter_map(at).collect();
            let same = |key: &SecretBytes| Sha256Digest::of(key.expose("test")) == *digest;
            assert!(found.iter().all(same), "no_key_changes: {path}");
            let own = standby && block_on(self.anchor(Side::Target).exists(&path)).unwrap();
            assert!(!found.is_empty() || own, "no_key_is_lost: {path}");
        }
    }

    pub(super) fn late_ones_arrive(&mut self) {
        for request in std::mem::take(&mut self.late) {
            let _ = self.serve(&request);
            self.check();
        }
    }

    /// Runs an admin to completion.
    pub(super) fn run(&mut self, goal: Goal) -> MigrateOutcome {
        self.begin(0, goal);
        for _ in 0..STEPS {
            self.go(0, Mishap::None);
            self.check();
            if let Some(outcome) = self.admins[0].ended {
                return outcome;
            }
        }
        panic!("{goal:?} has no end");
    }

    /// Whatever happened, an admin without mishaps reaches the goal.
    pub(super) fn ends_well(&mut self) {
        if matches!(self.roles(), [Role::Forward | Role::Retired, _]) {
            assert_eq!(self.run(Goal::Cutover), MigrateOutcome::Reached);
            assert_eq!(self.run(Goal::Retire), MigrateOutcome::Reached);
            return;
        }
        assert_eq!(self.run(Goal::Rollback), MigrateOutcome::Reached, "{:?}", self.roles());
        assert_eq!(self.run(Goal::Cutover), MigrateOutcome::Reached, "{:?}", self.roles());
        assert_eq!(self.roles(), [Role::ServeOnly, Role::Active]);
        assert_eq!(self.run(Goal::Retire), MigrateOutcome::Reached);
        assert!(
            self.units(Side::Source)
                .values()
                .all(|unit| { matches!(unit, TrustUnit::Machine(unit) if unit.secret.is_none()) })
        );
        for (id, number) in self.escrows.keys() {
            let path = ResourcePath::recovery(id, *number);
            assert!(!block_on(self.anchor(Side::Source).exists(&path)).unwrap());
        }
    }
}
