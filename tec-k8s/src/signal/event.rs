//! Reasons of Events (events.k8s.io/v1).

/// Whether someone must take a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventType {
    /// It went as it should.
    Normal,
    /// Someone may have to take a look.
    Warning,
}

impl EventType {
    /// As Kubernetes writes it.
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

            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// Whether someone must take a look.
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
        "Everything of the cluster is set up.";
    NonUnique, Warning, "TrustedExecutionCluster", "operator",
        "Another cluster object is in the namespace; the older one counts.";
    DriftRepaired, Normal, "TrustedExecutionCluster", "operator",
        "An object that somebody else changed or deleted was put right.";
    ApplyFailed, Warning, "TrustedExecutionCluster", "operator",
        "An object of the cluster cannot be applied.";
    PlainHttp, Warning, "TrustedExecutionCluster", "operator",
        "Servers of the cluster speak plain HTTP: everyone on the network path reads disk keys.";
    UpgradeFailed, Warning, "TrustedExecutionCluster", "operator",
        "The new pods of a Deployment did not become ready in time.";
    TrusteeConverged, Normal, "TrustedExecutionCluster", "operator",
        "A Trustee that could not be published to holds what it should again.";
    PublishFailed, Warning, "TrustedExecutionCluster", "operator",
        "A Trustee could not be brought to what it should hold.";
    KeyCreated, Normal, "Machine", "operator",
        "The key of the machine's disk was made.";
    KeyLost, Warning, "Machine", "operator",
        "The Secret with the key of the machine's disk is gone; no other key is made.";
    DuplicateId, Warning, "Machine", "operator",
        "Another machine has the same id, and is older.";
    UnclaimedRemoved, Normal, "Machine", "operator",
        "The machine never got an attestation key in time.";
    KeyBound, Normal, "AttestationKey", "operator",
        "The key was bound to its machine.";
    KeyWaiting, Normal, "AttestationKey", "operator",
        "The key waits for its machine, for a proof, or for an admin.";
    KeyRejected, Warning, "AttestationKey", "operator",
        "The key may not be bound to its machine.";
    KeyChanged, Warning, "AttestationKey", "operator",
        "The key was edited after it was bound, and counts no more.";
    ComputationStarted, Normal, "ApprovedImage", "operator",
        "What booting the image measures is being computed.";
    ComputationCompleted, Normal, "ApprovedImage", "operator",
        "What booting the image measures is known.";
    ComputationFailed, Warning, "ApprovedImage", "operator",
        "What booting the image measures could not be computed.";
    ImageExpired, Normal, "ApprovedImage", "operator",
        "The approval ended by itself.";
    AttestationSucceeded, Normal, "Machine", "kbs-guard",
        "The machine proved what it booted, and got its key.";
    AttestationFailed, Warning, "Machine", "kbs-guard",
        "The machine did not prove what it booted; the message has the code.";
    ResourcePolicyDenied, Warning, "Machine", "kbs-guard",
        "The machine asked for a key that is not its own, or the key broker's policy refused.";
}
