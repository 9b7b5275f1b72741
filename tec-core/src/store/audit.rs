//! The audit log: a hash chains each line to the previous one.

use async_trait::async_trait;
use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use super::Store;
use super::error::StoreError;
use crate::digest::Sha256Digest;
use crate::port::{AuditEvent, AuditSink, PortError};

/// Domain of the hash of a line: SHA-256(label ‖ hash of the previous line ‖ event), where the
/// event is canonical JSON (RFC 8785) and 32 zero bytes precede the first line.
const CHAIN_LABEL: &[u8] = b"tec store audit v1\0";

/// One line of the audit log, with its position in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Number of the line, from 1.
    pub sequence: u64,
    /// Hash over the event and all previous events.
    pub hash: Sha256Digest,
    /// What happened.
    pub event: AuditEvent,
}

/// Result of a check of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must handle every outcome")]
pub enum AuditVerdict {
    /// Every line is present and unchanged.
    Intact {
        /// Number of lines.
        events: u64,
        /// Hash of the last line; if kept elsewhere, it also proves that nobody rewrote the chain.
        head: Sha256Digest,
    },
    /// A line was altered or removed, or was added without going through the store.
    Broken {
        /// Number of the first line that differs from what was written.
        sequence: u64,
    },
}

impl Store {
    /// At most `limit` lines of the audit log with numbers greater than `after`, in order.
    pub fn audit_events(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        const FORWARD: &str = "SELECT * FROM audit WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        self.readers.with(|db| entries(db, FORWARD, after, limit))
    }

    /// At most `limit` lines of the audit log with numbers below `before`, latest first.
    pub fn audit_latest(&self, before: u64, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        const BACKWARD: &str = "SELECT * FROM audit WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2";
        self.readers.with(|db| entries(db, BACKWARD, before, limit))
    }

    /// Recomputes the chain from the first line. Reads the whole log, one line at a time: run it on
    /// a blocking thread.
    ///
    /// # Security
    /// Detects lines that were altered, removed or added, including at the end. Someone who can
    /// write the file can also write a whole new chain; compare `head` with a value that was kept
    /// elsewhere.
    pub fn verify_audit(&self) -> Result<AuditVerdict, StoreError> {
        self.readers.with(verify)
    }
}

#[async_trait]
impl AuditSink for Store {
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError> {
        let event = event.clone();
        self.write(move |db| Ok(append(db, &event)?))
            .await
            .map_err(|failure| failure.during("append to the audit log"))
    }
}

fn chained(before: &Sha256Digest, event: &str) -> Sha256Digest {
    let mut hasher = Sha256::new();
    hasher.update(CHAIN_LABEL);
    hasher.update(before.as_bytes());
    hasher.update(event);
    Sha256Digest::new(hasher.finalize().into())
}

/// Number and hash of the last line; 0 and zero bytes if there is none.
fn head(db: &Connection) -> Result<(i64, Sha256Digest), StoreError> {
    let (sequence, hash) = db
        .prepare_cached("SELECT seq, hash FROM audit_head")?
        .query_row((), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok((sequence, Sha256Digest::new(hash)))
}

/// Appends a line; also used by the writes that the line describes. The transaction has the write lock, so no
/// other process appends in between.
pub(super) fn append(db: &Connection, event: &AuditEvent) -> Result<(), StoreError> {
    let event = serde_json_canonicalizer::to_string(event)
        .map_err(|error| StoreError::undecodable("event", error))?;
    let (last, before) = head(db)?;
    let hash = chained(&before, &event);
    db.prepare_cached("INSERT INTO audit VALUES (?1, ?2, ?3)")?.execute((
        last + 1,
        event,
        hash.as_bytes(),
    ))?;
    db.prepare_cached("UPDATE audit_head SET seq = ?1, hash = ?2")?
        .execute((last + 1, hash.as_bytes()))?;
    Ok(())
}

fn entries(
    db: &Connection,
    query: &str,
    bound: u64,
    limit: usize,
) -> Result<Vec<AuditEntry>, StoreError> {
    let bound = i64::try_from(bound).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    db.prepare_cached(query)?
        .query_map((bound, limit), line)?
        .map(|line| {
            let (sequence, event, hash) = line?;
            let event = serde_json::from_str(&event)
                .map_err(|error| StoreError::undecodable("audit event", error))?;
            Ok(AuditEntry {
                sequence: sequence.unsigned_abs(),
                hash: Sha256Digest::new(hash),
                event,
            })
        })
        .collect()
}

type Line = (i64, String, [u8; 32]);

fn line(row: &rusqlite::Row<'_>) -> rusqlite::Result<Line> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn verify(db: &Connection) -> Result<AuditVerdict, StoreError> {
    // One read transaction, so that lines and head are from the same moment.
    let snapshot = db.unchecked_transaction()?;
    let mut statement = snapshot.prepare_cached("SELECT * FROM audit ORDER BY seq")?;
    let mut rows = statement.query(())?;
    let (mut last, mut hash) = (0, Sha256Digest::ZERO);
    let broken = |last: i64| AuditVerdict::Broken { sequence: last.unsigned_abs() + 1 };
    while let Some(row) = rows.next()? {
        // This store never writes a value of another type.
        let Ok((sequence, event, stored)) = line(row) else {
            return Ok(broken(last));
        };
        let expected = chained(&hash, &event);
        if sequence != last + 1 || stored != *expected.as_bytes() {
            return Ok(broken(last));
        }
        (last, hash) = (sequence, expected);
    }
    match head(&snapshot)? {
        (sequence, head) if sequence == last && head == hash => {
            Ok(AuditVerdict::Intact { events: last.unsigned_abs(), head })
        }
        (sequence, _) => Ok(broken(sequence.clamp(0, last))),
    }
}
