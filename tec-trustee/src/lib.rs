//! Trustee as a library: its protocol, its configuration, and an embeddable key broker.
//!
//! *What it is*: the wire formats of the key broker service (KBS) protocol 0.4.0, the sealed header of the
//! Clevis pin, the Rego policies that bind a machine to its own key, and patching of a Trustee configuration.
//! The feature `rcar` adds the client side of the attestation handshake, `kbs` a small KBS with its own
//! attestation service for other programs to embed, `signer` the key and certificates that sign its tokens,
//! and `publish` the reconciliation of Trustees that run elsewhere.
//!
//! *What it is not*: it knows no TPM structures. An [`Attester`](tec_core::port::Attester) creates the
//! evidence and a [`Verifier`](tec_core::port::Verifier) checks it.
//!
//! ```text
//!  RcarClient ──POST auth────────► Kbs        nonce, cookie
//!     │ Attester over report_data
//!     ├────────POST attest───────► Kbs        Verifier, Backend::admit, attestation policy → token
//!     └────────GET resource/a/b/c► Kbs        resource policy, Backend::release → JWE
//! ```
//!
//! The protocol is the KBS attestation protocol 0.4.0 as spoken by Trustee v0.14 to v0.21 and its clients.
//!
//! # Example
//! The policies for a Trustee that releases to each machine its own key and no other:
//! ```
//! use tec_core::attest::{PinnedPcrs, Tee};
//! use tec_trustee::policy::PolicyIntent;
//!
//! let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
//! let (attestation, resource) = (intent.render_attestation(), intent.render_resource());
//! assert!(attestation.contains("tpm_pcr4"));
//! assert!(resource.contains("default allow := false"));
//! # Ok::<(), tec_trustee::policy::PolicyIntentError>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod authority;
pub mod clevis;
#[cfg(feature = "rcar")]
pub mod client;
pub mod config;
#[cfg(feature = "guard")]
pub mod guard;
pub mod jwe;
#[cfg(feature = "kbs")]
mod jwt;
#[cfg(feature = "kbs")]
pub mod kbs;
pub mod next_boot;
pub mod policy;
#[cfg(feature = "publish")]
pub mod publish;
pub mod report_data;
pub mod rotation;
#[cfg(feature = "signer")]
pub mod signer;
#[cfg(test)]
#[cfg(any(feature = "kbs", feature = "rcar"))]
mod testing;
#[cfg(feature = "kbs")]
pub mod token;
pub mod wire;
