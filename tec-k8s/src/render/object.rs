//! Objects of the kinds that are deployed.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use kube::core::{ApiResource, GroupVersionKind};
use serde::Serialize;

macro_rules! objects {
    ($($kind:ident),* $(,)?) => {
        /// One object to apply.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[non_exhaustive]
        pub enum Object {
            $(#[doc = concat!("A ", stringify!($kind), ".")] $kind(Box<$kind>),)*
        }

        $(impl From<$kind> for Object {
            fn from(object: $kind) -> Self {
                Self::$kind(Box::new(object))
            }
        })*

        impl Object {
            /// Group and version, as in `apps/v1`.
            pub fn api_version(&self) -> &'static str {
                match self { $(Self::$kind(_) => <$kind as Resource>::API_VERSION),* }
            }

            /// Kind, as in `Deployment`.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$kind(_) => <$kind as Resource>::KIND),* }
            }

            /// Its metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Self::$kind(object) => object.metadata()),* }
            }
        }
    };
}

objects!(
    Namespace,
    ServiceAccount,
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
    ConfigMap,
    Service,
    Deployment,
    PodDisruptionBudget,
    NetworkPolicy,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
);

impl Object {
    /// Its name; every rendered object has one.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Its kind, as a client needs it.
    pub fn resource(&self) -> ApiResource {
        let (group, version) =
            self.api_version().split_once('/').unwrap_or_else(|| ("", self.api_version()));
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, self.kind()))
    }
}
