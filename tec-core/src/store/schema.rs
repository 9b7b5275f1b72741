//! The tables, and how connections to them are opened.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::error::StoreError;

/// `application_id` of the file header: "TECs" (sqlite.org/fileformat2.html, section 1.3.17).
const APPLICATION_ID: i64 = 0x5445_4373;
/// `user_version` of the file header: the last of [`ADDED`].
pub(super) const VERSION: i64 = 13;
/// The additions of each version, from version 1 on. Version 10 added a table that version 11 removes.
const ADDED: [(i64, &str); 12] = [
    (1, TABLES),
    (2, TRUST_TABLES),
    (3, CLOCK_TABLES),
    (4, BINDING_COLUMNS),
    (5, SERVICE_COLUMN),
    (6, NAME_TABLE),
    (7, PLATFORM_TABLES),
    (8, ROTATION_INDEX),
    (9, SEAL_NUMBERS),
    (11, NO_SUCCESSORS),
    (12, AUDIT_BASE),
    (VERSION, DEMANDS),
];
/// Page size in bytes. Files consist of whole pages, see [`super::access::database_file`].
pub(super) const PAGE: u64 = 4096;
/// How long a statement waits for a lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the write-ahead log after a checkpoint, in bytes.
const WAL_LIMIT: i64 = 16 * 1024 * 1024;
/// Prepared statements kept per connection; the store uses fewer.
const STATEMENTS: usize = 96;

/// Version 1.
///
/// The registries are checked by constraints as well as by code: at most one bound key per machine
/// (`ak_bound`), no key without a machine, an audit log that only grows. `unclaimed` counts
/// machines without a key, since counting rows at each registration would make a boot storm
/// quadratic.
const TABLES: &str = "
CREATE TABLE machine (
    id TEXT PRIMARY KEY,
    registered_by TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('unclaimed', 'active', 'revoked'))
) STRICT, WITHOUT ROWID;
CREATE INDEX machine_stray ON machine (registered_at)
    WHERE state = 'unclaimed' AND registered_by = 'first-boot';

CREATE TABLE unclaimed (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    machines INTEGER NOT NULL CHECK (machines >= 0)
) STRICT;
INSERT INTO unclaimed VALUES (1, 0);
CREATE TRIGGER machine_inserted AFTER INSERT ON machine WHEN new.state = 'unclaimed'
BEGIN UPDATE unclaimed SET machines = machines + 1; END;
CREATE TRIGGER machine_deleted AFTER DELETE ON machine WHEN old.state = 'unclaimed'
BEGIN UPDATE unclaimed SET machines = machines - 1; END;
CREATE TRIGGER machine_updated AFTER UPDATE OF state ON machine
BEGIN UPDATE unclaimed
    SET machines = machines + (new.state = 'unclaimed') - (old.state = 'unclaimed'); END;

