//! Conditions: their types, reasons and schema, and how to set one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;
use schemars::{Schema, SchemaGenerator, json_schema};
use tec_core::time::Timestamp;

use super::convert::ConvertError;

/// Types of conditions (trusted-cluster-operator).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionKind {
    /// Cluster: everything is set up.
    Installed,
    /// Cluster: the address at which nodes reach the key broker is known.
    KnownTrusteeAddress,
    /// Cluster: all servers that nodes reach speak TLS.
    Tls,
    /// Cluster: the audit chain of the guard outlives its pod.
    AuditDurable,
    /// Cluster: the CA of its servers is current, or its replacement is making progress.
    CertificateAuthority,
    /// Image: its reference values are published.
    Committed,
    /// Attestation key: bound to its machine.
    Approved,
    /// Attestation key: an admin approved it.
    AdminApproved,
    /// Machine: every Trustee holds its key.
    KeyPublished,
    /// Machine: its last attempt to obtain its key succeeded.
    Attested,
    /// Cluster: every Deployment runs the intended version.
    Upgrade,
    /// Cluster: the operator changes nothing in its namespace.
    Paused,
    /// Machine: something is done because it is untrusted.
    ActedOn,
    /// Cluster: the operator acts on untrusted machines.
    ActsOnUntrusted,
    /// Followed image: the image that its tag points to is approved.
    Following,
    /// Followed image: older images that no machine needs are revoked.
    OldImagesRevoked,
    /// Any kind: everything that follows from it is done.
    Ready,
}

impl ConditionKind {
    /// The name in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Installed => "Installed",
            Self::KnownTrusteeAddress => "KnownTrusteeAddress",
            Self::Tls => "TLS",
            Self::AuditDurable => "AuditDurable",
            Self::CertificateAuthority => "CertificateAuthority",
            Self::Committed => "Committed",
            Self::Approved => "Approved",
            Self::AdminApproved => "AdminApproved",
            Self::KeyPublished => "KeyPublished",
            Self::Attested => "Attested",
            Self::Upgrade => "Upgrade",
            Self::Paused => "Paused",
            Self::ActedOn => "ActedOn",
            Self::ActsOnUntrusted => "ActsOnUntrusted",
            Self::Following => "Following",
            Self::OldImagesRevoked => "OldImagesRevoked",
            Self::Ready => "Ready",
        }
    }
}

