//! The reason for a refusal, as a machine-readable word.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Name of the header with the word, sent with a status.
const HEADER: &str = "tec-reason";

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Why a call was refused. The word is in the header `tec-reason` of the answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
        #[display("{}", self.as_str())]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

reasons! {
    /// The init secret does not match the node's.
    InitSecret = "init-secret";
    /// The master secret was sent in its older field, without a key in `kms_uri`.
    MasterSecret = "master-secret";
    /// `kms_uri` is invalid or not supported.
    KmsUri = "kms-uri";
    /// `storage_uri` is invalid or not supported.
    StorageUri = "storage-uri";
    /// Another field of the message is invalid.
    Member = "member";
    /// The node's settings do not list the key service or the store.
    UnlistedKeyService = "unlisted-key-service";
    /// The key service cannot be used.
    KeyService = "key-service";
    /// The node is in a cluster, or about to be.
    AlreadyActivated = "already-activated";
    /// A precondition is not met; nothing was changed.
    NotPrepared = "not-prepared";
    /// The cluster exists, but its kubeconfig cannot be read.
    Kubeconfig = "kubeconfig";
    /// The keys do not open the disk.
    WrongKey = "wrong-key";
    /// The disk cannot be read.
    Disk = "disk";
    /// Other keys opened the disk in the meantime.
    AlreadyRecovering = "already-recovering";
    /// The caller did not attest.
    NotAttested = "not-attested";
    /// The certificate request is invalid.
    CertificateRequest = "certificate-request";
    /// The node may not have what it asks for.
    NotAdmitted = "not-admitted";
    /// Another node has the name that it asks for.
    NameTaken = "name-taken";
    /// The node's key waits for an admin's approval.
    AwaitsApproval = "awaits-approval";
    /// An endorsement key must vouch for the node: the settings or the approval policy require it.
    NeedsEndorsementKey = "needs-endorsement-key";
    /// The node's endorsement key is refused, or not proven.
    EndorsementKey = "endorsement-key";
    /// The node's control plane ticket is refused.
    ControlPlaneTicket = "control-plane-ticket";
    /// The node's object exists: it has its certificate.
    AlreadyMember = "already-member";
    /// Another node is being admitted or joins at the same time.
    Busy = "busy";
    /// The registry of members cannot be used.
    Registry = "registry";
    /// The registry of members has no room for another one.
    MembersFull = "members-full";
    /// A part of the ticket cannot be created.
    Ticket = "ticket";
    /// The server has a defect.
    Defect = "defect";
}

impl Reason {
    /// The reason of a refusal, if its server sent one.
    pub fn of(status: &Status) -> Option<Self> {
        let word = status.metadata().get(HEADER)?.to_str().ok()?;
        Self::ALL.iter().copied().find(|one| one.as_str() == word)
    }

    pub(super) fn status(self, code: Code, sentence: impl Into<String>) -> Status {
        let mut status = Status::new(code, sentence);
        let word = MetadataValue::from_static(self.as_str());
        status.metadata_mut().insert(HEADER, word);
        status
    }
}
