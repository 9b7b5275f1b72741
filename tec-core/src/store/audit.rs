//! The audit log: a hash chains each line to the previous one. Its oldest lines may be archived elsewhere.

use std::fmt;

use async_trait::async_trait;
use rusqlite::Connection;

use super::Store;
use super::error::{Failure, StoreError};
use crate::digest::Sha256Digest;
use crate::port::{AuditAction, AuditEvent, AuditSink, PortError, PortErrorKind};
use crate::time::Timestamp;

/// Lines below a number, latest first.
const BACKWARD: &str = "SELECT * FROM audit WHERE seq < ?1 AND seq > (SELECT seq FROM audit_base) \
    ORDER BY seq DESC LIMIT ?2";
/// Lines removed in one transaction.
const CHUNK: u32 = 2000;

/// Domain of the hash of a line: SHA-256(label ‖ hash of the previous line ‖ event), where the
/// event is canonical JSON (RFC 8785) and 32 zero bytes precede the first line.
const CHAIN_LABEL: &[u8] = b"tec store audit v1\0";

/// A place in the chain: the number of a line, and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditPlace {
    /// Number of the line, from 1.
    pub sequence: u64,
    /// Hash over its event and all previous events.
    pub hash: Sha256Digest,
}

impl AuditPlace {
    /// Before the first line.
    pub const BEGIN: Self = Self { sequence: 0, hash: Sha256Digest::ZERO };

    /// The place of the next line, whose event is this JSON.
    pub fn followed_by(&self, event: &serde_json::Value) -> Result<Self, StoreError> {
        Ok(self.after(&canonical(event)?))
    }

    fn after(&self, event: &str) -> Self {
        let text = [CHAIN_LABEL, self.hash.as_bytes(), event.as_bytes()].concat();
        Self { sequence: self.sequence.saturating_add(1), hash: Sha256Digest::of(text) }
    }

    /// The line that says that all lines up to this one were archived.
    fn archived(&self, at: Timestamp) -> AuditEvent {
        let subject = format!("lines up to {}, head {}", self.sequence, self.hash);
        AuditEvent::new(at, AuditAction::AuditArchived, None, subject)
    }
}

impl fmt::Display for AuditPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sequence, self.hash)
    }
}

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
pub enum AuditVerdict {
    /// Every line is present and unchanged.
    Intact {
        /// Number of lines, including those that were archived.
        events: u64,
        /// Number of lines that were archived.
        archived: u64,
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
        const FORWARD: &str = "SELECT * FROM audit WHERE seq > max(?1, \
            (SELECT seq FROM audit_base)) ORDER BY seq LIMIT ?2";
        self.readers.with(|db| entries(db, FORWARD, after, limit))
    }

    /// At most `limit` lines of the audit log with numbers below `before`, latest first.
    pub fn audit_latest(&self, before: u64, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        self.readers.with(|db| entries(db, BACKWARD, before, limit))
    }

    /// The last line that was archived; [`AuditPlace::BEGIN`] if none was.
    pub fn audit_base(&self) -> Result<AuditPlace, StoreError> {
        self.readers.with(|db| place(db, "audit_base"))
    }

    /// The last line; [`AuditPlace::BEGIN`] if there is none. Whoever keeps it elsewhere finds out if it is lost.
    pub fn audit_head(&self) -> Result<AuditPlace, StoreError> {
        self.readers.with(|db| place(db, "audit_head"))
    }

    /// Lets the log begin after `last`, since the lines after `base` up to it are kept elsewhere, and records that.
    /// They count no longer; [`remove_archived_audit`](Self::remove_archived_audit) removes them.
    ///
    /// # Errors
    /// `Conflict` if the log does not begin after `base`, or `last` is not its line: someone else archived it.
    pub async fn archive_audit(
        &self,
        base: AuditPlace,
        last: AuditPlace,
        at: Timestamp,
    ) -> Result<(), PortError> {
        self.write("archive the audit log", move |db| archive(db, (base, last), at)).await
    }

    /// Removes some of the lines that were archived, and returns their number: a few at a time, between which the
    /// caller waits, so that a server on the same store can write.
    pub async fn remove_archived_audit(&self) -> Result<usize, PortError> {
        self.write("remove archived audit lines", |db| Ok(remove_archived(db)?)).await
    }

