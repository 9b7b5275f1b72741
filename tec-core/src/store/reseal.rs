//! Replaces the seal key.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::error::StoreError;
use super::seal::{Seal, Sealed};
use super::{Store, access, audit, schema, seal};
use crate::port::{AuditAction, AuditEvent, Entropy};
use crate::time::Timestamp;

impl Store {
    /// Replaces the seal key of the store in a state directory, and returns the number of secrets that are
    /// sealed with the new one.
    ///
    /// Every secret is resealed in one transaction, one at a time: memory does not grow with their number.
    /// The new key is durable before that transaction, and replaces the file of the old one after it, so a
    /// crash at any moment leaves a store that opens. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// As for [`open`](Self::open). `Seal` also if a secret cannot be unsealed; nothing was changed then.
    ///
    /// # Security
    /// Stores that are open on the directory can neither add nor release secrets from then on, and fail with
    /// `Seal`: close them first. Someone who has the old key and an old copy of the database still has the
    /// secrets in it.
    pub fn reseal(dir: &Path, entropy: &dyn Entropy, at: Timestamp) -> Result<u64, StoreError> {
        access::check(dir)?;
        let _alone = access::lock(dir)?;
        let mut db = schema::open_writer(&access::database_file(dir)?)?;
        let old = Seal::load(dir, &mut db, entropy)?;
        let failed = |source| StoreError::sqlite("replace the seal key", source);
        let transaction =
            db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let new = old.successor(dir, entropy)?;
        let count = reseal_all(&transaction, &old, &new)?;
        new.write_check(&transaction)?;
        let subject = format!("{count} secrets");
        let event = AuditEvent::new(at, AuditAction::SealKeyReplaced, None, subject);
        audit::append(&transaction, &event)?;
        transaction.commit().map_err(failed)?;
        seal::put_in_place(dir)?;
        Ok(count)
    }

    /// Number of secrets in the store.
    pub fn count_secrets(&self) -> Result<u64, StoreError> {
        let count: i64 = self
            .readers
            .with(|db| db.query_row("SELECT count(*) FROM secret", (), |row| row.get(0)))?;
        Ok(count.unsigned_abs())
    }
}

fn reseal_all(db: &Connection, old: &Seal, new: &Seal) -> Result<u64, StoreError> {
    let mut update =
        db.prepare_cached("UPDATE secret SET sealed = ?2, seal = ?3 WHERE path = ?1")?;
    let (mut count, mut after) = (0, String::new());
    while let Some((path, sealed)) = next(db, &after)? {
        let sealed = old.reseal(&path, &sealed, new)?;
        update.execute((&path, sealed.bytes, sealed.number))?;
        (count, after) = (count + 1, path);
    }
    Ok(count)
}

/// The secret that follows a path. What a longer query returns while its rows change is undefined
/// (sqlite.org/isolation.html).
fn next(db: &Connection, after: &str) -> Result<Option<(String, Sealed)>, StoreError> {
    let row = db
        .prepare_cached("SELECT * FROM secret WHERE path > ?1 ORDER BY path LIMIT 1")?
        .query_row((after,), |row| {
            Ok((row.get(0)?, Sealed { bytes: row.get(1)?, number: row.get(2)? }))
        })
        .optional()?;
    Ok(row)
}
