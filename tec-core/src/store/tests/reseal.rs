use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use super::{Place, audit, fill};
use crate::code::Code;
use crate::id::ResourcePath;
use crate::port::{AuditAction, DiskKeys as _, PortError, SecretStore};
use crate::rotation::{Confirmation, KeyMark};
use crate::store::{Store, StoreError};
use crate::testing::{SeededEntropy, sample};

/// Machines with a disk key.
const MACHINES: u64 = 20;

async fn filled() -> Place {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    for number in 2..=MACHINES {
        let (path, key) = (sample::secret_path(number), sample::secret(number));
        store.put_new(&path, &key, &sample::line()).await.unwrap();
    }
    let recovery = ResourcePath::recovery(&sample::machine_id(2), 1);
    store.put_new(&recovery, &sample::secret(77), &sample::line()).await.unwrap();
    store.begin(&sample::machine_id(1), &sample::secret(88), &sample::line()).await.unwrap();
    place
}

/// Disk keys, one recovery key and one pending key.
const SECRETS: u64 = MACHINES + 2;

async fn assert_all_open(store: &Store, when: &str) {
    let find = async |path| SecretStore::find(store, &path).await.unwrap().unwrap();
    for number in 1..=MACHINES {
        let key = find(sample::secret_path(number)).await;
        assert!(key.ct_eq(&sample::secret(number)), "{when}");
    }
    let recovery = find(ResourcePath::recovery(&sample::machine_id(2), 1)).await;
    assert!(recovery.ct_eq(&sample::secret(77)), "{when}");
    let pending = find(ResourcePath::luks_pending(&sample::machine_id(1))).await;
    assert!(pending.ct_eq(&sample::secret(88)), "{when}");
    assert_eq!(store.count_secrets().unwrap(), SECRETS, "{when}");
}

fn try_reseal(place: &Place, seed: u64) -> Result<u64, StoreError> {
    Store::reseal(place.dir(), &SeededEntropy::new(seed), sample::time(9))
}

fn reseal(place: &Place, seed: u64) {
    assert_eq!(try_reseal(place, seed).unwrap(), SECRETS);
}

fn key_of(place: &Place) -> Vec<u8> {
    fs::read(place.file("seal.key")).unwrap()
}

