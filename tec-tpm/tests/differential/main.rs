//! Differential tests: what this crate says about boot files and event logs against what
//! independent tools say. A tool that is missing fails its test; `cargo xtask tools` installs all.
//!
//! | tool | compared |
//! |---|---|
//! | pesign | Authenticode digests, SHA-256 and SHA-1 |
//! | osslsigncode | Authenticode digests of signed files |
//! | sbsign, sbverify | the digest that a fresh signature signs |
//! | `tpm2_eventlog` | events in order, replayed registers of all banks |
//! | systemd-measure | PCR 11 of unified kernel images in all banks |
//!
//! Inputs: files and logs that are generated here, the logs of `tests/boots`, Debian's boot files from
//! `TEC_IMAGES` or the cache of `cargo xtask tools`, and what the folder `TEC_FIXTURES` adds.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is test code, its helper functions too"
)]

mod authenticode;
mod event_log;
mod input;
mod tool;
mod uki;
