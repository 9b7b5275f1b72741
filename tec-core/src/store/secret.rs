//! Sealed disk keys in the store.

use async_trait::async_trait;
use rusqlite::Connection;
use rusqlite::OptionalExtension as _;

use super::Store;
use super::audit;
use super::error::StoreError;
use crate::id::ResourcePath;
use crate::port::AuditEvent;
use crate::port::PortError;
use crate::port::PutOutcome;
use crate::port::SecretStore;
use crate::secret::SecretBytes;

#[async_trait]
impl SecretStore for Store {
    async fn put_new(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<PutOutcome, PortError> {
        let operation = || format!("store the secret at {path}");
        let sealed = self
            .seal
            .seal_secret(path, secret)
            .map_err(|error| error.during(operation()))?;
        let (name, line) = (path.as_str().to_owned(), line.clone());
        self.write(move |db| Ok(put_new(db, &name, &sealed, &line)?))
            .await
            .map_err(|failure| failure.during(operation()))
    }

    async fn find(&self, path: &ResourcePath) -> Result<Option<SecretBytes>, PortError> {
        let operation = || format!("read the secret at {path}");
        let sealed = self
            .readers
            .with(|db| find(db, path))
            .map_err(|error| error.during(operation()))?;
        sealed
            .map(|sealed| self.seal.unseal_secret(path, &sealed))
            .transpose()
            .map_err(|error| error.during(operation()))
    }

    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError> {
        self.readers
            .with(|db| exists(db, path))
            .map_err(|error| error.during(format!("look for the secret at {path}")))
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        let name = path.as_str().to_owned();
        self.write(move |db| {
            db.prepare_cached("DELETE FROM secret WHERE path = ?1")?
                .execute((&name,))?;
            Ok(())
        })
        .await
        .map_err(|failure| failure.during(format!("remove the secret at {path}")))
    }
}

fn put_new(
    db: &Connection,
    path: &str,
    sealed: &[u8],
    line: &AuditEvent,
) -> Result<PutOutcome, StoreError> {
    let inserted = db
        .prepare_cached("INSERT INTO secret VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
        .execute((path, sealed))?;
    if inserted == 0 {
        return Ok(PutOutcome::Existed);
    }
    audit::append(db, line)?;
    Ok(PutOutcome::Stored)
}

fn find(db: &Connection, path: &ResourcePath) -> Result<Option<Vec<u8>>, StoreError> {
    let sealed = db
        .prepare_cached("SELECT sealed FROM secret WHERE path = ?1")?
        .query_row((path.as_str(),), |row| row.get(0))
        .optional()?;
    Ok(sealed)
}

fn exists(db: &Connection, path: &ResourcePath) -> Result<bool, StoreError> {
    let found = db
        .prepare_cached("SELECT 1 FROM secret WHERE path = ?1")?
        .exists((path.as_str(),))?;
    Ok(found)
}