fn names(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.dir()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn write(place: &Place, name: &str, content: &[u8]) {
    fs::write(place.file(name), content).unwrap();
    fs::set_permissions(place.file(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// A directory with the database of another, and with these key files.
fn with_keys(database: &Path, files: &[(&str, &[u8])]) -> Place {
    let place = Place::new();
    write(&place, "tec.db", &fs::read(database).unwrap());
    for (name, content) in files {
        write(&place, name, content);
    }
    place
}

#[tokio::test]
async fn every_secret_is_sealed_with_the_new_key_and_the_file_of_the_old_one_is_gone() {
    let place = filled().await;
    let old = key_of(&place);
    let before = audit::intact(&place.open());
    for seed in 2..=4 {
        reseal(&place, seed);
    }
    assert_ne!(key_of(&place), old);
    assert_eq!(names(&place), ["seal.key", "tec.db"]);
    let mode = fs::metadata(place.file("seal.key")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    let store = place.open();
    assert_all_open(&store, "afterwards").await;
    assert_eq!(audit::intact(&store), before + 3);
    let last = store.audit_latest(u64::MAX, 1).unwrap().remove(0).event;
    assert_eq!(last.action, AuditAction::SealKeyReplaced);
    assert_eq!(last.subject, format!("{SECRETS} secrets"));
    let pending = KeyMark::of(&sample::secret(88));
    let (id, step) = (sample::machine_id(1), Confirmation::Staged);
    store.confirm(&id, step, &pending, &sample::line()).await.unwrap();
    let path = sample::secret_path(99);
    store.put_new(&path, &sample::secret(99), &sample::line()).await.unwrap();
    drop(store);
    let found = SecretStore::find(&place.open(), &path).await.unwrap().unwrap();
    assert!(found.ct_eq(&sample::secret(99)), "what came later is sealed with the new key");
}

#[tokio::test]
async fn an_older_seal_key_that_was_put_back_is_refused() {
    let place = filled().await;
    let old = key_of(&place);
    reseal(&place, 2);
    let new = key_of(&place);
    fs::write(place.file("seal.key"), &old).unwrap();
    for _ in 0..2 {
        let opened = place.try_open().map(|_| 0);
        for refused in [opened, try_reseal(&place, 3)] {
            let error = refused.unwrap_err();
            assert_eq!(error.code(), Code::KeySealed, "{error:?}");
        }
    }
    assert_eq!(key_of(&place), old, "nothing was written");
    assert_eq!(names(&place), ["seal.key", "tec.db"]);
    fs::write(place.file("seal.key"), new).unwrap();
    assert_all_open(&place.open(), "with the new key").await;
}

/// What is in the directory after each step, and while the files of keys are written.
#[tokio::test]
async fn a_crash_at_any_step_leaves_a_store_that_opens_and_can_be_resealed() {
    const KEY: &str = "seal.key";
    const NEXT: &str = "seal.key.new";
    let place = filled().await;
    let old = key_of(&place);
    let before = with_keys(&place.file("tec.db"), &[]);
    reseal(&place, 2);
    let new = key_of(&place);
    let (old, new) = (old.as_slice(), new.as_slice());
    let after = place.file("tec.db");
    let torn = [&new[..0], &new[..1], &new[..31], new];
    let begun = torn.map(|next| with_keys(&before.file("tec.db"), &[(KEY, old), (NEXT, next)]));
    let committed = [
        with_keys(&after, &[(KEY, old), (NEXT, new)]),
        with_keys(&after, &[(KEY, &[0; 32]), (NEXT, new)]),
        with_keys(&after, &[(KEY, b""), (NEXT, new)]),
        with_keys(&after, &[(NEXT, new)]),
    ];
    for (crashed, expected) in
        begun.iter().map(|place| (place, old)).chain(committed.iter().map(|place| (place, new)))
    {
        let when = format!("{:?}", names(crashed));
        assert_all_open(&crashed.open(), &when).await;
        assert_eq!(key_of(crashed), expected, "{when}");
        reseal(crashed, 3);
        assert!(![old, new].contains(&key_of(crashed).as_slice()), "{when}");
        assert_eq!(names(crashed), ["seal.key", "tec.db"]);
        assert_all_open(&crashed.open(), &when).await;
    }
    for keys in [&[(KEY, old)][..], &[(KEY, old), (NEXT, &new[..31])], &[(NEXT, old)]] {
        let lost = with_keys(&after, keys);
        assert_eq!(lost.try_open().unwrap_err().code(), Code::KeySealed);
    }
}

#[tokio::test]
async fn a_store_that_stayed_open_neither_adds_nor_releases_secrets() {
    let place = filled().await;
    let stale = place.open();
    reseal(&place, 2);
    let lines = audit::intact(&stale);
    let sealed = |error: PortError| assert_eq!(error.code(), Some(Code::KeySealed), "{error:?}");
    let (path, line) = (sample::secret_path(50), sample::line());
    sealed(stale.put_new(&path, &sample::secret(50), &line).await.unwrap_err());
    sealed(SecretStore::find(&stale, &sample::secret_path(1)).await.unwrap_err());
    sealed(stale.begin(&sample::machine_id(1), &sample::secret(51), &line).await.unwrap_err());
    assert!(matches!(stale.health(), Err(StoreError::Seal(_))));
    assert_eq!(audit::intact(&stale), lines);
    drop(stale);
    let store = place.open();
    store.health().unwrap();
    assert_all_open(&store, "afterwards").await;
}

#[tokio::test]
async fn a_server_of_an_earlier_version_that_still_runs_adds_no_secret() {
    let place = filled().await;
    let raw = place.raw();
    let path = sample::secret_path(50);
    let record = (path.as_str(), b"sealed with a key that is gone");
    let statement = "INSERT INTO secret VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    assert!(raw.execute(statement, record).is_err());
    reseal(&place, 2);
    assert!(raw.execute(statement, record).is_err());
    assert!(raw.execute("INSERT INTO secret VALUES (?1, ?2, 1)", record).is_err());
    drop(raw);
    assert_all_open(&place.open(), "afterwards").await;
}

#[tokio::test]
async fn a_record_that_does_not_open_is_named_and_nothing_is_changed() {
    let place = filled().await;
    let (old, path) = (key_of(&place), sample::secret_path(7));
    let raw = place.raw();
    let keep = "CREATE TEMP TABLE kept AS SELECT path, sealed FROM secret";
    raw.execute_batch(keep).unwrap();
    raw.execute("UPDATE secret SET sealed = zeroblob(60) WHERE path = ?1", (path.as_str(),))
        .unwrap();
    let error = try_reseal(&place, 2).unwrap_err();
    assert!(matches!(&error, StoreError::Seal(what) if what.contains(path.as_str())));
    assert_eq!(key_of(&place), old);
    raw.execute_batch(
        "UPDATE secret SET sealed = (SELECT sealed FROM kept WHERE kept.path = secret.path)",
    )
    .unwrap();
    drop(raw);
    assert_all_open(&place.open(), "with the old key").await;
    reseal(&place, 3);
    assert_all_open(&place.open(), "with the new key").await;
}

#[tokio::test]
async fn replacements_at_the_same_time_take_turns() {
    let place = filled().await;
    let lines = audit::intact(&place.open());
    std::thread::scope(|scope| {
        for seed in 2..8 {
            let place = &place;
            scope.spawn(move || reseal(place, seed));
        }
    });
    let store = place.open();
    assert_all_open(&store, "afterwards").await;
    assert_eq!(audit::intact(&store), lines + 6);
}

#[tokio::test]
async fn an_empty_store_gets_a_new_key_too() {
    let place = Place::new();
    drop(place.open());
    let old = key_of(&place);
    assert_eq!(try_reseal(&place, 2).unwrap(), 0);
    assert_ne!(key_of(&place), old);
    fill(&place.open()).await;
    let found = SecretStore::find(&place.open(), &sample::secret_path(1)).await.unwrap();
    assert!(found.unwrap().ct_eq(&sample::secret(1)));
}
