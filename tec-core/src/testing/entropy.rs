//! Reproducible randomness.

use parking_lot::Mutex;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};

use crate::port::Entropy;

/// An [`Entropy`] that returns the same bytes for the same seed: ChaCha20 behind a lock.
///
/// # Security
/// Predictable by design; for tests only.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<ChaCha20Rng>);

impl SeededEntropy {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha20Rng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill_bytes(bytes);
    }
}
