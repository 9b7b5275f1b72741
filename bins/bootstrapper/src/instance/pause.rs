//! Waits, with jitter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tec_core::port::{Entropy, PortError};
use tec_node::port::Pause;

use crate::instance::finding::describe;

/// Maximum number of doublings; the wait is then half a minute (Constellation).
const MAX_DOUBLINGS: u32 = 5;

/// A random time between half of the wait and all of it, so that nodes that boot together do not ask at the
/// same time.
#[derive(Clone, Debug)]
pub struct JitteredPause {
    first: Duration,
    entropy: Arc<dyn Entropy>,
}

impl JitteredPause {
    /// Starts with this wait.
    pub fn new(first: Duration, entropy: Arc<dyn Entropy>) -> Self {
        Self { first, entropy }
    }

    fn wait(&self, doublings: u32) -> Duration {
        let whole = self.first * 2_u32.pow(doublings.min(MAX_DOUBLINGS));
        let mut byte = [0];
        self.entropy.fill(&mut byte);
        whole / 2 + whole * u32::from(byte[0]) / 512
    }
}

#[async_trait]
impl Pause for JitteredPause {
    fn began(&self, step: &dyn fmt::Display) {
        tracing::info!(%step, "a step begins");
    }

    fn failed(&self, step: &dyn fmt::Debug, error: &PortError) {
        tracing::warn!(?step, error = describe(error), "a step failed");
    }

    async fn pause(&self, doublings: u32) {
        tokio::time::sleep(self.wait(doublings)).await;
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::SeededEntropy;

    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_keep_their_bounds() {
        let first = Duration::from_secs(1);
        let pause = JitteredPause::new(first, Arc::new(SeededEntropy::new(1)));
        for doublings in 0..40 {
            let whole = first * 2_u32.pow(doublings.min(5));
            let wait = pause.wait(doublings);
            assert!(wait >= whole / 2 && wait <= whole, "{doublings}: {wait:?}");
        }
    }
}
