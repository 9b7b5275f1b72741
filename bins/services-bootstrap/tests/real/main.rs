//! The services bootstrap on real servers, by the items of the contract's section 8.
//!
//! Without the programs of `cargo xtask tools` these tests say so and pass.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy takes helpers of tests for library code"
)]

mod grpc;
mod stage;
mod vault;