    /// Recomputes the chain from the first line that was not archived. Reads the whole log, one line at a time: run it on
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
        self.write("append to the audit log", move |db| Ok(append(db, &event)?)).await
    }
}

fn canonical(event: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json_canonicalizer::to_string(event)
        .map_err(|error| StoreError::undecodable("event", error))
}

/// The place in one of the tables with a single one; `BEGIN` if there is no line yet.
fn place(db: &Connection, table: &str) -> Result<AuditPlace, StoreError> {
    let (sequence, hash): (i64, _) = db
        .prepare_cached(&format!("SELECT seq, hash FROM {table}"))?
        .query_row((), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(AuditPlace { sequence: sequence.unsigned_abs(), hash: Sha256Digest::new(hash) })
}

fn set_place(db: &Connection, table: &str, to: AuditPlace) -> Result<(), StoreError> {
    let sequence = i64::try_from(to.sequence).unwrap_or(i64::MAX);
    db.prepare_cached(&format!("UPDATE {table} SET seq = ?1, hash = ?2"))?
        .execute((sequence, to.hash.as_bytes()))?;
    Ok(())
}

fn archive(
    db: &Connection,
    (base, last): (AuditPlace, AuditPlace),
    at: Timestamp,
) -> Result<(), Failure> {
    let found = entries(db, BACKWARD, last.sequence.saturating_add(1), 1)?;
    let is_there = found.iter().any(|it| it.sequence == last.sequence && it.hash == last.hash);
    if !is_there || place(db, "audit_base")? != base {
        return Err(Failure::Refused(PortErrorKind::Conflict));
    }
    set_place(db, "audit_base", last)?;
    Ok(append(db, &last.archived(at))?)
}

/// Removes some of the lines that were archived; returns their number. The trigger lets go of no others.
fn remove_archived(db: &Connection) -> Result<usize, StoreError> {
    const REMOVE: &str = "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit \
        WHERE seq BETWEEN 1 AND (SELECT seq FROM audit_base) LIMIT ?1)";
    Ok(db.prepare_cached(REMOVE)?.execute([CHUNK])?)
}

/// Appends a line; also used by the writes that the line describes. The transaction has the write lock, so no
/// other process appends in between.
pub(super) fn append(db: &Connection, event: &AuditEvent) -> Result<(), StoreError> {
    let event = canonical(event)?;
    let next = place(db, "audit_head")?.after(&event);
    let number = i64::try_from(next.sequence).unwrap_or(i64::MAX);
    let line = (number, event, next.hash.as_bytes());
    db.prepare_cached("INSERT INTO audit VALUES (?1, ?2, ?3)")?.execute(line)?;
    set_place(db, "audit_head", next)
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
    // Numbers that no line has are a forgery; lines that were archived may not be removed yet.
    let mut statement = snapshot.prepare_cached(
        "SELECT * FROM audit WHERE seq < 1 OR seq > (SELECT seq FROM audit_base) ORDER BY seq",
    )?;
    let mut rows = statement.query(())?;
    let base = place(&snapshot, "audit_base")?;
    let (mut last, mut is_told) = (base, base == AuditPlace::BEGIN);
    let broken = |last: u64| Ok(AuditVerdict::Broken { sequence: last.saturating_add(1) });
    while let Some(row) = rows.next()? {
        // This store never writes a value of another type.
        let Ok((sequence, event, stored)) = line(row) else {
            return broken(last.sequence);
        };
        let next = last.after(&event);
        if u64::try_from(sequence) != Ok(next.sequence) || stored != *next.hash.as_bytes() {
            return broken(last.sequence);
        }
        is_told = is_told || tells(&event, base);
        last = next;
    }
    let head = place(&snapshot, "audit_head")?;
    match head.sequence {
        // Otherwise anyone could cut the log off, and call the rest archived.
        _ if !is_told => Ok(AuditVerdict::Broken { sequence: base.sequence }),
        events if head == last => {
            Ok(AuditVerdict::Intact { events, archived: base.sequence, head: head.hash })
        }
        sequence => broken(sequence.min(last.sequence)),
    }
}

/// Whether an event says that the lines up to this one were archived.
fn tells(event: &str, base: AuditPlace) -> bool {
    let told: Option<AuditEvent> =
        event.contains("audit-archived").then(|| serde_json::from_str(event).ok()).flatten();
    told.is_some_and(|told| told == base.archived(told.at))
}
