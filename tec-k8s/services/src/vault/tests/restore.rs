use proptest::prelude::any;
use proptest::proptest;
use serde_json::json;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::testing::{Mishap, World, crash_everywhere, run_plan, seeded_mishaps};

use super::super::Progress;
use super::super::keyring::{Nonces, Opened};
use super::super::restore::{Effect, Event, Restore, RestoreError};
use super::fake::FakeVault;
use super::world::{Stored, platform};
use super::{LIMIT, up};

/// An object of the vault whose snapshot is restored.
const KEPT: &str = "kubefox/kv-env/data/apps/x";

/// An empty vault, and the backup of another one.
#[derive(Debug)]
struct Target {
    vault: FakeVault,
    snapshot: FakeVault,
    wrapped: Vec<u8>,
    secret: Option<Stored>,
    file: Option<Vec<u8>>,
    note: Option<String>,
    resets: u32,
    end: Option<Result<(), RestoreError>>,
}

impl Target {
    fn new() -> Self {
        let mut pod = up();
        pod.vault.objects.insert(KEPT.to_owned(), json!({"v": 1}));
        Self {
            vault: FakeVault::default(),
            snapshot: pod.vault,
            wrapped: pod.file.unwrap(),
            secret: pod.secret,
            file: None,
            note: None,
            resets: 0,
            end: None,
        }
    }

    fn run(mut self) -> Self {
        run_plan(&mut self, LIMIT, |_| Mishap::None);
        self
    }
}

impl World for Target {
    type Plan = Restore;

    fn boot(&mut self) -> (Restore, Event) {
        let names = ["platform", "vault"].map(str::to_owned);
        let [namespace, stateful_set] = names;
        (Restore::new(namespace, stateful_set, self.wrapped.clone()), Event::Start)
    }

    fn apply(&mut self, effect: Effect) -> Option<Event> {
        Some(match effect {
            Effect::ReadFile => Event::File(self.file.clone()),
            Effect::ReadNote => Event::File(self.note.clone().map(String::into_bytes)),
            Effect::ReadSecret => Event::Secret(self.secret.as_ref().map(Stored::read)),
            Effect::Call(request) => Event::Answered(self.vault.answer(&request)),
            Effect::WriteNote(note) => {
                self.note = Some(note);
                Event::Done
            }
            Effect::Send(request) => {
                let snapshot = self.snapshot.clone();
                Event::Answered(self.vault.take(&request, snapshot))
            }
            Effect::Advance { from, to } => {
                let secret = self.secret.as_mut();
                let is_done = secret.is_some_and(|secret| secret.advance(&from, to));
                if is_done { Event::Done } else { Event::Failed }
            }
            Effect::WriteFile(bytes) => {
                self.file = Some(bytes);
                Event::Done
            }
            Effect::RemoveNote => {
                self.note = None;
                Event::Done
            }
            Effect::ResetStorage => {
                assert!(self.note.is_some() && self.file.is_none(), "a vault in use was reset");
                self.vault.wipe();
                self.resets += 1;
                Event::Done
            }
            Effect::Wait(_) => Event::Elapsed,
            Effect::Finish(end) => {
                self.end = Some(end);
                return None;
            }
        })
    }

    fn failure(&self, effect: &Effect) -> Option<Event> {
        match effect {
            Effect::Wait(_) | Effect::Finish(_) => None,
            _ => Some(Event::Failed),
        }
    }

    fn name(&self, effect: &Effect) -> String {
        match effect {
            Effect::Call(request) => request.path.clone(),
            effect => format!("{effect:?}").chars().take(12).collect(),
        }
    }
}

/// The vault of the snapshot, ready for the controller.
fn assert_restored(target: &Target) {
    // A process that died after its last step has done everything; the next one finds a vault in use.
    assert!(matches!(target.end, Some(Ok(()) | Err(RestoreError::Occupied))), "{:?}", target.end);
    assert!(!target.vault.sealed && target.vault.key == target.snapshot.key);
    assert!(target.vault.objects.contains_key(KEPT));
    assert_eq!(target.file.as_ref(), Some(&target.wrapped));
    assert_eq!(target.secret.as_ref().unwrap().progress, Progress::KeyStored);
    assert_eq!(target.note, None, "the volume allows a reset");
    assert_eq!(target.vault.inits, target.resets + 1);
}

