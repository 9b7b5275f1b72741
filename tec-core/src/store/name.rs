//! Human-readable names of machines.

use std::collections::BTreeMap;

use super::Store;
use super::error::{Failure, StoreError};
use super::machine::find;
use crate::id::MachineId;
use crate::port::{PortError, PortErrorKind};

impl Store {
    /// Sets the human-readable name of a machine. Nothing depends on it, and it stays here when
    /// trust moves to another anchor.
    ///
    /// # Errors
    /// `NotFound` if there is no such machine, `Conflict` if another one has the name.
    pub async fn name_machine(&self, id: &MachineId, name: &str) -> Result<(), PortError> {
        let (machine, text, name) = (*id, id.to_string(), name.to_owned());
        let operation = format!("name machine {id} {name}");
        self.write(operation, move |db| {
            find(db, &machine)?.ok_or(Failure::Refused(PortErrorKind::NotFound))?;
            let taken = "SELECT 1 FROM machine_name WHERE name = ?1 AND machine <> ?2";
            if db.prepare_cached(taken)?.exists((&name, &text))? {
                return Err(Failure::Refused(PortErrorKind::Conflict));
            }
            let set = "INSERT INTO machine_name VALUES (?1, ?2) \
                       ON CONFLICT (machine) DO UPDATE SET name = excluded.name";
            db.prepare_cached(set)?.execute((&text, &name))?;
            Ok(())
        })
        .await
    }

    /// The names of all machines that have one.
    pub fn machine_names(&self) -> Result<BTreeMap<MachineId, String>, StoreError> {
        self.readers.with(|db| {
            db.prepare_cached("SELECT machine, name FROM machine_name")?
                .query_map((), |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?
                .map(|row| {
                    let (id, name) = row?;
                    let id: MachineId =
                        id.parse().map_err(|error| StoreError::undecodable("machine id", error))?;
                    Ok((id, name))
                })
                .collect()
        })
    }
}
