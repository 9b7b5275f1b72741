//! The built-in key broker: stateless replicas that read the objects of the cluster themselves.
//!
//! ```text
//! kbs-service:8080 ─► key-broker 0.0.0.0:8080 (TLS), N replicas ─► API server
//!                          session key, token signer: mounted Secrets, the same for all
//! ```

use tec_core::boot::Pins;
use tec_core::digest::Sha256Digest;

use super::meta::Owner;
use super::name::{
    BROKER_SESSION, BROKER_SESSION_KEY, Component, KBS_PORT, KBS_SERVICE, TRUSTEE_SIGNER,
};
use super::pod::{Missing, TLS_DIR, pcrs_argument};
use super::server::{Mounted, Server, Source, server};
use super::trustee::PORT_NAME;
use super::{Deploy, Object, RelatedImage, RenderError, TrusteeFiles, network};
use crate::api::{BrokerKind, EvidenceSpec, TlsServer, TrustedExecutionCluster};

/// Replicas of the broker, unless the cluster object sets another number.
const REPLICAS: i32 = 2;

/// The signer of attestation tokens.
const SIGNER: Mounted = Mounted {
    volume: TRUSTEE_SIGNER,
    dir: "/etc/token-signer",
    key: "tls.key",
    flag: "--signer-key",
    source: Source::Secret(Missing::Waits),
};
/// Key that replicas share, so that any of them can continue a session.
const SESSION: Mounted = Mounted {
    volume: BROKER_SESSION,
    dir: "/etc/broker-session",
    key: BROKER_SESSION_KEY,
    flag: "--session-key",
    source: Source::Secret(Missing::Waits),
};

/// Content that the replicas read at startup. None of it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuiltinFiles {
    /// Certificate of the token signer, PEM: replicas restart when it changes.
    pub signer_certificate: String,
}

impl BuiltinFiles {
    /// Uses this certificate.
    pub fn new(signer_certificate: impl Into<String>) -> Self {
        Self { signer_certificate: signer_certificate.into() }
    }
}

/// What the key broker starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerFiles {
    /// Trustee.
    Trustee(TrusteeFiles),
    /// The built-in one.
    Builtin(BuiltinFiles),
}

impl BrokerFiles {
    /// The kind of key broker that they are for.
    pub fn kind(&self) -> BrokerKind {
        match self {
            Self::Trustee(_) => BrokerKind::Trustee,
            Self::Builtin(_) => BrokerKind::Builtin,
        }
    }
}

/// Deployment, Service for metrics, disruption budget and network policy of the built-in key broker. The
/// controller must create the Secrets [`BROKER_SESSION`] and [`TRUSTEE_SIGNER`], since they need randomness.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn key_broker(
    cluster: &TrustedExecutionCluster,
    deploy: &Deploy,
    files: &BuiltinFiles,
) -> Result<Vec<Object>, RenderError> {
    let broker = Server {
        component: Component::KeyBroker,
        image: RelatedImage::KeyBroker,
        port: KBS_PORT,
        tls: cluster.tls_secret(TlsServer::KeyBroker),
        mounted: vec![(SIGNER, TRUSTEE_SIGNER), (SESSION, BROKER_SESSION)],
        replicas: cluster.spec.key_broker_replicas.unwrap_or(REPLICAS),
        more: arguments(cluster, deploy),
        // The same as Trustee and guard together.
        resources: ("100m", "64Mi", "512Mi"),
        files: Some(Sha256Digest::of(&files.signer_certificate)),
    };
    server(cluster, deploy, &broker)
}

/// Which parts of a boot are checked, and in which evidence.
fn arguments(cluster: &TrustedExecutionCluster, deploy: &Deploy) -> Vec<String> {
    let pins = match deploy.pins {
        Pins::Exactly(pinned) => Some(pcrs_argument(pinned.iter())),
        Pins::Predicted => None,
    };
    let ca = cluster.tls_secret(TlsServer::KeyBroker);
    let ca = ca.map(|_| format!("--ca-path={TLS_DIR}/ca.crt"));
    let evidence = cluster.spec.evidence.iter().flat_map(EvidenceSpec::arguments);
    ca.into_iter().chain(pins).chain(evidence).collect()
}

/// The Service at which nodes reach the key broker: the pods of this kind.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn broker_service(
    cluster: &TrustedExecutionCluster,
    kind: BrokerKind,
) -> Result<Object, RenderError> {
    let component = component_of(kind);
    // Labels stay the same as in existing clusters.
    let metadata = Owner::new(cluster)?.metadata(KBS_SERVICE, Component::Trustee);
    let port = cluster.spec.trustee_kbs_port.unwrap_or_else(|| KBS_PORT.into());
    Ok(network::service(metadata, component, PORT_NAME, port, KBS_PORT).into())
}

/// The program behind a kind of key broker.
pub fn component_of(kind: BrokerKind) -> Component {
    match kind {
        BrokerKind::Trustee => Component::Trustee,
        BrokerKind::Builtin => Component::KeyBroker,
    }
}