/// Reasons of conditions (trusted-cluster-operator). Each belongs to one type and one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Everything is set up.
    InstallationCompleted,
    /// Objects are being created.
    Installing,
    /// There is another cluster object in this namespace.
    NonUnique,
    /// The object is being deleted.
    Uninstalling,
    /// The address is known.
    AddressFound,
    /// The address is not known yet.
    NoAddressFound,
    /// A further key broker in the list of the cluster object is invalid.
    InvalidAdditionalTrustee,
    /// All servers that nodes reach use TLS.
    TlsEverywhere,
    /// The cluster object asks for plain HTTP.
    DangerousPlainHttp,
    /// The cluster was installed with plain HTTP before TLS was the default; an admin must decide.
    PlainHttpUndecided,
    /// A volume claim holds the audit chain.
    VolumeClaimNamed,
    /// The audit chain is in a directory that is lost with the pod.
    NoVolumeClaim,
    /// The built-in key broker writes audit lines as Events, which expire.
    AuditInEvents,
    /// One CA signs, and nodes receive no other.
    AuthorityCurrent,
    /// Two CAs are published: one is replacing the other.
    AuthorityRolling,
    /// The next CA waits for machines that do not trust it yet.
    AuthorityHeldBack,
    /// cert-manager issues the certificates.
    CertificatesManaged,
    /// cert-manager has not issued a certificate yet.
    CertificatesPending,
    /// Reference values are published.
    ImageCommitted,
    /// Measurements are being computed.
    Computing,
    /// The reference has no digest.
    NoDigestGiven,
    /// Measurements could not be computed.
    ComputationFailed,
    /// The pod that computes them does not start.
    PodPending,
    /// The machine exists, and the key is bound to it.
    MachineCreated,
    /// The key was registered and is not bound.
    Registration,
    /// The key waits for its machine, for a proof, or for an admin.
    Waiting,
    /// The key may not be bound to its machine.
    Rejected,
    /// The key has been edited since it was bound.
    KeyChanged,
    /// Every Deployment rolled out.
    UpgradeComplete,
    /// A Deployment is rolling out; others wait for it.
    UpgradeInProgress,
    /// New pods of a Deployment did not become available in time; other Deployments wait for it.
    UpgradeFailed,
    /// The annotation `trusted-execution-clusters.io/paused` is set.
    PausedByAnnotation,
    /// The annotation was removed.
    Resumed,
    /// It was revoked.
    Revoked,
    /// The machine is quarantined: it gets no key until an admin releases it.
    Quarantined,
    /// The machine was decommissioned.
    Retired,
    /// The object cannot be parsed: a field is malformed.
    Malformed,
    /// Another, older object has the same ID.
    Duplicate,
    /// The Secret of the disk key is gone; no new one is created.
    KeyLost,
    /// No attestation key is bound to the machine yet.
    NoAttestationKey,
    /// The machine may attest, and its key is stored everywhere it is needed.
    Attestable,
    /// Every Trustee is up to date.
    Published,
    /// A Trustee is not up to date.
    Publishing,
    /// After a migration, another trust anchor approves; the message describes the role of this one.
    NoAuthority,
    /// An admin examined and approved it.
    ApprovedByAdmin,
    /// Everything is as it should be.
    AsDesired,
    /// Part of it is not done yet; the other conditions give details.
    Progressing,
    /// The approval expired.
    Expired,
    /// A child object cannot be applied.
    ApplyFailed,
    /// The operator's clock differs from the API server's.
    ClockSkewed,
    /// The machine proved what it booted, and got its key.
    AttestationSucceeded,
    /// The machine did not prove what it booted.
    AttestationFailed,
    /// The machine's request was denied.
    ResourcePolicyDenied,
    /// The machine is untrusted, and the message lists what was done.
    Untrusted,
    /// The machine is untrusted, and the message lists what a dry run would do.
    DryRun,
    /// The machine is untrusted, and as many machines as allowed are acted on already.
    LimitReached,
    /// The machine is untrusted, and no Node is proven to be its own.
    NoNode,
    /// The operator may not change Nodes.
    NoNodeRights,
    /// The machine attests well again, or the actions are switched off; what was done is undone.
    Restored,
    /// The operator acts on untrusted machines.
    Acting,
    /// spec.onUntrusted is absent.
    NoActions,
    /// The image that the tag points to is approved.
    TagFollowed,
    /// The image that the tag points to is being measured.
    Approving,
    /// The image that the tag points to cannot be approved; the message has the reason.
    ImageRefused,
    /// The tag points to an image that a newer one replaced.
    RolledBack,
    /// The image may be approved only if it is signed, and the cluster object names no keys.
    SignatureRequired,
    /// The reference is not that of a tag.
    InvalidReference,
    /// The registry cannot be reached.
    RegistryUnreachable,
    /// The registry denies access, or the pull secret cannot be used.
    RegistryDenied,
    /// The registry has no such tag.
    TagMissing,
    /// The answer of the registry cannot be used.
    TagUnreadable,
    /// Older images are not revoked yet, since machines need them.
    MachinesNeedThem,
}

