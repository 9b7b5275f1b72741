//! Places for concurrent calls, in fair shares: the vault proves who a caller is only after a token review.

use parking_lot::Mutex;
use tec_core::ak::{Shares, SourceNetwork, fair_limit};

use crate::caller::Refusal;

/// The places.
#[derive(Debug)]
pub(super) struct Slots {
    most: u64,
    taken: Mutex<Shares>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a>(&'a Slots, Option<SourceNetwork>);

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        Self { most: u64::try_from(most).unwrap_or(u64::MAX), taken: Mutex::default() }
    }

    /// A place for a call from this network.
    pub(super) fn enter(&self, source: Option<SourceNetwork>) -> Result<Slot<'_>, Refusal> {
        let (all, own) = self.taken.lock().take(source);
        let slot = Slot(self, source);
        (all < fair_limit(self.most, own)).then_some(slot).ok_or(Refusal::Rate)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.taken.lock().give_back(self.1);
    }
}
