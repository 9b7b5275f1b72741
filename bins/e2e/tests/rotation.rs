//! The server, the node or the admin's command is killed at each step of the rotation of a disk key, and of
//! the replacement of the seal key.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process_group};
use tec_core::id::ResourcePath;
use tec_core::port::{Entropy as _, SecretStore};
use tec_core::rotation::{KeyMark, Keys};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample;
use tec_e2e::load;
use tec_e2e::machine::Kill;
use tec_e2e::pair::Pair;
use tec_support::SystemEntropy;

/// Default number of kills of each program; `TEC_KILLS` overrides it.
const ROUNDS: u32 = 4;
/// Default number of kills of the replacement of the seal key; `TEC_KILLS` overrides it.
const RESEALS: u32 = 12;
/// Machines in the store whose seal key is replaced.
const MACHINES: u64 = 500;

#[derive(Clone, Copy, Debug)]
enum Victim {
    Server,
    /// As by a power cut: with the programs that it runs.
    Node,
    /// As by a power cut for both.
    Both,
}

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

    fn start_node(&self) -> Child {
        group(&mut self.machine.key_rotate())
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

fn rounds(default: u32) -> u32 {
    std::env::var_os("TEC_KILLS").map_or(default, |text| text.to_str().unwrap().parse().unwrap())
}

fn pause(time: Duration) {
    load::pause(u64::try_from(time.as_millis()).unwrap());
}

#[test]
fn a_rotation_that_is_killed_anywhere_leaves_a_disk_that_opens_and_ends_with_the_new_key_alone() {
    let mut world = World::new();
    world.begin();
    let begin = Instant::now();
    world.finish();
    let whole = begin.elapsed();
    let (rounds, mut seen, mut killed) = (rounds(ROUNDS), BTreeMap::new(), 0);
    for round in 0..rounds {
        for victim in [Victim::Server, Victim::Node, Victim::Both] {
            let when = format!("{victim:?} killed in round {round} of {rounds}");
            let old_key = *world.kept().current();
            let old = world.machine.passphrases().unwrap().remove(0);
            world.begin();
            let mut node = world.start_node();
            pause(whole * round / rounds);
            if matches!(victim, Victim::Server | Victim::Both) {
                world.anchor.kill().unwrap();
            }
            if matches!(victim, Victim::Node | Victim::Both) {
                killed += u32::from(kill(&mut node));
            } else {
                killed += u32::from(!node.wait().unwrap().success());
            }
            let kept = match world.kept() {
                Keys::Settled { .. } => "settled",
                Keys::Pending { .. } => "pending",
                Keys::Promoted { .. } => "promoted",
            };
            *seen.entry(kept).or_insert(0) += 1;
            if !matches!(victim, Victim::Node) {
                world.anchor.restart().unwrap();
            }
            world.assert_boots(&when);

            world.finish();
            assert_ne!(*world.kept().current(), old_key, "{when}");
            world.assert_replaced(&old, &when);
        }
    }
    assert_eq!(world.anchor.tec(&["audit", "verify"]).unwrap()["intact"], true);
    assert!(killed > 0, "nothing was interrupted in {whole:?}");
    println!("{killed} of {} rotations were interrupted, keys afterwards: {seen:?}", 3 * rounds);
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
fn a_machine_whose_rotation_is_canceled_before_it_confirms_keeps_its_key_and_removes_the_new_slot()
{
    let mut world = World::new();
    world.kills();
    let calls = world.machine.cryptsetup_calls().unwrap();
    let added = calls.iter().position(|call| call == "luksAddKey").unwrap();
    // The call that writes the token of the new slot.
    let last = added + calls[added..].iter().position(|call| call == "token").unwrap() + 1;
    world.begin();
    let old_key = *world.kept().current();
    let (tec, state) = (world.settings.tec(), world.directory.path().join("state"));
    let cancel = format!(
        "'{}' --state-dir '{}' key cancel {} --yes > /dev/null",
        tec.display(),
        state.display(),
        world.id
    );
    let call = u32::try_from(last).unwrap();
    let output = world.machine.key_rotate_then(call, &cancel).unwrap().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("TEC-K411"), "{said}");
    assert_eq!(world.kept(), Keys::Settled { current: old_key });
    assert_eq!(world.machine.volume_parts().unwrap().0.len(), 2);
    world.assert_boots("canceled");
    world.finish();
    assert_eq!(world.kept(), Keys::Settled { current: old_key });
    let (slots, tokens) = world.machine.volume_parts().unwrap();
    assert_eq!((slots.len(), tokens.len()), (1, 1), "{slots:?}");
    world.assert_boots("cleaned");
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

impl World {
    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Adds disk keys of other machines.
    fn add_secrets(&self) {
        let (store, line) = (self.anchor.store().unwrap(), sample::line());
        let secrets: Vec<_> =
            (0..MACHINES).map(|n| (sample::secret_path(n), sample::secret(n))).collect();
        let put = secrets.iter().map(|(path, secret)| store.put_new(path, secret, &line));
        for stored in self.runtime.block_on(join_all(put)) {
            stored.unwrap();
        }
    }

    /// Every disk key opens, and is the one that was stored.
    fn assert_secrets(&self, own: &KeyMark, when: &str) {
        let store = self.anchor.store().unwrap();
        let find = |path: &ResourcePath| {
            let found = self.runtime.block_on(SecretStore::find(&store, path));
            found.unwrap_or_else(|error| panic!("{when}: {error:?}")).unwrap()
        };
        assert_eq!(KeyMark::of(&find(&ResourcePath::luks_root(&self.id))), *own, "{when}");
        for number in 0..MACHINES {
            let found = find(&sample::secret_path(number));
            assert!(found.ct_eq(&sample::secret(number)), "{when}: {number}");
        }
    }

    fn seal_key(&self) -> Vec<u8> {
        fs::read(self.state().join("seal.key")).unwrap()
    }
}

#[test]
fn a_replacement_of_the_seal_key_that_is_killed_anywhere_loses_no_key_and_the_machine_boots() {
    const RESEAL: [&str; 3] = ["key", "reseal", "--yes"];
    let mut world = World::new();
    world.add_secrets();
    let (own, first) = (*world.kept().current(), world.seal_key());
    let refused = world.anchor.tec(&RESEAL).unwrap_err();
    assert!(format!("{refused:#}").contains("TEC-S410"), "{refused:#}");
    assert_eq!(world.seal_key(), first, "a server runs");
    assert!(world.anchor.terminate(Duration::from_mins(1)).unwrap().success());
    let begin = Instant::now();
    world.anchor.tec(&RESEAL).unwrap();
    let whole = begin.elapsed();
    let (rounds, mut seen, mut changes) = (rounds(RESEALS), BTreeMap::new(), 1);
    for round in 0..rounds {
        let before = world.seal_key();
        let mut tec = Command::new(world.settings.tec());
        let mut child = group(tec.arg("--state-dir").arg(world.state()).args(RESEAL));
        let mut random = [0; 1];
        SystemEntropy.fill(&mut random);
        pause(whole * u32::from(random[0]) / 256);
        let was = if kill(&mut child) { "killed" } else { "finished" };
        let renamed = world.seal_key() != before;
        let next = world.state().join("seal.key.new").exists();
        world.assert_secrets(&own, &format!("{was} in round {round} of {rounds}"));
        let replaced = world.seal_key() != before;
        changes += usize::from(replaced);
        let left = match (renamed, next, replaced) {
            (false, false, false) => "before the new key was written",
            (false, true, false) => "before the commit",
            (false, true, true) => "before the new key was in place",
            _ => "afterwards",
        };
        *seen.entry((was, left)).or_insert(0) += 1;
    }
    let lines = ["audit", "list", "--action", "seal-key-replaced", "--limit", "1000000"];
    let lines = world.anchor.tec(&lines).unwrap();
    assert_eq!(lines.as_array().unwrap().len(), changes, "one line for each change");
    assert_eq!(world.anchor.tec(&["audit", "verify"]).unwrap()["intact"], true);
    println!("a replacement takes {whole:?}; of {rounds}: {seen:?}");
    assert!(seen.keys().any(|(was, _)| *was == "killed"), "{seen:?}");
    world.anchor.restart().unwrap();
    world.assert_boots("with another seal key");
    assert_eq!(*world.kept().current(), own, "the machine has the key that it had");
}
