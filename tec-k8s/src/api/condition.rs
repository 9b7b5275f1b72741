//! Conditions: their types, reasons and schema, and how to set one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;
use schemars::{Schema, SchemaGenerator, json_schema};
use tec_core::time::Timestamp;

use super::convert::ConvertError;

macro_rules! words {
    ($(#[$docs:meta])* $words:ident: $($name:ident $(= $text:literal)?, $help:literal;)*) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $words {
            $(#[doc = $help] $name,)*
        }

        impl $words {
            /// The name in objects.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => word!($name $($text)?)),* }
            }
        }
    };
}

macro_rules! word {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $text:literal) => {
        $text
    };
}

macro_rules! reasons {
    ($($name:ident $(= $text:literal)?, $status:ident, $help:literal;)*) => {
        words! {
            /// Reasons of conditions (trusted-cluster-operator). Each belongs to one type and one status.
            Reason: $($name $(= $text)?, $help;)*
        }

        impl Reason {
            /// The status that belongs to the reason.
            const fn status(self) -> &'static str {
                match self { $(Self::$name => stringify!($status)),* }
            }
        }
    };
}

words! {
    /// Types of conditions (trusted-cluster-operator).
    ConditionKind:
    Installed, "Cluster: everything is set up.";
    KnownTrusteeAddress, "Cluster: the address at which nodes reach the key broker is known.";
    Tls = "TLS", "Cluster: all servers that nodes reach speak TLS.";
    AuditDurable, "Cluster: the audit chain of the guard outlives its pod.";
    CertificateAuthority,
        "Cluster: the CA of its servers is current, or its replacement is making progress.";
    Committed, "Image: its reference values are published.";
    Approved, "Attestation key: bound to its machine.";
    AdminApproved, "Attestation key: an admin approved it.";
    KeyPublished, "Machine: every Trustee holds its key.";
    Attested, "Machine: its last attempt to obtain its key succeeded.";
    Upgrade, "Cluster: every Deployment runs the intended version.";
    Paused, "Cluster: the operator changes nothing in its namespace.";
    ActedOn, "Machine: something is done because it is untrusted.";
    ActsOnUntrusted, "Cluster: the operator acts on untrusted machines.";
    Following, "Followed image: the image that its tag points to is approved.";
    OldImagesRevoked, "Followed image: older images that no machine needs are revoked.";
    Ready, "Any kind: everything that follows from it is done.";
}