CREATE TABLE ak (
    fingerprint TEXT PRIMARY KEY,
    public TEXT NOT NULL,
    machine TEXT NOT NULL REFERENCES machine (id) ON DELETE CASCADE,
    state TEXT NOT NULL CHECK (state IN ('pending', 'bound', 'revoked')),
    ek TEXT,
    submitted_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ak_machine ON ak (machine);
CREATE UNIQUE INDEX ak_bound ON ak (machine) WHERE state = 'bound';

CREATE TABLE image (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE secret (
    path TEXT PRIMARY KEY,
    sealed BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE seal_check (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sealed BLOB NOT NULL
) STRICT;

CREATE TABLE audit (
    seq INTEGER PRIMARY KEY,
    event TEXT NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE TRIGGER audit_updated BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TABLE audit_head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
INSERT INTO audit_head VALUES (1, 0, zeroblob(32));

CREATE TABLE attempt (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    machine TEXT,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX attempt_machine ON attempt (machine, seq);
";

/// Added by version 2: who may approve, what came from another anchor, and how far a copy got.
const TRUST_TABLES: &str = "
CREATE TABLE authority (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    record TEXT NOT NULL
) STRICT;
CREATE TABLE adopted (
    unit TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE progress (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    unit TEXT NOT NULL
) STRICT;
";

/// Added by version 3: the last clock of each TPM. Not tied to `ak`, since a store may keep the clocks
/// of keys that another registry has.
const CLOCK_TABLES: &str = "
CREATE TABLE tpm_clock (
    ak TEXT PRIMARY KEY,
    machine TEXT NOT NULL,
    reading TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tpm_clock_machine ON tpm_clock (machine);
";

/// Added by version 4: the key that a machine had last, and the network that a key came from. A machine that
/// older versions left without a bound key gets the key that was revoked last. The endorsement key of that
/// key counts for nothing, because older versions did not record whether it was ever bound.
const BINDING_COLUMNS: &str = "
ALTER TABLE machine ADD COLUMN last_ak TEXT;
ALTER TABLE machine ADD COLUMN last_ek TEXT;
ALTER TABLE ak ADD COLUMN source TEXT;
CREATE INDEX ak_claim ON ak (source) WHERE state = 'bound' AND source IS NOT NULL;
UPDATE machine SET (last_ak, last_ek) =
    (SELECT fingerprint, ek FROM ak WHERE ak.machine = machine.id AND ak.state = 'bound');
UPDATE machine SET last_ak =
    (SELECT fingerprint FROM ak WHERE ak.machine = machine.id AND ak.state = 'revoked'
     ORDER BY submitted_at DESC LIMIT 1)
    WHERE last_ak IS NULL AND state <> 'unclaimed';
";

/// Added by version 5: why a machine is out of service, other than revocation. Its `state` is then 'revoked',
/// so that code that reads only that column refuses it.
const SERVICE_COLUMN: &str = "
ALTER TABLE machine ADD COLUMN out_of_service TEXT
    CHECK (out_of_service IN ('quarantined', 'retired'));
";

/// Added by version 6: the human-readable name of a machine.
const NAME_TABLE: &str = "
CREATE TABLE machine_name (
    machine TEXT PRIMARY KEY REFERENCES machine (id) ON DELETE CASCADE,
    name TEXT NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;
";

/// Added by version 7: the platform of each attestation key. `platform_part` holds each content
/// once, under its digest: machines of one model share their firmware. Like the clocks, it is not tied to
/// `ak`.
const PLATFORM_TABLES: &str = "
CREATE TABLE platform_part (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE platform (
    ak TEXT PRIMARY KEY,
    machine TEXT NOT NULL,
    baseline TEXT NOT NULL,
    baseline_recorded TEXT NOT NULL,
    seen TEXT NOT NULL,
    seen_recorded TEXT NOT NULL,
    refused_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX platform_machine ON platform (machine);
CREATE INDEX platform_baseline ON platform (baseline);
CREATE INDEX platform_baseline_recorded ON platform (baseline_recorded);
CREATE INDEX platform_seen ON platform (seen);
CREATE INDEX platform_seen_recorded ON platform (seen_recorded);
CREATE TABLE platform_approval (
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    PRIMARY KEY (before, after)
) STRICT, WITHOUT ROWID;
CREATE INDEX platform_approval_after ON platform_approval (after);
";

/// Added by version 8: the keys of rotations that are under way, so that exports find them without reading all
/// paths. A program that knows no rotations would leave these keys out of its exports: it refuses the file.
const ROTATION_INDEX: &str = "
CREATE INDEX secret_rotating ON secret (path) WHERE substr(path, 45) IN ('/pending', '/previous');
";

/// Added by version 9: which seal key each secret is sealed with. A program that opened the store before the
/// seal key was replaced would add secrets that nothing opens: the trigger refuses them, and the additional
/// column refuses those of an earlier version that is still running.
const SEAL_NUMBERS: &str = "
ALTER TABLE seal_check ADD COLUMN number INTEGER NOT NULL DEFAULT 1;
ALTER TABLE secret ADD COLUMN seal INTEGER NOT NULL DEFAULT 1;
CREATE TRIGGER secret_sealed BEFORE INSERT ON secret
WHEN new.seal IS NOT (SELECT number FROM seal_check)
BEGIN SELECT RAISE(ABORT, 'sealed with another seal key'); END;
";

/// Version 11: attestation keys have no successors. A successor in the table was never bound.
const NO_SUCCESSORS: &str = "DROP TABLE IF EXISTS ak_successor;";

/// Added by version 12: the last line of the audit log that was archived, and may therefore be removed.
const AUDIT_BASE: &str = "
CREATE TABLE audit_base (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
INSERT INTO audit_base VALUES (1, 0, zeroblob(32));
DROP TRIGGER IF EXISTS audit_deleted;
CREATE TRIGGER audit_deleted BEFORE DELETE ON audit
WHEN old.seq > (SELECT seq FROM audit_base)
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
";

/// Added by version 13: what the last server demanded of machines.
const DEMANDS: &str = "
CREATE TABLE demands (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    body TEXT NOT NULL
) STRICT;
";

/// What exists at the path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Ours { version: i64 },
}

/// Opens the connection that writes: recognizes the file, checks it, and creates the tables if it
/// is new or older.
pub(super) fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    let failed = |source| StoreError::sqlite("open the store", source);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    // Nothing is written before the file is known to be ours.
    let found = recognise(&db)?;
    if found != Found::Nothing {
        check_integrity(&db)?;
    }
    configure_writer(&db).map_err(failed)?;
    if found != (Found::Ours { version: VERSION }) {
        create_tables(&mut db)?;
    }
    Ok(db)
}

/// Opens a read-only connection. The writer must be open.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let failed = |source| StoreError::sqlite("open the store for reading", source);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    db.pragma_update(None, "trusted_schema", false).map_err(failed)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(db)
}

fn configure_writer(db: &Connection) -> Result<(), rusqlite::Error> {
    // FULL in WAL mode: each commit is synced (sqlite.org/pragma.html#pragma_synchronous). Set
    // first, so that it holds for what follows.
    db.pragma_update(None, "synchronous", "FULL")?;
    // Has no effect once there are tables.
    db.pragma_update(None, "page_size", PAGE.cast_signed())?;
    db.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    db.pragma_update(None, "foreign_keys", true)?;
    db.pragma_update(None, "trusted_schema", false)?;
    // Removed content is overwritten.
    db.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))?;
    db.pragma_update_and_check(None, "journal_size_limit", WAL_LIMIT, |_| Ok(()))?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

fn header(db: &Connection, field: &str) -> Result<i64, StoreError> {
    db.pragma_query_value(None, field, |row| row.get(0))
        .map_err(|source| StoreError::sqlite("read the header of the store", source))
}

fn recognise(db: &Connection) -> Result<Found, StoreError> {
    let tables: i64 = db
        .query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))
        .map_err(|source| StoreError::sqlite("read the schema of the store", source))?;
    let version = header(db, "user_version")?;
    match (header(db, "application_id")?, version, tables) {
        (0, 0, 0) => Ok(Found::Nothing),
        (APPLICATION_ID, version @ 1..=VERSION, _) => Ok(Found::Ours { version }),
        (APPLICATION_ID, found, _) if found > VERSION => {
            Err(StoreError::Newer { found, known: VERSION })
        }
        _ => Err(StoreError::corrupt("the file is not a TEC store")),
    }
}

fn check_integrity(db: &Connection) -> Result<(), StoreError> {
    let finding: String = db
        .query_row("PRAGMA quick_check(1)", (), |row| row.get(0))
        .map_err(|source| StoreError::sqlite("check the store", source))?;
    if finding == "ok" { Ok(()) } else { Err(StoreError::corrupt(finding)) }
}

fn create_tables(db: &mut Connection) -> Result<(), StoreError> {
    let failed = |source| StoreError::sqlite("make the tables of the store", source);
    let transaction =
        db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Another process may have created them since.
    let has = match recognise(&transaction)? {
        Found::Nothing => 0,
        Found::Ours { version } => version,
    };
    for (_, tables) in ADDED.iter().filter(|(version, _)| *version > has) {
        transaction.execute_batch(tables).map_err(failed)?;
    }
    let set = |field, value| transaction.pragma_update(None, field, value);
    set("application_id", APPLICATION_ID).map_err(failed)?;
    set("user_version", VERSION).map_err(failed)?;
    transaction.commit().map_err(failed)
}
