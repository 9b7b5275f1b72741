//! SIGKILL at random moments: everything that the store acknowledged is there when it is reopened.
//!
//! This file starts itself as a child process that writes from several tasks at the same time and
//! prints each operation after its acknowledgement. The parent kills it, opens the store and
//! compares. `TEC_KILLS` sets the number of rounds, up to 200.
//!
//! A killed process leaves the kernel's page cache intact, so this test shows that commits are complete and
//! ordered, not that they survive a power loss, for which `synchronous = FULL` is set.
#![cfg(all(feature = "embedded", feature = "test-util"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this is a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};
use tec_core::ak::AkState;
use tec_core::port::{
    AkRegistry, AuditAction, AuditEvent, AuditSink, BindOutcome, Entropy, MachineRegistry,
    PutOutcome, SecretStore, UnclaimedLimit,
};
use tec_core::secret::SecretBytes;
use tec_core::store::{AuditVerdict, Store};
use tec_core::testing::{SeededEntropy, sample};

/// Passes the state directory to the child.
const DIR: &str = "TEC_KILL_TEST_DIR";
/// Number of the round.
const ROUND: &str = "TEC_KILL_TEST_ROUND";
/// Default number of rounds.
const KILLS: u64 = 25;
/// Number of concurrently writing tasks in the child.
const TASKS: u64 = 8;
/// Machines registered per round; two tasks at a time compete for each.
const MACHINES_PER_ROUND: u64 = 1_000_000;
/// Prefix of each line that the child prints, whatever the test harness prints around it.
const MARK: &str = "acknowledged ";

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var_os(name)?.to_str()?.parse().ok()
}

/// The child. Does nothing unless the parent test started it.
#[test]
#[ignore = "started by acknowledged_writes_survive_sigkill"]
fn child_writes_until_it_is_killed() {
    let (Some(dir), Some(round)) = (std::env::var_os(DIR), number_from_env(ROUND)) else {
        return;
    };
    let entropy = Arc::new(SeededEntropy::new(round));
    let store = Arc::new(Store::open(Path::new(&dir), &*entropy).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            tasks.spawn(write_on(store.clone(), entropy.clone(), round, task));
        }
        tasks.join_all().await;
    });
}

/// Registers, binds, stores and logs until the process dies. Tasks 2n and 2n+1 use the same
/// machines with different keys and secrets.
async fn write_on(store: Arc<Store>, entropy: Arc<SeededEntropy>, round: u64, task: u64) {
    for step in 0.. {
        let machine = round * MACHINES_PER_ROUND + step * TASKS + task / 2;
        let key = 2 * machine + task % 2;
        let new = sample::machine(machine);
        store.create(&new, UnclaimedLimit::Unlimited).await.unwrap();
        acknowledge(&format!("machine {machine}"));
        let bound = store
            .bind(&sample::approved_ak(key, machine), &line_of(&key_line(machine, key)))
            .await
            .unwrap();
        if bound == BindOutcome::Bound {
            acknowledge(&format!("bound {machine} {key}"));
        }
        let path = sample::secret_path(machine);
        let mut bytes = vec![0; 32];
        entropy.fill(&mut bytes);
        let secret = SecretBytes::new(bytes.clone());
        let stored = store.put_new(&path, &secret, &line_of(path.as_str())).await.unwrap();
        if stored == PutOutcome::Stored {
            acknowledge(&format!("secret {machine} {}", hex::encode(bytes)));
        }
        // Unlike the machine, the task number makes the event unique.
        let event = machine * TASKS + task;
        store.append(&sample::audit_event(event)).await.unwrap();
        acknowledge(&format!("event {event}"));
    }
}

fn line_of(subject: &str) -> AuditEvent {
    AuditEvent::new(sample::time(0), AuditAction::AkBound, None, subject)
}

fn key_line(machine: u64, key: u64) -> String {
    format!("key {}", sample::ak(key, machine).fingerprint())
}

fn acknowledge(what: &str) {
    let mut out = std::io::stdout().lock();
    // The parent is gone, so there is no reason to go on.
    writeln!(out, "\n{MARK}{what}").unwrap();
}

/// What the store acknowledged in all rounds.
#[derive(Debug, Default)]
struct Acknowledged {
    machines: BTreeSet<u64>,
    keys: BTreeMap<u64, u64>,
    secrets: BTreeMap<u64, String>,
    events: BTreeSet<u64>,
}

impl Acknowledged {
    fn note(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words[..] {
            ["machine", machine] => {
                self.machines.insert(number(machine));
            }
            ["bound", machine, key] => {
                let before = self.keys.insert(number(machine), number(key));
                assert_eq!(before, None, "machine {machine} was bound twice");
            }
            ["secret", machine, bytes] => {
                let before = self.secrets.insert(number(machine), bytes.to_owned());
                assert_eq!(before, None, "the secret of machine {machine} was stored twice");
            }
            ["event", event] => {
                self.events.insert(number(event));
            }
            _ => panic!("the child printed {line:?}"),
        }
    }

    fn len(&self) -> usize {
        self.machines.len() + self.keys.len() + self.secrets.len() + self.events.len()
    }
}

