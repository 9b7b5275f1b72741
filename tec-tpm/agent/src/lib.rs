//! The node's half of attestation: its attestation key, the registration of that key, and the passphrases of
//! its disks, sealed with keys that servers release.
//!
//! *What it is*: the composition of `tec_tpm::direct` (the TPM), `tec_trustee::client` (the key broker) and
//! `tec_trustee::clevis` (the sealed passphrase), as the Clevis pin `trustee` of `node-agent` and programs of
//! your own use it.
//!
//! *What it is not*: a place where decisions are made. Servers decide, and return a code and an attempt. It
//! chooses no TLS provider, prints nothing, and knows no exit code.
//!
//! ```text
//! first boot   pin::encrypt ─► AK ─► PUT /register-ak ─► RCAR ─► key ─► seal ─► JWE
//! later boots  pin::decrypt ◄── JWE ─► RCAR ─► key ─► open ─► passphrase
//! ```
//!
//! A program that registers the key of its machine, and opens what was sealed for it:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tec_agent::{Settings, key, pin};
//! # use tec_core::port::Entropy;
//! use tec_core::system::SystemEntropy;
//!
//! # async fn example(machine: tec_core::id::MachineId, sealed: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings::new(Arc::new(rustls::crypto::ring::default_provider()));
//! // Once, on the first boot.
//! let url = "https://register.example/register-ak";
//! key::register(&settings, url, machine, None, &SystemEntropy).await?;
//! // On every boot. The error is what the console of the node should show.
//! let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
//! let opened = pin::decrypt(&settings, sealed, &entropy).await;
//! let passphrase = opened.map_err(|report| report.to_string())?;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
pub mod disk;
pub mod failure;
pub mod fetch;
pub mod kbs;
pub mod kept;
pub mod key;
pub mod machine;
pub mod pin;
pub mod rebind;
pub mod recovery;
pub mod refresh;
pub mod register;
pub mod report;
pub mod rotate;
pub mod settings;
mod stopwatch;
pub mod tpm;

pub use self::settings::Settings;
