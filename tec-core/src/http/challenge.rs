//! Challenges that wait for the answer of a TPM: a bounded table in memory. Losing it costs the
//! node one more try.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::ak::{Fingerprint, PublicKey};
use crate::id::MachineId;
use crate::secret::SecretArray;
use crate::time::Timestamp;

/// Most challenges at once.
const MAX_WAITING: usize = 4096;
/// How long an answer may take.
const ANSWER_SECONDS: i64 = 120;

/// What was challenged.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) machine: MachineId,
    pub(super) public: PublicKey,
    pub(super) ek: Fingerprint,
    pub(super) secret: SecretArray<32>,
}

/// The table, keyed by the challenge's id.
#[derive(Debug, Default)]
pub(super) struct Challenges(Mutex<BTreeMap<[u8; 16], (Timestamp, Waiting)>>);

impl Challenges {
    /// Keeps a challenge; `false` when the table is full.
    pub(super) fn keep(&self, id: [u8; 16], now: Timestamp, waiting: Waiting) -> bool {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= MAX_WAITING {
            table.retain(|_, (until, _)| now < *until);
        }
        if table.len() >= MAX_WAITING {
            return false;
        }
        table.insert(id, (now.plus_seconds(ANSWER_SECONDS), waiting));
        true
    }

    /// Takes a challenge out: each may be answered once.
    pub(super) fn take(&self, id: [u8; 16], now: Timestamp) -> Option<Waiting> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.remove(&id).filter(|(until, _)| now < *until).map(|(_, waiting)| waiting)
    }
}
