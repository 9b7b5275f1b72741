//! What the last server demanded of machines.

use rusqlite::OptionalExtension as _;

use super::Store;
use super::error::StoreError;
use crate::migrate::belonging::Demands;
use crate::port::PortError;

impl Store {
    /// What the last server on this store demanded of machines; `None` if none has run since version 13.
    pub fn demands(&self) -> Result<Option<Demands>, StoreError> {
        self.readers.with(|db| {
            let body: Option<String> = db
                .prepare_cached("SELECT body FROM demands")?
                .query_row((), |row| row.get(0))
                .optional()?;
            let demands = body.map(|body| serde_json::from_str(&body)).transpose();
            demands.map_err(|error| StoreError::undecodable("list of demands", error))
        })
    }

    /// Records what the server on this store demands of machines from now on.
    pub async fn demand(&self, demands: &Demands) -> Result<(), PortError> {
        let demands = demands.clone();
        self.write("record the demands", move |db| {
            let body = serde_json::to_string(&demands)
                .map_err(|error| StoreError::undecodable("list of demands", error))?;
            db.prepare_cached("INSERT OR REPLACE INTO demands VALUES (1, ?1)")?.execute((body,))?;
            Ok(())
        })
        .await
    }
}
