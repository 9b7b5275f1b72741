//! The pure domain of Trusted Execution Clusters: clusters whose nodes prove with their TPM what
//! they booted before they receive the key to their own disk.
//!
//! *What it is*: newtypes, the policies (pin generation, attestation-key matching, key generation,
//! Trustee configuration, PCR reference values, boot states), the ports to the outside, the use
//! cases over them, and the ladder of gates that explains why a boot was refused.
//!
//! *What it is not*: it reads no clock, no randomness, no files and no network, and it starts no
//! task. Those come in through [`port`]s and arguments. The exceptions are behind the features
//! `embedded` (a SQLite store), `http` (registration endpoints as tower services) and `system`
//! (clock and randomness of the host). `node` and `service`, which bootstrap nodes and a platform's
//! services, are as pure as the rest.
//!
//! ```text
//!   GET Ignition ──► flow::register ──► MachineRegistry
//!   PUT AK ────────► flow::approve ───► AkMatcher::decide ──► AkRegistry::bind (compare and swap)
//!                    flow::provision ─► LuksKeyGenerator ───► SecretStore::put_new (never twice)
//!   approve image ─► flow::publish_image ─► ImageRegistry
//!   evidence ──────► Verifier ──► attest::appraise ──► Attested ──► flow::release ──► key
//! ```
//!
//! # Example
//! Approves the first key of a machine that never had one, once:
//! ```
//! use tec_core::ak::{AkCandidate, AkDecision, AkMatcher, AkReason, PublicKey, TofuMatcher};
//! use tec_core::machine::{Machine, RegisteredBy};
//! use tec_core::time::Timestamp;
//!
//! # let pem = "-----BEGIN PUBLIC KEY-----\n\
//! # MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt\n\
//! # 6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==\n\
//! # -----END PUBLIC KEY-----\n";
//! let now = Timestamp::from_unix_seconds(1_795_000_000);
//! let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse()?;
//! let machine = Machine::unclaimed(id, RegisteredBy::FirstBoot, now);
//! let key = AkCandidate::from_node(PublicKey::from_pem(pem)?, None);
//!
//! let decision = TofuMatcher.decide(&key, Some(&machine), None, None);
//! assert_eq!(decision, AkDecision::Approve(AkReason::FirstUse));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod ak;
pub mod attest;
pub mod boot;
pub mod challenge;
pub mod code;
pub mod digest;
pub mod endpoint;
mod evidence;
pub mod explain;
mod fingerprint;
pub mod flow;
#[cfg(feature = "http")]
pub mod http;
pub mod id;
pub mod ignition;
pub mod image;
pub mod luks;
pub mod machine;
pub mod migrate;
pub mod pcr;
pub mod plan;
pub mod platform;
pub mod port;
pub mod recovery;
pub mod reference;
pub mod rollover;
pub mod rotation;
pub mod secret;
#[cfg(feature = "embedded")]
pub mod store;
#[cfg(feature = "system")]
pub mod system;
mod tee;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod text;
pub mod time;
pub mod trustee;
mod variable;
