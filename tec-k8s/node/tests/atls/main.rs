//! Attested TLS with peers that are not ours: a program in Go, and a real TPM.
//!
//! Go must be installed, and `swtpm`; `cargo xtask tools` reports what
//! is missing.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's own tools may fail the test"
)]

mod go;
mod swtpm;

use std::sync::Arc;

use tec_core::port::Clock;
use tec_core::testing::SeededEntropy;
use tec_core::time::Timestamp;
use tec_node::atls::{Endpoint, EndpointBuilder};

#[derive(Debug)]
struct RealClock;

impl Clock for RealClock {
    #[expect(clippy::disallowed_methods, reason = "peers that are not ours look at the time")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp::from_unix_seconds(i64::try_from(since.unwrap().as_secs()).unwrap())
    }
}

fn endpoint(seed: u64) -> EndpointBuilder {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let entropy = Arc::new(SeededEntropy::new(seed));
    Endpoint::builder(provider, Arc::new(RealClock), entropy)
}
