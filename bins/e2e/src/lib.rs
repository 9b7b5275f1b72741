//! The main use case end to end, on one machine: a software TPM, real boot files, a real LUKS2 volume, the
//! real Clevis, and our own programs. The demo and the tests share them.

#![expect(
    clippy::indexing_slicing,
    reason = "only JSON values are indexed, and a member that is missing is null"
)]

pub mod admin;
pub mod anchor;
pub mod firmware;
pub mod fleet;
pub mod kube;
pub mod load;
pub mod machine;
pub mod packages;
pub mod pair;
pub mod pcr_live;
pub mod pods;
pub mod process;
pub mod qemu;
pub mod report;
pub mod runbook;
pub mod scenes;
pub mod services;
pub mod settings;
pub mod story;
pub mod systemd;
pub mod transcript;
pub mod vm;
pub mod volume;
pub mod wire;
