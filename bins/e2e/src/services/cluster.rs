//! The Kubernetes side: service accounts, their tokens, and how the vault verifies them.

use std::sync::Arc;

use crate::kube::{ControlPlane, Link, rules};
use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tec_services::caller::Account;

/// Audience of the tokens of the controller's callers.
pub const AUDIENCE: &str = "tec-services";
/// The shortest lifetime that the API server gives a token, in seconds (TokenRequest, since 1.22).
const TOKEN_LIFE: i64 = 600;

/// Two namespaces of a cluster: the platform, and its components.
#[derive(Debug)]
#[non_exhaustive]
pub struct Cluster {
    /// The control plane.
    pub plane: Arc<ControlPlane>,
    /// Namespace of the vault, NATS and the rest.
    pub platform: String,
    /// Namespace of components.
    pub apps: String,
    /// The vault's connection to the API server, with an account that may review tokens. In a pod, the pod
    /// itself provides both.
    pub reviews: Link,
    /// The controller's bearer token for the API server.
    pub controller_token: String,
}

/// The permissions of the controller in a namespace of components: reading the pods of its callers, and
/// updating the copy of the authorities.
///
/// The manifests grant the same permissions.
pub fn callers_rules() -> Vec<PolicyRule> {
    vec![
        rules("", &["pods"], &["get"]),
        PolicyRule {
            resource_names: Some(vec!["services-bootstrap-ca".to_owned()]),
            ..rules("", &["configmaps"], &["get", "update"])
        },
    ]
}

/// The permissions of the controller in its own namespace.
///
/// The manifests grant the same permissions.
pub fn controller_rules() -> Vec<PolicyRule> {
    vec![
        rules("", &["pods"], &["get"]),
        rules("", &["events"], &["create"]),
        rules("", &["secrets"], &["create"]),
        PolicyRule {
            resource_names: Some(vec!["vault-aes".to_owned(), "services-bootstrap-tls".to_owned()]),
            ..rules("", &["secrets"], &["get", "update"])
        },
        rules("", &["configmaps"], &["create"]),
        PolicyRule {
            resource_names: Some(vec!["services-bootstrap-ca".to_owned()]),
            ..rules("", &["configmaps"], &["get", "update"])
        },
        PolicyRule {
            resource_names: Some(vec!["nats-revocations".to_owned()]),
            ..rules("", &["configmaps"], &["get"])
        },
    ]
}

impl Cluster {
    /// Namespaces and accounts on the control plane that other tests use, too.
    pub async fn shared() -> anyhow::Result<Self> {
        Self::on(ControlPlane::shared().await?).await
    }

    /// Like [`shared`](Self::shared), on a separate control plane, which the test may freeze.
    pub async fn alone() -> anyhow::Result<Self> {
        Self::on(Arc::new(ControlPlane::start().await?)).await
    }

    async fn on(plane: Arc<ControlPlane>) -> anyhow::Result<Self> {
        let platform = plane.namespace("platform").await?;
        let apps = plane.namespace("apps").await?;
        let reviewer = plane.account_token(&platform, "vault", &[]).await?;
        may_review(&plane, &platform, "vault").await?;
        let controller_token =
            plane.account_token(&platform, "controller", &controller_rules()).await?;
        may_look_at_pods(&plane, &apps, &platform).await?;
        for name in ["nats", "opensearch", "collector", "tracer", "dashboards"] {
            plane.account_token(&platform, name, &[]).await?;
        }
        let reviews = Link::new(plane.client(&reviewer)?).await?;
        Ok(Self { plane, platform, apps, reviews, controller_token })
    }

    /// An account of the platform's namespace.
    pub fn account(&self, name: &str) -> anyhow::Result<Account> {
        Ok(Account::new(&self.platform, name)?)
    }

    /// A component: an account of its namespace, created if it does not exist.
    pub async fn component(&self, name: &str) -> anyhow::Result<Account> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.plane.admin()?, &self.apps);
        let account = ServiceAccount { metadata: named(name), ..ServiceAccount::default() };
        let manager = PatchParams::apply("tests").force();
        accounts.patch(name, &manager, &Patch::Apply(account)).await?;
        Ok(Account::new(&self.apps, name)?)
    }

    /// A token as a kubelet projects it, for the controller.
    pub async fn token(&self, account: &Account) -> anyhow::Result<String> {
        self.token_for(account, AUDIENCE).await
    }

    /// Like [`token`](Self::token), for another audience.
    pub async fn token_for(&self, account: &Account, audience: &str) -> anyhow::Result<String> {
        self.bound_token(account, audience, None).await
    }

    /// A token of an account as the kubelet projects it into a pod, which is created if it does not
    /// exist; with the addresses that a kubelet reported.
    pub async fn pod_token(
        &self,
        account: &Account,
        pod: &str,
        addresses: &[&str],
    ) -> anyhow::Result<String> {
        let uid = self.pod(account, pod, addresses).await?;
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: Some(uid),
        };
        self.bound_token(account, AUDIENCE, Some(bound)).await
    }

    async fn pod(
        &self,
        account: &Account,
        name: &str,
        addresses: &[&str],
    ) -> anyhow::Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.plane.admin()?, account.namespace());
        let manager = PatchParams::apply("tests").force();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "serviceAccountName": account.name(),
                "containers": [{"name": "component", "image": "example.com/component"}],
            },
        });
        pods.patch(name, &manager, &Patch::Apply(pod)).await?;
        let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let status = json!({"status": {
            "podIP": addresses.first().map(|first| &first["ip"]), "podIPs": addresses,
        }});
        let pod = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
        pod.metadata.uid.context("the pod has no UID")
    }

    async fn bound_token(
        &self,
        account: &Account,
        audience: &str,
        bound: Option<BoundObjectReference>,
    ) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.plane.admin()?, account.namespace());
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![audience.to_owned()],
                expiration_seconds: Some(TOKEN_LIFE),
                bound_object_ref: bound,
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(account.name(), &PostParams::default(), &request)
            .await
            .with_context(|| format!("cannot request a token of {account}"))?;
        Ok(answer.status.context("the token request has no answer")?.token)
    }
}

/// Lets the controller read the pods of a namespace of components.
async fn may_look_at_pods(plane: &ControlPlane, apps: &str, platform: &str) -> anyhow::Result<()> {
    let roles: Api<Role> = Api::namespaced(plane.admin()?, apps);
    let role = Role { metadata: named("controller"), rules: Some(callers_rules()) };
    roles.create(&PostParams::default(), &role).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(plane.admin()?, apps);
    let binding = serde_json::from_value(json!({
        "metadata": {"name": "controller"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "controller",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": platform}],
    }))?;
    bindings.create(&PostParams::default(), &binding).await?;
    Ok(())
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// Lets an account have tokens reviewed, by the role that Kubernetes has for it.
async fn may_review(plane: &ControlPlane, namespace: &str, name: &str) -> anyhow::Result<()> {
    let bindings: Api<ClusterRoleBinding> = Api::all(plane.admin()?);
    let binding = serde_json::from_value(json!({
        "metadata": {"name": format!("{namespace}-{name}-reviews-tokens")},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "system:auth-delegator",
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }))?;
    bindings.create(&PostParams::default(), &binding).await?;
    Ok(())
}