#[test]
fn a_crash_a_failure_or_a_lost_answer_at_each_step_of_a_restore_leads_to_the_same_end() {
    let rows = crash_everywhere(LIMIT, Target::new, assert_restored);
    for row in &rows {
        println!("{row}");
    }
    assert!(rows.len() > 4 * 12, "{}", rows.len());
}

proptest! {
    #[test]
    fn any_series_of_mishaps_of_a_restore_leads_to_the_same_end(
        seed in any::<u64>(),
        per_mille in 0..200u32,
    ) {
        let mut target = Target::new();
        run_plan(&mut target, LIMIT, seeded_mishaps(seed, per_mille, 60));
        assert_restored(&target);
    }
}

/// A refusal that changed nothing.
fn assert_refused(target: &Target, expected: RestoreError) {
    assert_eq!(target.end, Some(Err(expected)));
    assert_eq!(target.note, None, "the volume allows a reset");
}

#[test]
fn a_vault_that_holds_something_is_left_as_it_is() {
    let mut target = Target::new();
    let mut other = up();
    other.vault.objects.insert("kubefox/kv-env/data/apps/own".to_owned(), json!({}));
    target.vault = other.vault.clone();
    let target = target.run();
    assert_refused(&target, RestoreError::Occupied);
    assert_eq!(target.vault.objects, other.vault.objects);
    assert_eq!((target.resets, target.file), (0, None));

    // The vault that the snapshot was taken of.
    let mut target = Target::new();
    target.vault = target.snapshot.clone();
    target.file = Some(target.wrapped.clone());
    let target = target.run();
    assert_refused(&target, RestoreError::Occupied);
    assert_eq!(target.resets, 0);

    let mut target = Target::new();
    target.file = Some(b"another".to_vec());
    let target = target.run();
    assert_refused(&target, RestoreError::KeyOnVolume);
    assert_eq!((target.vault.inits, target.file), (0, Some(b"another".to_vec())));
}

#[test]
fn a_snapshot_of_another_vault_leaves_the_vault_empty() {
    let mut target = Target::new();
    target.snapshot.key = Some("another key".to_owned());
    let target = target.run();
    assert_refused(&target, RestoreError::Foreign);
    assert_eq!((target.vault.key, target.file), (None, None));
}

/// The file while another key replaces that of the vault.
fn with_next(target: &Target, next: &str) -> Vec<u8> {
    let secret = target.secret.as_ref().unwrap().read();
    let keys = Opened::of(&target.wrapped, &platform(), Some(&secret)).keyring().unwrap();
    let keys = keys.then(&keys.first, Some(SecretBytes::new(next.as_bytes().to_vec())));
    let mut nonces = Nonces::new(SecretArray::new([7; 32]));
    keys.wrap(&platform(), &secret, &mut nonces).unwrap()
}

#[test]
fn a_snapshot_taken_while_the_key_was_replaced_opens_with_either_key_and_with_no_other() {
    let restored = |key: Option<&str>| {
        let mut target = Target::new();
        target.wrapped = with_next(&target, "next");
        target.snapshot.key = key.map(str::to_owned).or(target.snapshot.key);
        target.run()
    };
    assert_restored(&restored(None));
    assert_restored(&restored(Some("next")));
    assert_refused(&restored(Some("other")), RestoreError::Foreign);
}

#[test]
fn without_the_secret_that_wrapped_the_key_the_vault_is_not_touched() {
    let refused = |change: fn(&mut Target)| {
        let mut target = Target::new();
        change(&mut target);
        let target = target.run();
        assert_eq!((target.vault.inits, &target.note), (0, &None));
        target.end.unwrap().unwrap_err()
    };
    assert_eq!(refused(|target| target.secret = None), RestoreError::SecretMissing);
    let other = refused(|target| target.secret.as_mut().unwrap().key = [9; 32]);
    assert_eq!(other, RestoreError::KeyBroken);
    let renamed = refused(|target| target.secret.as_mut().unwrap().key_id = "k2".to_owned());
    assert_eq!(renamed, RestoreError::KeyBroken);
    assert_eq!(refused(|target| target.wrapped = b"{}".to_vec()), RestoreError::KeyBroken);
    let fresh = refused(|target| target.secret.as_mut().unwrap().progress = Progress::Created);
    assert_eq!(fresh, RestoreError::NeverSetUp);
}
