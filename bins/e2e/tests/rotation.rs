//! The node or the admin's command is killed at each step of the rotation of a disk key.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tec_core::rotation::{KeyMark, Keys};
use tec_core::secret::SecretBytes;
use tec_e2e::load;
use tec_e2e::machine::Kill;
use tec_e2e::pair::Pair;

struct World(Pair);

impl Deref for World {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.0
    }
}

impl World {
    fn new() -> Self {
        Self(Pair::start().unwrap())
    }

    fn kept(&self) -> Keys<KeyMark> {
        self.0.kept().unwrap()
    }

    fn begin(&self) {
        self.anchor.tec(&["key", "rotate", &self.id.to_string()]).unwrap();
    }

    /// In any state: no disk is detached.
    fn cancel(&self) {
        let dangerous = "--dangerously-forget-previous-key";
        self.anchor.tec(&["key", "cancel", &self.id.to_string(), "--yes", dangerous]).unwrap();
    }

    /// Runs the node to its end.
    fn finish(&self) {
        let output = self.machine.key_rotate().output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A boot obtains a passphrase that opens the volume, from the server as it is now.
    fn assert_boots(&mut self, when: &str) {
        self.machine.reboot().unwrap();
        assert!(!self.machine.passphrases().unwrap().is_empty(), "{when}: {:?}", self.kept());
    }
}

/// Starts a program as the leader of its own process group.
fn group(command: &mut Command) -> Child {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.process_group(0).spawn().unwrap()
}

/// Kills a program and those that it runs. Returns whether it had still been running.
fn kill(child: &mut Child) -> bool {
    let is_running = child.try_wait().unwrap().is_none();
    if is_running {
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process_group(pid, Signal::KILL).unwrap();
        child.wait().unwrap();
    }
    is_running
}

/// How far a rotation is, from the server's store and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    PendingBeforeSlot,
    PendingWithIntent,
    PendingWithSlotAndNoToken,
    PendingWithToken,
    PromotedWithOldSlot,
    PromotedWithOldTokenAlone,
    PromotedWithoutOldSlot,
    Settled,
}

impl World {
    fn at(&self) -> Option<At> {
        let (slots, tokens) = self.machine.volume_parts().unwrap();
        let pins = tokens.iter().filter(|token| token["type"] == "clevis").count();
        match (self.kept(), slots.len(), pins) {
            (Keys::Settled { .. }, ..) => Some(At::Settled),
            (Keys::Pending { .. }, 1, 1) if tokens.len() > pins => Some(At::PendingWithIntent),
            (Keys::Pending { .. }, 1, 1) => Some(At::PendingBeforeSlot),
            (Keys::Pending { .. }, 2, 1) => Some(At::PendingWithSlotAndNoToken),
            (Keys::Pending { .. }, 2, 2) => Some(At::PendingWithToken),
            (Keys::Promoted { .. }, 2, 2) => Some(At::PromotedWithOldSlot),
            (Keys::Promoted { .. }, 1, 2) => Some(At::PromotedWithOldTokenAlone),
            (Keys::Promoted { .. }, 1, 1) => Some(At::PromotedWithoutOldSlot),
            _ => None,
        }
    }

    /// Runs the node, which is killed at a call of cryptsetup.
    fn killed(&self, kill: Kill) -> At {
        let output = self.machine.key_rotate_killed(kill).unwrap().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(9), "{kill:?}: {said}");
        self.at().unwrap()
    }

    /// When to kill: before each call of a whole rotation, and after those that change the disk. What follows
    /// another call is what precedes the next one.
    fn kills(&self) -> Vec<Kill> {
        self.begin();
        let output = self.machine.key_rotate_killed(Kill::Never).unwrap().output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let calls = self.machine.cryptsetup_calls().unwrap();
        let mut kills = Vec::new();
        for (number, call) in (1..).zip(calls) {
            kills.push(Kill::Before(number));
            if !["luksDump", "open"].contains(&call.as_str()) {
                kills.push(Kill::After(number));
            }
        }
        kills
    }

    /// The new key alone opens the volume, and nothing else is left.
    fn assert_replaced(&mut self, old: &SecretBytes, when: &str) {
        assert!(self.kept().is_settled(), "{when}");
        let (slots, tokens) = self.machine.volume_parts().unwrap();
        assert_eq!((slots.len(), tokens.len()), (1, 1), "{when}: {slots:?}");
        self.assert_boots(when);
        assert!(!self.machine.opens_with(old).unwrap(), "{when}: the old passphrase opens it");
    }
}

#[test]
fn a_rotation_that_is_killed_at_each_call_of_cryptsetup_leaves_a_disk_that_opens() {
    let mut world = World::new();
    let mut seen: BTreeMap<At, u32> = BTreeMap::new();
    for kill in world.kills() {
        let old_key = *world.kept().current();
        let old = world.machine.passphrases().unwrap().remove(0);
        world.begin();
        let at = world.killed(kill);
        let when = format!("{kill:?}, {at:?}");
        *seen.entry(at).or_default() += 1;
        world.assert_boots(&when);
        // What is after a change is also before the next call: there it is finished, here it is canceled.
        if matches!(kill, Kill::After(_)) {
            let released = *world.kept().current();
            world.cancel();
            assert_eq!(world.kept(), Keys::Settled { current: released }, "{when}");
            world.assert_boots(&when);
            world.begin();
        }
        world.finish();
        assert_ne!(*world.kept().current(), old_key, "{when}");
        world.assert_replaced(&old, &when);
    }
    for (at, kills) in &seen {
        println!("{at:?}: {kills} kills, no disk lost");
    }
    for at in [
        At::PendingBeforeSlot,
        At::PendingWithIntent,
        At::PendingWithSlotAndNoToken,
        At::PendingWithToken,
        At::PromotedWithOldSlot,
        At::PromotedWithOldTokenAlone,
        At::PromotedWithoutOldSlot,
    ] {
        assert!(seen.get(&at).is_some_and(|kills| *kills >= 2), "{at:?}: {seen:?}");
    }
    assert_eq!(world.anchor.tec(&["audit", "verify"]).unwrap()["intact"], true);
}

#[test]
fn an_admins_command_that_is_killed_anywhere_keeps_the_old_key_and_at_most_one_new_one() {
    let mut world = World::new();
    let old = *world.kept().current();
    let mut pending = None;
    for milliseconds in (0..).step_by(5) {
        let mut tec = Command::new(world.settings.tec());
        tec.arg("--state-dir").arg(world.directory.path().join("state"));
        let mut child = group(tec.args(["key", "rotate", &world.id.to_string()]));
        load::pause(milliseconds);
        let is_killed = kill(&mut child);
        match world.kept() {
            Keys::Settled { current } => assert_eq!((current, pending), (old, None)),
            Keys::Pending { current, pending: new } => {
                assert_eq!((current, *pending.get_or_insert(new)), (old, new));
            }
            Keys::Promoted { .. } => panic!("nobody confirmed"),
        }
        if !is_killed {
            break;
        }
    }
    assert!(pending.is_some());
    world.assert_boots("with a pending key");
    world.finish();
    assert_eq!(Some(*world.kept().current()), pending);
}
