//! Scenarios of init, join and recovery, with the program itself: a real TPM implementation, real LUKS
//! headers, attested connections. kubeadm and systemctl are scripts that record their calls; `swtpm`,
//! `tpm2-tools`, `cryptsetup`, `util-linux` and `openssl` must be installed. Key services come from the cache
//! of `cargo xtask tools`.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

mod admin;
mod azure;
mod bad_input;
mod cluster;
mod endorse;
mod init;
mod join;
mod keys;
mod plane;
mod recover;
mod stage;
