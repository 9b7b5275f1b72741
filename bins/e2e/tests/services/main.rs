//! The services bootstrap on real servers, by the items of the contract's section 8: OpenBao, NATS, and
//! a Kubernetes API server. A program that is missing fails the tests; `cargo xtask tools` sets it up.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "clippy takes helpers of tests for library code"
)]

mod item_1;
mod item_2;
mod item_3;
mod item_4;
mod item_5;
mod item_6;
mod item_6_raft;
mod item_7;
mod item_8;
mod manifests;
mod secrets;
mod section_3;
mod section_4;
mod section_4_health;
mod section_6;
mod vault;
