//! Policies that release to a machine its own key and no other (Trustee, attestation service; seen with
//! Trustee v0.21).
//!
//! ```text
//! evidence ─ attestation policy ─► trust claims, extension tec.machine ─► token
//!   name of the AK (derived in Rego) ─ query_reference_value ─► {"ak", "machine"}, compared in
//! full token ─ resource policy ─► allow, if tec.machine == resource-path[1] and ear.status is
//! affirming
//! ```
//! The policies run both on an unmodified Trustee (v0.21 and later) and on the embedded KBS. They use no
//! `crypto.*` builtins, which Trustee does not have.
//!
//! ```
//! use tec_core::attest::{PinnedPcrs, Tee};
//! use tec_trustee::policy::PolicyIntent;
//! let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
//! assert!(intent.render_attestation().contains(r#"approved("tpm_pcr4", registers.pcr04)"#));
//! assert!(intent.render_resource().contains("default allow := false"));
//! # Ok::<(), tec_trustee::policy::PolicyIntentError>(())
//! ```

#[cfg(feature = "kbs")]
mod compiled;
#[cfg(feature = "kbs")]
mod engine;
#[cfg(feature = "kbs")]
mod error;
mod intent;
#[cfg(feature = "kbs")]
mod lint;
mod name;
mod read;
#[cfg(feature = "kbs")]
mod rego;
mod render;
#[cfg(test)]
#[cfg(feature = "kbs")]
mod tests;
#[cfg(feature = "kbs")]
mod verdict;

#[cfg(feature = "kbs")]
pub use self::engine::AttestationPolicy;
#[cfg(feature = "kbs")]
pub use self::engine::Evaluation;
#[cfg(feature = "kbs")]
pub use self::engine::ResourcePolicy;
#[cfg(feature = "kbs")]
pub use self::error::PolicyError;
pub use self::intent::{
    ClaimValue, MACHINE_CLAIM, PolicyIntent, PolicyIntentError, REFUSED_CLAIM, SnpRequirement,
    SnpTcb,
};
#[cfg(feature = "kbs")]
pub use self::lint::lint_attestation;
#[cfg(feature = "kbs")]
pub use self::lint::lint_resource;
pub use self::name::{SNP_MEASUREMENT, ak_reference_name, ak_reference_value, pcr_reference_name};
#[cfg(feature = "kbs")]
pub use self::verdict::TrustTier;
#[cfg(feature = "kbs")]
pub use self::verdict::Verdict;
