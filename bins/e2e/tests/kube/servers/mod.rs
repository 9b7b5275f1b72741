//! The servers that nodes reach, on a real API server, with the rights that their packages give
//! them. Names begin with the number of the check (trusted-cluster-operator).
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

mod key;
mod many;
mod register;
mod tls;
mod world;
