//! The registries and the secret store of [`tec_core::port`] over a Kubernetes API server.
//!
//! ```text
//!   port                  object                     what protects it from concurrent writers
//!   MachineRegistry       Machine machine-<id>       the object's name
//!   AkRegistry::submit    AttestationKey ak-<hash>   the object's name is derived from the key
//!   AkRegistry::bind      status of the Machine      compare and swap of the resource version
//!   ImageRegistry         ApprovedImage              the object's name
//!   SecretStore           Secret <id>, entry `root`  created, immutable, never overwritten
//!                         RecoveryKey recovery-<id>-<n>  the same, for recovery keys
//!   AuditSink             Event                      -
//!   AttemptLog            AttestationRecord attempts-<id>  compare and swap; see [`AttemptRecords`]
//!   ClockLog              TpmClock clock-<hash>     compare and swap of the resource version
//!   PlatformLog           PlatformBaseline platform-<hash>, PlatformApproval  the same
//!   TrustAnchor           ConfigMap trust-authority  compare and swap of the resource version
//! ```
//! *What it is*: one value, [`KubeRegistry`], for one namespace. The cost of a method does not depend on the
//! number of objects, unless its documentation states otherwise.
//!
//! *What it is not*: a cache. Code that watches objects must read them from its watch.
//!
//! # Audit lines
//! A change with an audit line writes the line into the same object in the same request, as the annotation
//! `trusted-execution-clusters.io/audit`, or as the time of the binding. Earlier lines are in the API
//! server's log.

mod ak;
mod anchor;
mod attempt;
mod audit;
mod authority;
mod clock;
mod connect;
#[cfg(feature = "controller")]
mod disk_keys;
mod error;
mod fence;
mod image;
mod machine;
mod pages;
mod platform;
mod record;
mod recovery;
mod remembered;
mod room;
mod secret;
mod server_clock;

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Api, Client, Resource};
use tec_core::ak::Fingerprint;
use tec_core::id::ImageName;
use tec_core::port::{AuditEvent, Clock};

use self::anchor::Passes;
pub use self::anchor::{AUDIT_OF, CA_SECRET, ISSUED_AT, ISSUED_FOR, RENEW_AT, pinned_of};
pub use self::attempt::AttemptEvents;
use self::authority::Seen;
pub use self::authority::record_of;
pub use self::connect::connect;
#[cfg(feature = "controller")]
pub(crate) use self::disk_keys::ReadKey;
pub use self::error::{is_conflict, port_error};
#[cfg(feature = "server")]
pub(crate) use self::image::image_of;
pub(crate) use self::pages::metadata_pages;
pub use self::pages::{Object, list_all};
pub use self::record::{AttemptRecords, TRUSTED_AUTHORITIES, read_authorities};
pub use self::remembered::remembered_of;
use self::room::Rooms;
pub use self::secret::SECRET_KEY;
pub use self::server_clock::ServerClock;
use crate::api;

/// The last audit line about an object, JSON.
pub(crate) const AUDIT: &str = "trusted-execution-clusters.io/audit";
/// Number of attempts at a compare-and-swap when someone else is faster.
const ATTEMPTS: usize = 16;

/// Whether the text can be the name of an object at all: an RFC 1123 subdomain of at most 253 characters
/// (Kubernetes, "Object Names and IDs"). Image names follow the same rule.
pub fn is_object_name(text: &str) -> bool {
    text.parse::<ImageName>().is_ok()
}

/// Machines, attestation keys, images and disk keys of one namespace.
///
/// Several of its traits have methods with the same name. Call them through `&dyn MachineRegistry` and so on,
/// or as `MachineRegistry::find(&registry, …)`.
#[derive(Clone, derive_more::Debug)]
#[debug("KubeRegistry {{ namespace: {namespace:?}, .. }}")]
pub struct KubeRegistry {
    client: Client,
    namespace: String,
    clock: Arc<dyn Clock>,
    rooms: Arc<Rooms>,
    seen: Arc<Seen>,
    passes: Arc<Passes>,
    owner: Option<OwnerReference>,
    alias: Option<(Fingerprint, String)>,
    node_name: Option<String>,
}

impl KubeRegistry {
    /// The registries of a namespace.
    pub fn new(client: Client, namespace: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            clock,
            rooms: Arc::default(),
            seen: Arc::default(),
            passes: Arc::default(),
            owner: None,
            alias: None,
            node_name: None,
        }
    }

    /// The same registries, but new objects belong to this owner.
    #[must_use]
    pub fn owned_by(&self, owner: OwnerReference) -> Self {
        Self { owner: Some(owner), ..self.clone() }
    }

    /// The same registries, but new machines have the name of this node.
    #[must_use]
    pub fn with_node_name(&self, name: impl Into<String>) -> Self {
        Self { node_name: Some(name.into()), ..self.clone() }
    }

    /// The same registries, but an attestation key's object may have a name other than the generated one: for
    /// objects created manually, or by an older server.
    #[must_use]
    pub fn with_key_object(&self, key: Fingerprint, name: impl Into<String>) -> Self {
        Self { alias: Some((key, name.into())), ..self.clone() }
    }

    /// The clock of this registry.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Objects of one kind in the namespace of this registry.
    pub fn objects<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn machines(&self) -> Api<api::Machine> {
        self.objects()
    }

    fn keys(&self) -> Api<api::AttestationKey> {
        self.objects()
    }

    fn images(&self) -> Api<api::ApprovedImage> {
        self.objects()
    }

    /// Sets the owner, and the audit line for the creation of the object.
    fn complete(&self, metadata: &mut ObjectMeta, line: Option<&AuditEvent>) {
        if let Some(owner) = &self.owner {
            metadata.owner_references = Some(vec![owner.clone()]);
        }
        if let Some(text) = line.and_then(note) {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(AUDIT.to_owned(), text);
        }
    }
}

/// An audit line in the form of an annotation.
fn note(line: &AuditEvent) -> Option<String> {
    // Its members are text, numbers and unit variants, which JSON can always write.
    serde_json::to_string(line).ok()
}

/// Whether the API server has begun to remove the object.
fn is_terminating(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}