fn start_child(dir: &Path, round: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(ROUND, round.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Acknowledged lines of the child, as they arrive.
fn read_lines(child: &mut Child) -> mpsc::Receiver<String> {
    let out = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in out.split(b'\n') {
            let line = String::from_utf8(line.unwrap()).unwrap();
            if let Some(what) = line.strip_prefix(MARK) {
                sender.send(what.to_owned()).unwrap();
            }
        }
    });
    lines
}

/// Lets the child run for some acknowledgements plus some microseconds, then kills it.
fn run_and_kill(dir: &Path, round: u64, rng: &mut ChaCha20Rng, seen: &mut Acknowledged) {
    let mut child = start_child(dir, round);
    let lines = read_lines(&mut child);
    // Every fifth round dies while the store is being opened, or soon after.
    let wanted = match round % 5 {
        0 => 0,
        _ => 1 + rng.next_u32() % 400,
    };
    let mut got = Vec::new();
    for _ in 0..wanted {
        match lines.recv_timeout(Duration::from_secs(60)) {
            Ok(line) => got.push(line),
            Err(error) => {
                child.kill().unwrap();
                let output = child.wait_with_output().unwrap();
                panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
    let moment = Duration::from_micros(u64::from(rng.next_u32() % 20_000));
    if let Ok(line) = lines.recv_timeout(moment) {
        got.push(line);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The pipe keeps what was printed before the kill.
    got.extend(lines.iter());
    for line in &got {
        seen.note(line);
    }
}

async fn check(store: &Store, seen: &Acknowledged) {
    for machine in &seen.machines {
        let found = MachineRegistry::find(store, &sample::machine_id(*machine)).await.unwrap();
        assert!(found.is_some(), "machine {machine} is gone");
    }
    for (machine, key) in &seen.keys {
        let bound = store.bound_to(&sample::machine_id(*machine)).await.unwrap();
        let bound = bound.unwrap_or_else(|| panic!("machine {machine} lost its key"));
        assert_eq!(bound.public, sample::public_key(*key), "machine {machine} changed its key");
    }
    for (machine, bytes) in &seen.secrets {
        let secret = SecretStore::find(store, &sample::secret_path(*machine)).await.unwrap();
        let secret = secret.unwrap_or_else(|| panic!("the secret of machine {machine} is gone"));
        assert_eq!(&hex::encode(secret.expose("test")), bytes, "it changed");
    }
    let keys = no_machine_has_two_keys(store).await;
    let entries = store.audit_events(0, usize::MAX).unwrap();
    let events: Vec<_> = entries.into_iter().map(|entry| entry.event.subject).collect();
    let unique: BTreeSet<_> = events.iter().cloned().collect();
    assert_eq!(unique.len(), events.len(), "an event was written twice");
    let bindings: BTreeSet<_> = unique.iter().filter(|s| s.starts_with("key ")).collect();
    assert_eq!(bindings, keys.iter().collect(), "a binding and its line are one");
    for machine in &seen.machines {
        let path = sample::secret_path(*machine);
        let is_stored = store.exists(&path).await.unwrap();
        assert_eq!(unique.contains(path.as_str()), is_stored, "{path}");
    }
    for event in &seen.events {
        assert!(unique.contains(&format!("event {event}")), "event {event} is gone");
    }
    match store.verify_audit().unwrap() {
        AuditVerdict::Intact { events: count, .. } => {
            assert_eq!(usize::try_from(count).unwrap(), events.len());
        }
        AuditVerdict::Broken { sequence } => panic!("the chain is broken at {sequence}"),
    }
}

/// The audit lines that must have been written for the keys.
async fn no_machine_has_two_keys(store: &Store) -> BTreeSet<String> {
    let (mut machines, mut lines) = (BTreeSet::new(), BTreeSet::new());
    for record in AkRegistry::list(store, None).await.unwrap() {
        assert_eq!(record.state, AkState::Bound);
        assert!(machines.insert(record.machine), "machine {} has two keys", record.machine);
        lines.insert(format!("key {}", record.fingerprint()));
    }
    lines
}

/// Secrets that were stored without an acknowledgement must not change later either.
async fn adopt_unacknowledged_secrets(store: &Store, seen: &mut Acknowledged) {
    for machine in &seen.machines {
        if let Some(secret) =
            SecretStore::find(store, &sample::secret_path(*machine)).await.unwrap()
        {
            let bytes = hex::encode(secret.expose("test"));
            seen.secrets.entry(*machine).or_insert(bytes);
        }
    }
}

#[tokio::test]
async fn acknowledged_writes_survive_sigkill() {
    let kills = number_from_env("TEC_KILLS").unwrap_or(KILLS).clamp(1, 200);
    let place = tempfile::TempDir::new().unwrap();
    let dir = place.path().join("state");
    let mut rng = ChaCha20Rng::seed_from_u64(7);
    let mut seen = Acknowledged::default();
    for round in 0..kills {
        run_and_kill(&dir, round, &mut rng, &mut seen);
        let store = Store::open(&dir, &SeededEntropy::new(1_000_000 + round)).unwrap();
        check(&store, &seen).await;
        adopt_unacknowledged_secrets(&store, &mut seen).await;
    }
    assert!(kills < 5 || seen.len() > 100, "{} writes are too few to show anything", seen.len());
}
