//! Reasons of Events (events.k8s.io/v1).

/// Whether someone needs to take a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventType {
    /// Everything went as expected.
    Normal,
    /// Someone may have to take a look.
    Warning,
}

impl EventType {
    /// The name in Kubernetes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

macro_rules! events {
    ($($name:ident, $kind:ident, $on:literal, $program:literal, $help:literal;)*) => {
        /// Reason of an Event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Event {
            $(#[doc = $help] $name,)*
        }

        impl Event {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The reason as text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Whether someone needs to take a look.
            pub const fn event_type(self) -> EventType {
                match self { $(Self::$name => EventType::$kind),* }
            }

            /// Kind of the object that it is about.
            pub const fn on(self) -> &'static str {
                match self { $(Self::$name => $on),* }
            }

            /// Which program reports it.
            pub const fn program(self) -> &'static str {
                match self { $(Self::$name => $program),* }
            }

            /// What happened, as one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help),* }
            }
        }
    };
}

events! {
    Installed, Normal, "TrustedExecutionCluster", "operator",
        "The cluster is fully set up.";
    NonUnique, Warning, "TrustedExecutionCluster", "operator",
        "There is another cluster object in the namespace; the older one counts.";
    DriftRepaired, Normal, "TrustedExecutionCluster", "operator",
        "An object that someone else changed or deleted was restored.";
    ApplyFailed, Warning, "TrustedExecutionCluster", "operator",
        "An object of the cluster cannot be applied.";
    PlainHttp, Warning, "TrustedExecutionCluster", "operator",
        "Servers of the cluster use plain HTTP: anyone on the network path can read disk keys.";
    UpgradeFailed, Warning, "TrustedExecutionCluster", "operator",
        "The new pods of a Deployment did not become ready in time.";
    TrusteeConverged, Normal, "TrustedExecutionCluster", "operator",
        "A Trustee is in sync again after a failure to publish to it.";
    PublishFailed, Warning, "TrustedExecutionCluster", "operator",
        "Publishing to a Trustee failed.";
    KeyCreated, Normal, "Machine", "operator",
        "The disk key of the machine was created.";
    KeyLost, Warning, "Machine", "operator",
        "The Secret with the machine's disk key is gone; no new key is created.";
    DuplicateId, Warning, "Machine", "operator",
        "Another machine has the same id, and is older.";
    UnclaimedRemoved, Normal, "Machine", "operator",
        "The machine did not get an attestation key in time.";
    UntrustedActedOn, Warning, "Machine", "operator",
        "The machine is untrusted after boot, and the actions of `spec.onUntrusted` were taken.";
    UntrustedDryRun, Warning, "Machine", "operator",
        "The machine is untrusted after boot; the message lists what would be done without `dryRun`.";
    UntrustedLimitReached, Warning, "Machine", "operator",
        "The machine is untrusted after boot, and `maxNodes` machines are acted on already.";
    UntrustedNoNode, Warning, "Machine", "operator",
        "The machine is untrusted after boot, and no Node is proven to be its own.";
    UntrustedNoRights, Warning, "Machine", "operator",
        "The machine is untrusted after boot, and the operator may not change Nodes.";
    UntrustedRestored, Normal, "Machine", "operator",
        "What was done because the machine was untrusted is undone.";
    KeyBound, Normal, "AttestationKey", "operator",
        "The key was bound to its machine.";
    KeyWaiting, Normal, "AttestationKey", "operator",
        "The key waits for its machine, for a proof, or for an admin.";
    KeyRejected, Warning, "AttestationKey", "operator",
        "The key may not be bound to its machine.";
    KeyChanged, Warning, "AttestationKey", "operator",
        "The key was edited after it was bound, and is no longer valid.";
    ComputationStarted, Normal, "ApprovedImage", "operator",
        "The measurements of the image are being computed.";
    ComputationCompleted, Normal, "ApprovedImage", "operator",
        "The measurements of the image are known.";
    ComputationFailed, Warning, "ApprovedImage", "operator",
        "The measurements of the image could not be computed.";
    ImageExpired, Normal, "ApprovedImage", "operator",
        "The approval expired.";
    ImageFollowed, Normal, "FollowedImage", "operator",
        "The tag points to a new image, which is approved once it is measured.";
    OldImageRevoked, Normal, "FollowedImage", "operator",
        "An older image was revoked: a newer one is approved, and no machine needs it.";
    FollowDryRun, Normal, "FollowedImage", "operator",
        "The message lists what would be approved and revoked without `dryRun`.";
    TagRolledBack, Warning, "FollowedImage", "operator",
        "The tag points to an image that a newer one replaced; it is not approved again.";
    FollowFailed, Warning, "FollowedImage", "operator",
        "What the tag points to is unknown, or is not approved; the message has the reason.";
    AttestationSucceeded, Normal, "Machine", "kbs-guard",
        "The machine proved what it booted, and got its key.";
    AttestationFailed, Warning, "Machine", "kbs-guard",
        "The machine did not prove what it booted; the message has the code.";
    ResourcePolicyDenied, Warning, "Machine", "kbs-guard",
        "The machine asked for a key that is not its own, or the key broker's policy refused.";
}
