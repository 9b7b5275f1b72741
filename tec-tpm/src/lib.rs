//! What a TPM reports, and whether to believe it: quotes, attestation and endorsement keys, event
//! logs, and the PCR values that boot files will produce.
//!
//! *What it is*: pure verification of what arrived over the wire ([`quote`], [`ak`], [`ek`],
//! [`event_log`]), computation of reference values ([`compute`]), and the two ports of `tec-core`
//! that belong to a TPM: [`verifier::TpmVerifier`] on the server, and on the node
//! [`tpm::TpmAttester`] over the TPM itself (`direct`, or `tss` through libtss2) or
//! `testing::SoftTpm` (feature `test-util`).
//!
//! *What it is not*: it decides nothing about approval (that is `tec_core::attest`), and with
//! default features it links neither libtss2 nor OpenSSL and reads neither a clock nor random
//! numbers.
//!
//! ```text
//!  node                                          server
//!  tpm / testing ── TpmEvidence (JSON) ──► verifier ─┬─ quote: signature, nonce, selection, digest
//!                                                    └─ event_log: folds to the quoted values
//!  read_ek ─────── EK, certificate ──────► ek ───────── certificate chain, make_credential
//!  activate_credential ◄── id object, encrypted secret ──┘
//! ```
//!
//! # Example
//! ```
//! # #[cfg(feature = "test-util")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tec_core::attest::Tee;
//! use tec_core::digest::Sha256Digest;
//! use tec_core::pcr::PcrIndex;
//! use tec_core::port::Attester;
//! use tec_core::port::EvidenceRequest;
//! use tec_core::port::Verifier;
//! use tec_tpm::testing::SoftTpm;
//! use tec_tpm::verifier::TpmVerifier;
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let tpm = SoftTpm::p256(7);
//! tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
//!
//! let report_data = [0x5a; 48];
//! let made = tpm.attest(&report_data).await?;
//! let request = EvidenceRequest::new(Tee::Tpm, &made.evidence, &report_data);
//! let verified = TpmVerifier::new().verify(request).await?;
//!
//! assert_eq!(verified.ak, tpm.public_key());
//! let booted = Sha256Digest::ZERO.extended(&Sha256Digest::of("shim"));
//! assert_eq!(verified.pcrs.value(PcrIndex::BOOT_MANAGER), &booted);
//! # Ok(())
//! # })
//! # }
//! # #[cfg(not(feature = "test-util"))]
//! # fn main() {}
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod ak;
mod bit_set;
pub mod combine;
pub mod compute;
#[cfg(feature = "direct")]
pub mod direct;
pub mod ek;
pub mod event_log;
pub mod evidence;
mod guid;
pub mod hcl;
pub mod output;
pub mod policy;
pub mod public;
pub mod quote;
pub mod snp;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
pub mod tpm;
#[cfg(feature = "tss")]
pub mod tss;
pub mod verifier;
mod wire;

pub use self::wire::WireError;