reasons! {
    InstallationCompleted, True, "Everything is set up.";
    Installing, False, "Objects are being created.";
    NonUnique, False, "There is another cluster object in this namespace.";
    Uninstalling, False, "The object is being deleted.";
    AddressFound, True, "The address is known.";
    NoAddressFound, False, "The address is not known yet.";
    InvalidAdditionalTrustee, False,
        "A further key broker in the list of the cluster object is invalid.";
    TlsEverywhere, True, "All servers that nodes reach use TLS.";
    DangerousPlainHttp, False, "The cluster object asks for plain HTTP.";
    PlainHttpUndecided, False,
        "The cluster was installed with plain HTTP before TLS was the default; an admin must decide.";
    VolumeClaimNamed, True, "A volume claim holds the audit chain.";
    NoVolumeClaim, False, "The audit chain is in a directory that is lost with the pod.";
    AuditInEvents, False, "The built-in key broker writes audit lines as Events, which expire.";
    AuthorityCurrent, True, "One CA signs, and nodes receive no other.";
    AuthorityRolling, True, "Two CAs are published: one is replacing the other.";
    AuthorityHeldBack, False, "The next CA waits for machines that do not trust it yet.";
    CertificatesManaged, True, "cert-manager issues the certificates.";
    CertificatesPending, False, "cert-manager has not issued a certificate yet.";
    ImageCommitted, True, "Reference values are published.";
    Computing, False, "Measurements are being computed.";
    NoDigestGiven, False, "The reference has no digest.";
    ComputationFailed, False, "Measurements could not be computed.";
    PodPending, False, "The pod that computes them does not start.";
    MachineCreated, True, "The machine exists, and the key is bound to it.";
    Registration, False, "The key was registered and is not bound.";
    Waiting, False, "The key waits for its machine, for a proof, or for an admin.";
    Rejected, False, "The key may not be bound to its machine.";
    KeyChanged, False, "The key has been edited since it was bound.";
    UpgradeComplete = "Complete", True, "Every Deployment rolled out.";
    UpgradeInProgress = "InProgress", False, "A Deployment is rolling out; others wait for it.";
    UpgradeFailed = "Failed", False,
        "New pods of a Deployment did not become available in time; other Deployments wait for it.";
    PausedByAnnotation, True, "The annotation `trusted-execution-clusters.io/paused` is set.";
    Resumed, False, "The annotation was removed.";
    Revoked, False, "It was revoked.";
    Quarantined, False, "The machine is quarantined: it gets no key until an admin releases it.";
    Retired, False, "The machine was decommissioned.";
    Malformed, False, "The object cannot be parsed: a field is malformed.";
    Duplicate, False, "Another, older object has the same ID.";
    KeyLost, False, "The Secret of the disk key is gone; no new one is created.";
    NoAttestationKey, False, "No attestation key is bound to the machine yet.";
    Attestable, True, "The machine may attest, and its key is stored everywhere it is needed.";
    Published, True, "Every Trustee is up to date.";
    Publishing, False, "A Trustee is not up to date.";
    NoAuthority, False,
        "After a migration, another trust anchor approves; the message describes the role of this one.";
    ApprovedByAdmin, True, "An admin examined and approved it.";
    AsDesired, True, "Everything is as it should be.";
    Progressing, False, "Part of it is not done yet; the other conditions give details.";
    Expired, False, "The approval expired.";
    ApplyFailed, False, "A child object cannot be applied.";
    ClockSkewed, False, "The operator's clock differs from the API server's.";
    AttestationSucceeded, True, "The machine proved what it booted, and got its key.";
    AttestationFailed, False, "The machine did not prove what it booted.";
    ResourcePolicyDenied, False, "The machine's request was denied.";
    Untrusted, True, "The machine is untrusted, and the message lists what was done.";
    DryRun, False, "The machine is untrusted, and the message lists what a dry run would do.";
    LimitReached, False,
        "The machine is untrusted, and as many machines as allowed are acted on already.";
    NoNode, False, "The machine is untrusted, and no Node is proven to be its own.";
    NoNodeRights, False, "The operator may not change Nodes.";
    Restored, False,
        "The machine attests well again, or the actions are switched off; what was done is undone.";
    Acting, True, "The operator acts on untrusted machines.";
    NoActions, False, "spec.onUntrusted is absent.";
    TagFollowed, True, "The image that the tag points to is approved.";
    Approving, False, "The image that the tag points to is being measured.";
    ImageRefused, False,
        "The image that the tag points to cannot be approved; the message has the reason.";
    RolledBack, False, "The tag points to an image that a newer one replaced.";
    SignatureRequired, False,
        "The image may be approved only if it is signed, and the cluster object names no keys.";
    InvalidReference, False, "The reference is not that of a tag.";
    RegistryUnreachable, False, "The registry cannot be reached.";
    RegistryDenied, False, "The registry denies access, or the pull secret cannot be used.";
    TagMissing, False, "The registry has no such tag.";
    TagUnreadable, False, "The answer of the registry cannot be used.";
    MachinesNeedThem, False, "Older images are not revoked yet, since machines need them.";
}

/// Sets the condition of this type and leaves all others, known or not, as they are.
///
/// `lastTransitionTime` changes only when the status does. Setting the same condition again changes nothing.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: ConditionKind,
    reason: Reason,
    message: &str,
    observed_generation: Option<i64>,
    now: Timestamp,
) -> Result<(), ConvertError> {
    let now = jiff::Timestamp::from_second(now.unix_seconds()).map_err(ConvertError::Time)?;
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
