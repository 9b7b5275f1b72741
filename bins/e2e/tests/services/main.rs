//! The services bootstrap on real servers: OpenBao, NATS, and a Kubernetes API server. A missing program
//! fails the tests; `cargo xtask tools` sets it up.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "clippy takes helpers of tests for library code"
)]

mod backup;
mod bring_up;
mod certificates;
mod copies;
mod disks;
mod events;
mod health;
mod kills;
mod logins;
mod manifests;
mod nats;
mod outage;
mod raft;
mod raft_tls;
mod rekey;
mod restore_three;
mod rotation;
mod sealed;
mod secrets;
mod signers;
mod small_disk;
mod static_seal;
mod telemetry;
mod upgrade;
mod vault;
