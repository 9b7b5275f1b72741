//! The store as a trust anchor: each page of another anchor's units is one transaction.

mod page;

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;

use super::error::{Failure, StoreError};
use super::{Store, audit, authority, rotation};
use crate::migrate::{
    AdoptPage, Adopted, Authority, Epoch, Role, SwapOutcome, Transition, TrustAnchor, TrustUnit,
    UnitName,
};
use crate::port::{AuditEvent, PortError, PortErrorKind};

#[async_trait]
impl TrustAnchor for Store {
    async fn authority(&self) -> Result<Authority, PortError> {
        self.read("read the record of authority", authority::read)
    }

    async fn swap(&self, change: &Transition, line: &AuditEvent) -> Result<SwapOutcome, PortError> {
        let (change, line) = (*change, line.clone());
        self.write("change the record of authority", move |db| {
            rotation::settled(db)?;
            let now = authority::read(db)?;
            if now != *change.from() {
                return Ok(SwapOutcome::Lost(now));
            }
            authority::write(db, change.to())?;
            audit::append(db, &line)?;
            Ok(SwapOutcome::Swapped)
        })
        .await
    }

    async fn export(
        &self,
        after: Option<&UnitName>,
        limit: usize,
    ) -> Result<Vec<TrustUnit>, PortError> {
        self.read("read what the anchor holds", |db| -> Result<_, Failure> {
            rotation::settled(db)?;
            Ok(page::export(db, &self.seal, after, limit)?)
        })
    }

    async fn weigh(&self, units: &[TrustUnit]) -> Result<Vec<Adopted>, PortError> {
        let weigh = |db: &Connection| {
            let unit = |unit| {
                let met = page::meet(db, &self.seal, unit)?;
                Ok(Adopted::of(&met.merged, met.existed))
            };
            units.iter().map(unit).collect::<Result<_, StoreError>>()
        };
        self.read("compare with what the anchor holds", weigh)
    }

    async fn adopt(&self, page: &AdoptPage) -> Result<Vec<Adopted>, PortError> {
        let (page, seal) = (page.clone(), Arc::clone(&self.seal));
        self.write("adopt what another anchor has", move |db| page::adopt(db, &seal, &page)).await
    }

    async fn progress(&self, epoch: Epoch) -> Result<Option<UnitName>, PortError> {
        self.read("read how far a copy came", |db| page::progress(db, epoch))
    }

    async fn shred(&self, line: &AuditEvent) -> Result<u64, PortError> {
        let line = line.clone();
        self.write("shred the disk keys", move |db| {
            if authority::read(db)?.role() != Role::Forward {
                return Err(Failure::Refused(PortErrorKind::Conflict));
            }
            // Removed content is overwritten, see `schema::configure_writer`.
            let count = db.execute("DELETE FROM secret", ())?;
            audit::append(db, &line)?;
            Ok(u64::try_from(count).unwrap_or(u64::MAX))
        })
        .await
    }
}
