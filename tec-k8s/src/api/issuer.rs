//! The issuer of cert-manager that a cluster object may name.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An issuer of cert-manager.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CertificateIssuer {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Issuer of the same namespace, or ClusterIssuer (default Issuer).
    #[serde(default)]
    pub kind: IssuerKind,
}

/// Kinds of issuers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(clippy::exhaustive_enums, reason = "cert-manager has these two")]
pub enum IssuerKind {
    /// In the namespace of the cluster object.
    #[default]
    Issuer,
    /// For all namespaces.
    ClusterIssuer,
}

impl IssuerKind {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Issuer => "Issuer",
            Self::ClusterIssuer => "ClusterIssuer",
        }
    }
}
