//! The record of authority, which every write checks.

use rusqlite::Connection;

use super::error::{Failure, StoreError};
use crate::migrate::{AnchorId, Authority, Deed};
use crate::port::{Entropy, EntropyRng};

/// Creates the record of the anchor, if there is none yet.
pub(super) fn found(db: &Connection, entropy: &dyn Entropy) -> Result<(), StoreError> {
    let anchor = AnchorId::random(&mut EntropyRng::new(entropy));
    let record = encode(&Authority::founded(anchor))?;
    db.execute("INSERT INTO authority VALUES (1, ?1) ON CONFLICT DO NOTHING", (record,))
        .map_err(|source| StoreError::sqlite("found the trust anchor", source))?;
    Ok(())
}

pub(super) fn read(db: &Connection) -> Result<Authority, StoreError> {
    let record: String =
        db.prepare_cached("SELECT record FROM authority")?.query_row((), |row| row.get(0))?;
    serde_json::from_str(&record)
        .map_err(|error| StoreError::undecodable("record of authority", error))
}

pub(super) fn write(db: &Connection, authority: &Authority) -> Result<(), StoreError> {
    db.prepare_cached("UPDATE authority SET record = ?1")?.execute((encode(authority)?,))?;
    Ok(())
}

/// Refuses what the anchor may not do. Runs in the transaction of the write, so that nothing is
/// approved after the authority was given up.
pub(super) fn permit(db: &Connection, deed: Deed) -> Result<(), Failure> {
    read(db)?.permit(deed).map_err(Failure::NoAuthority)
}

fn encode(authority: &Authority) -> Result<String, StoreError> {
    serde_json::to_string(authority)
        .map_err(|error| StoreError::undecodable("record of authority", error))
}
