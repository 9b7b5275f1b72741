//! The stream of units from one anchor to another.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use super::{AdoptPage, Adopted, Clash, Intake, TrustAnchor, TrustUnit, UnitName};
use crate::port::{Clock, PortError};

/// Maximum number of units in memory.
const PAGE: usize = 256;

/// A unit that contradicts what the target has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Conflict {
    /// The unit.
    pub unit: UnitName,
    /// Why.
    pub clash: Clash,
}

/// Report of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Units that are new at the target.
    pub created: u64,
    /// Units that were extended at the target.
    pub updated: u64,
    /// Units that were already there.
    pub same: u64,
    /// Units that contradict the target.
    pub conflicts: Vec<Conflict>,
}

impl CopyReport {
    /// Number of units that were processed.
    pub fn units(&self) -> u64 {
        let conflicts = u64::try_from(self.conflicts.len()).unwrap_or(u64::MAX);
        self.created + self.updated + self.same + conflicts
    }

    fn note(&mut self, unit: &TrustUnit, adopted: Adopted) {
        match adopted {
            Adopted::Created => self.created += 1,
            Adopted::Updated => self.updated += 1,
            Adopted::Same => self.same += 1,
            Adopted::Clash(clash) => self.conflicts.push(Conflict { unit: unit.name(), clash }),
        }
    }
}

/// Is notified of each page, and may pause the stream.
#[async_trait]
pub trait Observer: Send + Sync {
    /// A page was adopted; the next begins when this returns.
    async fn page(&self, so_far: &CopyReport);
}

/// Ignores the pages, and never pauses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

#[async_trait]
impl Observer for Quiet {
    async fn page(&self, _so_far: &CopyReport) {}
}

/// Copies everything from one anchor to another that listens, starting where an earlier pass at the
/// same epoch was interrupted.
///
/// # Errors
/// An anchor fails, or the target no longer listens to this pass.
///
/// # Cancel safety
/// A page is adopted either completely or not at all; the next pass continues after it.
pub async fn copy(
    from: &dyn TrustAnchor,
    to: &dyn TrustAnchor,
    intake: Intake,
    clock: &dyn Clock,
    observer: &dyn Observer,
) -> Result<CopyReport, PortError> {
    let mut report = CopyReport::default();
    let mut after = to.progress(intake.epoch()).await?;
    loop {
        let units: Arc<[TrustUnit]> = from.export(after.as_ref(), PAGE).await?.into();
        let more = units.len() == PAGE;
        let at = clock.now();
        let page = AdoptPage { intake, after: after.take(), units: Arc::clone(&units), more, at };
        let adopted = to.adopt(&page).await?;
        for (unit, adopted) in units.iter().zip(adopted) {
            report.note(unit, adopted);
        }
        observer.page(&report).await;
        after = units.last().map(TrustUnit::name);
        if !more {
            return Ok(report);
        }
    }
}

/// Reports what a copy would do, without changing anything.
pub async fn compare(
    from: &dyn TrustAnchor,
    to: &dyn TrustAnchor,
) -> Result<CopyReport, PortError> {
    let (mut report, mut after) = (CopyReport::default(), None);
    loop {
        let units = from.export(after.as_ref(), PAGE).await?;
        for (unit, adopted) in units.iter().zip(to.weigh(&units).await?) {
            report.note(unit, adopted);
        }
        if units.len() < PAGE {
            return Ok(report);
        }
        after = units.last().map(TrustUnit::name);
    }
}
