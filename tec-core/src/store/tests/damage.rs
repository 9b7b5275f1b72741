use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::{Place, fill};
use crate::code::Code;
use crate::machine::LastBinding;
use crate::port::{
    AkRegistry, AuditAction, AuditEvent, AuditSink as _, ClockLog, MachineRegistry,
    PlatformLog as _, PlatformOutcome, PortErrorKind, SecretStore, UnclaimedLimit,
};
use crate::store::StoreError;
use crate::testing::{PlatformBoot, sample};

async fn closed_store() -> Place {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    for number in 100..300 {
        let machine = sample::machine(number);
        store.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    }
    place
}

fn assert_corrupt(place: &Place) {
    let error = place.try_open().unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    assert_eq!(error.code(), Code::StoreCorrupt);
}

#[tokio::test]
async fn closing_cleans_up_the_log_and_leaves_two_closed_files() {
    let place = closed_store().await;
    let mut names: Vec<_> = fs::read_dir(place.dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["seal.key", "tec.db"]);
    for name in names {
        let mode = fs::metadata(place.file(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn open_files_are_closed_to_others_too() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    for name in ["tec.db", "tec.db-wal", "tec.db-shm", "seal.key"] {
        let mode = fs::metadata(place.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn the_directory_is_made_closed_to_others() {
    let place = Place::new();
    let dir = place.file("state");
    let entropy = crate::testing::SeededEntropy::new(1);
    drop(crate::store::Store::open(&dir, &entropy).unwrap());
    assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
    let deep = place.file("a/b");
    let error = crate::store::Store::open(&deep, &entropy).unwrap_err();
    assert!(matches!(error, StoreError::File { .. }));
}

#[tokio::test]
async fn overwritten_pages_are_found_at_opening() {
    for page in 1..6 {
        let place = closed_store().await;
        let path = place.file("tec.db");
        let mut bytes = fs::read(&path).unwrap();
        bytes[page * 4096..][..4096].fill(0x5a);
        fs::write(&path, bytes).unwrap();
        assert_corrupt(&place);
    }
}

#[tokio::test]
async fn a_truncated_file_is_found_at_opening() {
    let place = closed_store().await;
    let path = place.file("tec.db");
    let bytes = fs::read(&path).unwrap();
    for length in [0, 1, 50, 100, 4096, bytes.len() / 2, bytes.len() - 4096, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        assert_corrupt(&place);
        assert_eq!(fs::read(&path).unwrap(), &bytes[..length], "nothing was written");
    }
    fs::write(&path, &bytes).unwrap();
    super::assert_machines(&place.open(), 203).await;
}

#[tokio::test]
async fn a_lost_database_is_not_replaced_by_an_empty_one() {
    let place = closed_store().await;
    fs::remove_file(place.file("tec.db")).unwrap();
    assert_corrupt(&place);
    assert!(!place.file("tec.db").exists());
}

#[tokio::test]
async fn another_file_is_no_store() {
    let place = Place::new();
    fs::write(place.file("tec.db"), b"to whom it may concern\n".repeat(1000)).unwrap();
    fs::set_permissions(place.file("tec.db"), Permissions::from_mode(0o600)).unwrap();
    assert_corrupt(&place);
    fs::remove_file(place.file("tec.db")).unwrap();
    place.raw().execute_batch("CREATE TABLE machine (id TEXT)").unwrap();
    fs::set_permissions(place.file("tec.db"), Permissions::from_mode(0o600)).unwrap();
    assert_corrupt(&place);
    let mode: String =
        place.raw().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete", "a file of somebody else is not touched");
}

/// What version 10 had and version 11 removed: the keys that were to follow bound ones.
const ONLY_10: &str = "CREATE TABLE ak_successor (
    predecessor TEXT PRIMARY KEY REFERENCES ak (fingerprint) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL UNIQUE,
    public TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO ak_successor SELECT fingerprint, 'new', public FROM ak WHERE state = 'bound';";
/// Reverts the additions of versions 13 and 12, 9, 8, 7, 6, 5 and 4.
const AFTER_11: &str = "DROP TABLE demands; DROP TABLE audit_base; DROP TRIGGER audit_deleted;";
const AFTER_8: &str = "DROP TRIGGER secret_sealed; ALTER TABLE secret DROP COLUMN seal; \
    ALTER TABLE seal_check DROP COLUMN number;";
const AFTER_7: &str = "DROP INDEX secret_rotating;";
const AFTER_6: &str = "DROP INDEX secret_rotating; DROP TABLE platform; DROP TABLE platform_part; \
    DROP TABLE platform_approval;";
const AFTER_5: &str = "DROP TABLE machine_name;";
const AFTER_4: &str = "DROP TABLE machine_name; ALTER TABLE machine DROP COLUMN out_of_service;";
const AFTER_3: &str = "DROP INDEX ak_claim; ALTER TABLE ak DROP COLUMN source; \
    ALTER TABLE machine DROP COLUMN last_ak; ALTER TABLE machine DROP COLUMN last_ek;";

#[tokio::test]
async fn a_newer_version_is_left_alone() {
    let place = closed_store().await;
    place.raw().pragma_update(None, "user_version", 14).unwrap();
    let error = place.try_open().unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 14, known: 13 }), "{error:?}");
    assert_eq!(error.code(), Code::StoreVersion);
    place.raw().pragma_update(None, "user_version", 0).unwrap();
    assert_corrupt(&place);
}

#[tokio::test]
async fn a_store_of_an_older_version_is_opened_with_all_that_it_holds() {
    const AFTER_1: &str = "DROP TABLE authority; DROP TABLE adopted; DROP TABLE progress;";
    const AFTER_2: &str = "DROP TABLE tpm_clock;";
    for (version, added) in [
        (1, [AFTER_6, AFTER_4, AFTER_3, AFTER_2, AFTER_1].concat()),
        (2, [AFTER_6, AFTER_4, AFTER_3, AFTER_2].concat()),
        (3, [AFTER_6, AFTER_4, AFTER_3].concat()),
        (4, [AFTER_6, AFTER_4].concat()),
        (5, [AFTER_6, AFTER_5].concat()),
        (6, AFTER_6.to_owned()),
        (7, AFTER_7.to_owned()),
        (8, String::new()),
        (9, String::new()),
        (10, ONLY_10.to_owned()),
        (11, String::new()),
        (12, String::new()),
    ] {
        let place = closed_store().await;
        let raw = place.raw();
        let after_8 = if version < 9 { AFTER_8 } else { "" };
        let after_11 = if version < 12 { AFTER_11 } else { "DROP TABLE demands;" };
        raw.execute_batch(&[after_11, after_8, &added].concat()).unwrap();
        raw.pragma_update(None, "user_version", version).unwrap();
        drop(raw);
        let store = place.open();
        super::assert_machines(&store, 203).await;
        assert_eq!(store.demands().unwrap(), None);
        let secret = SecretStore::find(&store, &sample::secret_path(1)).await.unwrap();
        assert!(secret.unwrap().ct_eq(&sample::secret(1)));
        let authority = crate::migrate::TrustAnchor::authority(&store).await;
        assert!(authority.unwrap().is_alone(), "it is its own authority");
        let unknown = ClockLog::forget(&store, &sample::machine_id(1), &sample::line()).await;
        assert_eq!(unknown.unwrap_err().kind(), PortErrorKind::NotFound);
        // Its machines record their platforms at their next boot.
        let (key, seen) = (sample::public_key(1).fingerprint(), PlatformBoot::new().platform());
        let machine = sample::machine_id(1);
        let first = store.admit(&key, machine, &seen, sample::time(9)).await.unwrap();
        assert_eq!(first, PlatformOutcome::Recorded);
    }
}

#[tokio::test]
async fn a_store_of_version_10_is_opened_without_its_successors_and_with_its_audit_log() {
    let place = closed_store().await;
    let raw = place.raw();
    raw.execute_batch(&[AFTER_11, ONLY_10].concat()).unwrap();
    raw.pragma_update(None, "user_version", 10).unwrap();
    drop(raw);
    let store = place.open();
    for action in [AuditAction::AkSuccessorNamed, AuditAction::AkSucceeded] {
        store.append(&AuditEvent { action, ..sample::audit_event(1) }).await.unwrap();
    }
    drop(store);
    let text = "SELECT count(*) FROM audit WHERE event LIKE '%\"ak-successor-named\"%' \
                OR event LIKE '%\"ak-succeeded\"%'";
    let lines: i64 = place.raw().query_row(text, (), |row| row.get(0)).unwrap();
    assert_eq!(lines, 2, "as version 10 wrote them");
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'ak_successor'";
    let tables: i64 = place.raw().query_row(tables, (), |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
    let latest = place.open().audit_latest(u64::MAX, 2).unwrap();
    let actions: Vec<_> = latest.iter().map(|entry| entry.event.action).collect();
    assert_eq!(actions, [AuditAction::AkSucceeded, AuditAction::AkSuccessorNamed]);
}

#[tokio::test]
async fn machines_of_an_older_version_remember_that_they_were_bound() {
    let place = Place::new();
    let store = place.open();
    let mut bound = [sample::ak(1, 1), sample::ak(2, 2)];
    for record in &mut bound {
        record.ek = Some(sample::public_key(9).fingerprint());
        let machine = sample::machine(u64::from(record.machine != sample::machine_id(1)) + 1);
        let created = store.create(&machine, UnclaimedLimit::Unlimited).await;
        created.unwrap();
        let approved = crate::ak::ApprovedAk::dangerous_assume_approved(record.clone());
        store.bind(&approved, &sample::line()).await.unwrap();
    }
    let fresh = sample::machine(3);
    let created = store.create(&fresh, UnclaimedLimit::Unlimited).await;
    created.unwrap();
    let key = |number| sample::public_key(number).fingerprint();
    let revoked = AkRegistry::revoke(&store, &key(2), &sample::line()).await;
    revoked.unwrap();
    drop(store);
    let raw = place.raw();
    raw.execute_batch(&[AFTER_11, AFTER_8, AFTER_6, AFTER_4, AFTER_3].concat()).unwrap();
    raw.pragma_update(None, "user_version", 3).unwrap();
    drop(raw);
    let store = place.open();
    let machines = MachineRegistry::list(&store, None, 10).await.unwrap();
    let bindings: Vec<_> = machines.iter().map(|machine| machine.binding).collect();
    let with_ek = LastBinding::new(key(1), Some(key(9)));
    // It is unknown whether the revoked key was bound or only waited: its endorsement key does not
    // count.
    let without = LastBinding::new(key(2), None);
    assert_eq!(bindings, [Some(with_ek), Some(without), None]);
}

#[tokio::test]
async fn a_value_that_nobody_writes_is_damage() {
    let place = closed_store().await;
    let raw = place.raw();
    raw.execute_batch("UPDATE machine SET registered_by = 'magic' WHERE id LIKE '%0001'").unwrap();
    let store = place.open();
    let error = MachineRegistry::find(&store, &sample::machine_id(1)).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Internal);
    assert_eq!(error.code(), Some(Code::StoreCorrupt));
}

fn assert_access(place: &Place, culprit: &str, found: &str, fix: &str) {
    match place.try_open().unwrap_err() {
        error @ StoreError::Access { .. } => {
            assert_eq!(error.code(), Code::StoreAccess);
            let text = error.to_string();
            let path = place.file(culprit).display().to_string();
            let path = path.trim_end_matches('/');
            assert!(text.starts_with(path) && text.contains(found), "{text}");
            assert!(text.contains(fix), "{text}");
        }
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn wrong_modes_are_named_with_their_fix() {
    let place = closed_store().await;
    let set = |name: &str, mode| {
        fs::set_permissions(place.file(name), Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o755, 0o750, 0o701, 0o770] {
        set("", mode);
        assert_access(&place, "", &format!("{mode:o}"), "chmod 700");
    }
    set("", 0o700);
    for name in ["tec.db", "seal.key"] {
        for mode in [0o644, 0o640, 0o602] {
            set(name, mode);
            assert_access(&place, name, &format!("{mode:o}"), "chmod 600");
        }
        set(name, 0o600);
    }
    place.open();
}

#[tokio::test]
async fn a_wrong_owner_is_named_with_the_fix() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can give files away.
    }
    let place = closed_store().await;
    chown(place.dir(), Some(65_534), None).unwrap();
    assert_access(&place, "", "belongs to user 65534", "sudo -u '#65534'");
    chown(place.dir(), Some(0), None).unwrap();
    chown(place.file("seal.key"), Some(65_534), None).unwrap();
    assert_access(&place, "seal.key", "belongs to user 65534", "chown 0");
}

#[tokio::test]
async fn links_and_directories_are_not_taken_for_files() {
    let place = closed_store().await;
    fs::rename(place.file("tec.db"), place.file("elsewhere")).unwrap();
    symlink(place.file("elsewhere"), place.file("tec.db")).unwrap();
    assert_access(&place, "tec.db", "is not a regular file", "remove");
    fs::remove_file(place.file("tec.db")).unwrap();
    fs::create_dir(place.file("tec.db")).unwrap();
    assert_access(&place, "tec.db", "is not a regular file", "remove");
}
