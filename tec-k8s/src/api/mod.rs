//! The custom resources, `v1alpha1`.
//!
//! Names, fields, validation rules and condition reasons are those of existing clusters, so that
//! their objects are read and written without loss. What is added touches only how the objects are
//! shown: printer columns, short names, and the category `trusted-execution`.
#![expect(
    unreachable_pub,
    reason = "the derive of the schema works on a copy of each type within a block of its own"
)]

mod attestation_key;
mod cluster;
mod condition;
mod convert;
mod image;
mod machine;
mod rule;
#[cfg(test)]
mod tests;

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
pub use self::machine::Machine;
pub use self::machine::MachineSpec;
pub use self::machine::MachineStatus;

/// API group of all kinds.
pub const GROUP: &str = "trusted-execution-clusters.io";

/// Version of all kinds.
pub const VERSION: &str = "v1alpha1";

/// The definitions of all kinds, in the order in which they are best installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        TrustedExecutionCluster::crd(),
        Machine::crd(),
        ApprovedImage::crd(),
        AttestationKey::crd(),
    ]
}
