//! Trustee spoken, configured and embedded.
//!
//! *What it is*: the wire formats of the key broker service (KBS) protocol 0.4.0, the sealed header
//! of the Clevis pin, the Rego policies that bind a machine to its own key, and patching of a
//! Trustee configuration. Behind the feature `rcar` the client's side of the attestation handshake,
//! behind the feature `kbs` a small KBS with its own attestation service that other programs embed,
//! behind the feature `signer` the key and certificates that its tokens are signed with, behind the
//! feature `publish` what brings a desired state to Trustees that run elsewhere.
//!
//! *What it is not*: it knows no TPM structures. Evidence is made by an
//! [`Attester`](tec_core::port::Attester) and checked by a [`Verifier`](tec_core::port::Verifier).
//!
//! ```text
//!  RcarClient ──POST auth────────► Kbs        nonce, cookie
//!     │ Attester over report_data
//!     ├────────POST attest───────► Kbs        Verifier, Backend::admit, attestation policy → token
//!     └────────GET resource/a/b/c► Kbs        resource policy, Backend::release → JWE
//! ```
//!
//! The protocol is the KBS attestation protocol 0.4.0, as Trustee v0.14 to v0.21 and its clients
//! speak it.
//!
//! # Example
//! The policies for a Trustee that releases to each machine its own key, and no other:
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
pub mod policy;
#[cfg(feature = "publish")]
pub mod publish;
pub mod report_data;
#[cfg(feature = "signer")]
pub mod signer;
#[cfg(test)]
#[cfg(any(feature = "kbs", feature = "rcar"))]
mod testing;
#[cfg(feature = "kbs")]
pub mod token;
pub mod wire;
