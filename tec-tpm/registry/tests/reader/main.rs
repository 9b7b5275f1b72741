//! The reader against a real registry, and against servers that misbehave as registries may.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "all of this is test code, its helper functions too; servers end with their test"
)]

mod boot;
mod fake;
mod hostile;
mod real;
mod signature;
mod tag;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// This program's choice.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
