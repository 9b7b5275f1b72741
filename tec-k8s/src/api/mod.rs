//! The custom resources, `v1alpha1`.
//!
//! Names, fields, validation rules and condition reasons are those of existing clusters, so that
//! their objects are read and written without loss. What is added is optional: fields that existing
//! objects do not have, printer columns, short names, and the category `trusted-execution`.
//!
//! # Who says what
//! The binding of an attestation key is a fact of the *machine's* status: one object, one field, so
//! that the API server's own compare-and-swap decides between two keys. The condition `Approved` of
//! the key only tells people. A time of revocation is in the spec of what was revoked, and final.
#![expect(
    unreachable_pub,
    reason = "the derive of the schema works on a copy of each type within a block of its own"
)]

#[cfg(feature = "client")]
pub(crate) mod approval;
mod attestation_key;
mod cluster;
mod condition;
mod convert;
mod image;
mod machine;
mod policy;
mod rule;
#[cfg(test)]
mod tests;
mod tpm_clock;
mod transport;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use self::attestation_key::AttestationKey;
pub use self::attestation_key::AttestationKeySpec;
pub use self::attestation_key::AttestationKeyStatus;
pub use self::cluster::TrustedExecutionCluster;
pub use self::cluster::TrustedExecutionClusterSpec;
pub use self::cluster::TrustedExecutionClusterStatus;
pub use self::condition::ConditionKind;
pub use self::condition::Reason;
pub use self::condition::set_condition;
pub use self::convert::ConvertError;
pub use self::image::ApprovedImage;
pub use self::image::ApprovedImageSpec;
pub use self::image::ApprovedImageStatus;
pub use self::machine::BoundKey;
pub use self::machine::LastAttestation;
pub use self::machine::Machine;
pub use self::machine::MachineSpec;
pub use self::machine::MachineStatus;
pub use self::policy::ApprovalPolicy;
pub use self::policy::ApprovalSpec;
pub use self::policy::PublishMode;
pub use self::policy::PublishSpec;
pub use self::policy::PublishTarget;
pub use self::policy::REGISTRATION_TOKEN;
pub use self::policy::RegistrationMode;
pub use self::policy::RegistrationSpec;
pub use self::policy::TargetStatus;
pub use self::tpm_clock::CLOCK_OF;
pub use self::tpm_clock::TpmClock;
pub use self::tpm_clock::TpmClockSpec;
pub use self::transport::TlsServer;
pub use self::transport::Transport;

/// API group of all kinds.
pub const GROUP: &str = "trusted-execution-clusters.io";

/// Version of all kinds.
pub const VERSION: &str = "v1alpha1";

/// Field manager of everything that this project writes (upstream-operator 1.4).
pub const FIELD_MANAGER: &str = "trusted-cluster-operator";

/// Name of the ConfigMap with the record of authority of its namespace; see
/// [`tec_core::migrate::Authority`].
pub const AUTHORITY: &str = "trust-authority";

/// The definitions of all kinds, in the order in which they are best installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        TrustedExecutionCluster::crd(),
        Machine::crd(),
        ApprovedImage::crd(),
        AttestationKey::crd(),
        TpmClock::crd(),
    ]
}
