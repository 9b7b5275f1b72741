//! The custom resources, `v1alpha1`.
//!
//! Names, fields, validation rules and condition reasons match existing clusters, so that their objects are
//! read and written without loss. Additions are optional: fields that existing objects do not have, printer
//! columns, short names, and the category `trusted-execution`.
//!
//! # Where facts are recorded
//! The binding of an attestation key is recorded in the *machine's* status: one object, one field, so that
//! the API server's own compare-and-swap decides between two keys. The condition `Approved` of the key is
//! only for people. A revocation time is in the spec of the revoked object, and is final.
#![expect(
    unreachable_pub,
    reason = "the derive of the schema works on a copy of each type within a block of its own"
)]

mod approval;
mod attestation_key;
mod attestation_record;
mod cluster;
mod condition;
mod convert;
mod evidence;
mod followed;
mod image;
mod issuer;
mod machine;
mod platform;
mod policy;
mod recovery_key;
mod rule;
#[cfg(test)]
mod tests;
mod tpm_clock;
mod transport;
mod trustee;
mod untrusted;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use self::approval::{ApprovalError, approval_matcher};
pub use self::attestation_key::{AttestationKey, AttestationKeySpec, AttestationKeyStatus};
pub use self::attestation_record::{AttestationRecord, AttestationRecordSpec, RecordedAttempt};
pub use self::cluster::{
    PinsKind, TrustedExecutionCluster, TrustedExecutionClusterSpec, TrustedExecutionClusterStatus,
};
pub use self::condition::{ConditionKind, Reason, set_condition};
pub use self::convert::ConvertError;
pub use self::evidence::{EvidenceKind, EvidenceSpec, SnpSpec, TcbSpec};
pub use self::followed::{
    FOLLOWED_BY, FollowedImage, FollowedImageSpec, FollowedImageStatus, FollowedVersion,
    MUST_BE_SIGNED, built_at, must_be_signed,
};
pub use self::image::{
    ApprovedImage, ApprovedImageSpec, ApprovedImageStatus, BootSpec, SecureBoot,
};
pub use self::issuer::{CertificateIssuer, IssuerKind};
pub use self::machine::{BoundKey, LastAttestation, Machine, MachineSpec, MachineStatus};
pub(crate) use self::platform::platform_entry;
pub use self::platform::{
    BASELINE, PLATFORM_OF, PlatformApproval, PlatformApprovalSpec, PlatformBaseline,
    PlatformBaselineSpec,
};
pub use self::policy::{
    ApprovalPolicy, ApprovalSpec, BrokerKind, CHALLENGE_KEY, ImageSignaturesSpec,
    MachineOwnerKeysSpec, PublishMode, PublishSpec, PublishTarget, REGISTRATION_TOKEN,
    RegistrationMode, RegistrationSpec, TargetStatus,
};
pub use self::recovery_key::{RecoveryKey, RecoveryKeySpec};
pub use self::tpm_clock::{CLOCK_OF, TpmClock, TpmClockSpec};
pub use self::transport::{TlsServer, Transport};
pub use self::trustee::{AdditionalTrustee, AdditionalTrusteeError};
pub use self::untrusted::{
    ActedOn, CORDONED, OnUntrustedSpec, PROTECTED_MACHINE_LABEL, UNTRUSTED_TAINT, UntrustedAction,
};

/// API group of all kinds.
pub const GROUP: &str = "trusted-execution-clusters.io";

/// Version of all kinds.
pub const VERSION: &str = "v1alpha1";

/// Field manager of everything that this project writes (trusted-cluster-operator).
pub const FIELD_MANAGER: &str = "trusted-cluster-operator";

/// Annotation: while it is `true` on a TrustedExecutionCluster, the operator changes nothing in the
/// namespace; on a Machine, an ApprovedImage or a FollowedImage, it changes nothing about that object. Revocations and
/// quarantines still take effect at the guard and the built-in key broker, which ask the API server; a
/// Trustee learns of them when the pause ends.
pub const PAUSED: &str = "trusted-execution-clusters.io/paused";

/// Label of a Kubernetes Node with the ID of the machine on which it runs. A kubelet may label its own Node as
/// it likes: the label is for display, and `spec.onUntrusted` uses it only together with the name of the Node
/// in the Machine.
pub const MACHINE_LABEL: &str = "trusted-execution-clusters.io/machine";

/// Annotation of a cluster object: the SHA-256 digest of the CA to replace. Once the CA has been replaced,
/// the annotation has no effect.
pub const REPLACE_CA: &str = "trusted-execution-clusters.io/replace-ca";
/// Annotation of a cluster object: the SHA-256 digest of the next CA, which should sign although some
/// machines do not trust it. Those machines are locked out.
pub const DANGEROUS_REPLACE_CA: &str =
    "trusted-execution-clusters.io/dangerous-replace-ca-without-reports";

/// Whether an admin paused the object.
pub fn is_paused(object: &impl kube::ResourceExt) -> bool {
    object.annotations().get(PAUSED).is_some_and(|value| value == "true")
}

/// Name of the ConfigMap with the record of authority of its namespace; see
/// [`tec_core::migrate::Authority`].
pub const AUTHORITY: &str = "trust-authority";

/// The definitions of all kinds, in the best order for installing them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        TrustedExecutionCluster::crd(),
        Machine::crd(),
        ApprovedImage::crd(),
        FollowedImage::crd(),
        AttestationKey::crd(),
        TpmClock::crd(),
        PlatformBaseline::crd(),
        PlatformApproval::crd(),
        AttestationRecord::crd(),
        RecoveryKey::crd(),
    ]
}
