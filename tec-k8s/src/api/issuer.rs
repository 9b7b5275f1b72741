//! The cert-manager issuer that a cluster object may name.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A cert-manager issuer.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CertificateIssuer {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Issuer in the same namespace, or ClusterIssuer (default Issuer).
    #[serde(default)]
    pub kind: IssuerKind,
}

/// Kinds of issuers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IssuerKind {
    /// An issuer in the namespace of the cluster object.
    #[default]
    Issuer,
    /// An issuer for all namespaces.
    ClusterIssuer,
}

impl IssuerKind {
    /// The name in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Issuer => "Issuer",
            Self::ClusterIssuer => "ClusterIssuer",
        }
    }
}
