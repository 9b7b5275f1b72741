//! The commands as processes, on generated files and, if available, on real ones.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

mod attest;
mod audit;
mod bundle;
mod command_line;
mod eventlog;
mod forms;
mod from_attempt;
mod image;
mod key;
mod machine;
mod mistakes;
mod node;
mod pcr;
mod platform;
mod recovery;
mod trustee;
mod world;
