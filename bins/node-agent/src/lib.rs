//! The node's program: creates and registers the attestation key, and is the Clevis pin `trustee`.
//!
//! *What it is*: the composition of `tec_tpm::direct` (the TPM), `tec_trustee::client` (the key broker) and
//! `tec_trustee::clevis` (the sealed passphrase) behind the command lines that Clevis and people use.
//!
//! *What it is not*: a place where decisions are made. Servers decide, and return a code and an attempt.
//!
//! ```text
//! first boot   clevis luks bind ─► encrypt ─► AK ─► PUT /register-ak ─► RCAR ─► key ─► seal ─► JWE
//! later boots  clevis luks unlock ─► decrypt ◄── JWE ─► RCAR ─► key ─► open ─► passphrase
//! ```

pub mod attest;
pub mod backoff;
pub mod cli;
pub mod disk;
pub mod failure;
pub mod fetch;
pub mod kbs;
pub mod key;
pub mod links;
pub mod machine;
pub mod next_boot;
mod output;
pub mod pin;
pub mod rebind;
pub mod recovery;
pub mod refresh;
pub mod register;
pub mod report;
pub mod rotate;
pub mod settings;
mod stopwatch;
pub mod stream;
pub mod succeed;
pub mod tpm;