impl Reason {
    /// The name in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InstallationCompleted => "InstallationCompleted",
            Self::Installing => "Installing",
            Self::NonUnique => "NonUnique",
            Self::Uninstalling => "Uninstalling",
            Self::AddressFound => "AddressFound",
            Self::NoAddressFound => "NoAddressFound",
            Self::InvalidAdditionalTrustee => "InvalidAdditionalTrustee",
            Self::TlsEverywhere => "TlsEverywhere",
            Self::DangerousPlainHttp => "DangerousPlainHttp",
            Self::PlainHttpUndecided => "PlainHttpUndecided",
            Self::VolumeClaimNamed => "VolumeClaimNamed",
            Self::NoVolumeClaim => "NoVolumeClaim",
            Self::AuditInEvents => "AuditInEvents",
            Self::AuthorityCurrent => "AuthorityCurrent",
            Self::AuthorityRolling => "AuthorityRolling",
            Self::AuthorityHeldBack => "AuthorityHeldBack",
            Self::CertificatesManaged => "CertificatesManaged",
            Self::CertificatesPending => "CertificatesPending",
            Self::ImageCommitted => "ImageCommitted",
            Self::Computing => "Computing",
            Self::NoDigestGiven => "NoDigestGiven",
            Self::ComputationFailed => "ComputationFailed",
            Self::PodPending => "PodPending",
            Self::MachineCreated => "MachineCreated",
            Self::Registration => "Registration",
            Self::Waiting => "Waiting",
            Self::Rejected => "Rejected",
            Self::KeyChanged => "KeyChanged",
            Self::UpgradeComplete => "Complete",
            Self::UpgradeInProgress => "InProgress",
            Self::UpgradeFailed => "Failed",
            Self::PausedByAnnotation => "PausedByAnnotation",
            Self::Resumed => "Resumed",
            Self::Revoked => "Revoked",
            Self::Quarantined => "Quarantined",
            Self::Retired => "Retired",
            Self::Malformed => "Malformed",
            Self::Duplicate => "Duplicate",
            Self::KeyLost => "KeyLost",
            Self::NoAttestationKey => "NoAttestationKey",
            Self::Attestable => "Attestable",
            Self::Published => "Published",
            Self::Publishing => "Publishing",
            Self::NoAuthority => "NoAuthority",
            Self::ApprovedByAdmin => "ApprovedByAdmin",
            Self::AsDesired => "AsDesired",
            Self::Progressing => "Progressing",
            Self::Expired => "Expired",
            Self::ApplyFailed => "ApplyFailed",
            Self::ClockSkewed => "ClockSkewed",
            Self::AttestationSucceeded => "AttestationSucceeded",
            Self::AttestationFailed => "AttestationFailed",
            Self::ResourcePolicyDenied => "ResourcePolicyDenied",
            Self::Untrusted => "Untrusted",
            Self::DryRun => "DryRun",
            Self::LimitReached => "LimitReached",
            Self::NoNode => "NoNode",
            Self::NoNodeRights => "NoNodeRights",
            Self::Restored => "Restored",
            Self::Acting => "Acting",
            Self::NoActions => "NoActions",
            Self::TagFollowed => "TagFollowed",
            Self::Approving => "Approving",
            Self::ImageRefused => "ImageRefused",
            Self::RolledBack => "RolledBack",
            Self::SignatureRequired => "SignatureRequired",
            Self::InvalidReference => "InvalidReference",
            Self::RegistryUnreachable => "RegistryUnreachable",
            Self::RegistryDenied => "RegistryDenied",
            Self::TagMissing => "TagMissing",
            Self::TagUnreadable => "TagUnreadable",
            Self::MachinesNeedThem => "MachinesNeedThem",
        }
    }

    /// The status that belongs to the reason.
    const fn status(self) -> &'static str {
        match self {
            Self::InstallationCompleted
            | Self::AddressFound
            | Self::TlsEverywhere
            | Self::VolumeClaimNamed
            | Self::AuthorityCurrent
            | Self::AuthorityRolling
            | Self::CertificatesManaged
            | Self::ImageCommitted
            | Self::MachineCreated
            | Self::Attestable
            | Self::Published
            | Self::ApprovedByAdmin
            | Self::AttestationSucceeded
            | Self::PausedByAnnotation
            | Self::UpgradeComplete
            | Self::Untrusted
            | Self::Acting
            | Self::TagFollowed
            | Self::AsDesired => "True",
            _ => "False",
        }
    }
}

/// Sets the condition of this type and leaves all others, known or not, as they are.
///
/// `lastTransitionTime` changes only when the status does. Setting the same condition again changes nothing.
///
/// # Errors
/// `now` is not a time that Kubernetes can represent.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: ConditionKind,
    reason: Reason,
    message: &str,
    observed_generation: Option<i64>,
    now: Timestamp,
) -> Result<(), ConvertError> {
    let now = jiff::Timestamp::from_second(now.unix_seconds())
        .map_err(|source| ConvertError::Time { source })?;
    let mut condition = Condition {
        last_transition_time: Time(now),
        message: message.to_owned(),
        observed_generation,
        reason: reason.as_str().to_owned(),
        status: reason.status().to_owned(),
        type_: kind.as_str().to_owned(),
    };
    let old = conditions.iter_mut().find(|c| c.type_ == condition.type_);
    match old {
        Some(old) => {
            if old.status == condition.status {
                condition.last_transition_time = old.last_transition_time.clone();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
    Ok(())
}

/// A list of `metav1.Condition`, merged by type; bounds and patterns match the validation markers of the Go
/// type (k8s.io/apimachinery, meta/v1, type Condition).
pub(super) fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {
                    "description": "Details for people; may be empty.",
                    "type": "string",
                    "maxLength": 32768,
                },
                "observedGeneration": {
                    "description": "The metadata.generation that was looked at.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "reason": {
                    "description": "Why the status is as it is, as one word in CamelCase.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {
                    "description": "True, False or Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "What the condition is about, in CamelCase.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
            },
        },
    })
}
