//! Passes that continue page by page, using what was listed when they began.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tec_core::migrate::{Authority, Epoch, UnitName};

use super::snapshot::Snapshot;
use crate::client::fence::Fence;

/// A pass that continues with the next page.
#[derive(Debug)]
pub(super) struct Walk {
    /// The record when the pass began: if it changes, the list is no longer valid.
    of: Authority,
    at: UnitName,
    snapshot: Snapshot,
}

/// The passes under way.
#[derive(Debug, Default)]
pub(in crate::client) struct Passes {
    pub(super) export: Mutex<Option<Walk>>,
    pub(super) weigh: Mutex<Option<Walk>>,
    pub(super) adopt: Mutex<Option<Walk>>,
    pub(super) fence: Fence<Authority>,
}

/// The list from the beginning of the pass, if this request continues it.
pub(super) fn resume(
    slot: &Mutex<Option<Walk>>,
    record: &Authority,
    goes_on: impl FnOnce(&UnitName) -> bool,
) -> Option<Snapshot> {
    let walk = slot.lock().take()?;
    (walk.of == *record && goes_on(&walk.at)).then_some(walk.snapshot)
}

pub(super) fn pause(slot: &Mutex<Option<Walk>>, of: Authority, at: UnitName, snapshot: Snapshot) {
    let walk = Walk { of, at, snapshot };
    *slot.lock() = Some(walk);
}

/// Where a pass was interrupted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    pub(super) epoch: Epoch,
    pub(super) unit: UnitName,
}
