//! Creates namespaces with the custom resources, and service accounts with exactly the given permissions.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;

use super::control_plane::ControlPlane;

/// Deadline for the definitions to be served.
const ESTABLISHED: Duration = Duration::from_secs(30);
/// Tokens outlive every test.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

impl ControlPlane {
    /// Installs the custom resources; repeating it changes nothing.
    pub async fn install_resources(&self) -> anyhow::Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.admin()?);
        let manager = PatchParams::apply("tests").force();
        for crd in tec_k8s::api::crds() {
            let name = crd.name_any();
            crds.patch(&name, &manager, &Patch::Apply(&crd))
                .await
                .with_context(|| format!("apply {name}"))?;
            let served = await_condition(crds.clone(), &name, is_crd_established());
            tokio::time::timeout(ESTABLISHED, served)
                .await
                .with_context(|| format!("{name} is not served"))??;
        }
        Ok(())
    }

    /// A new namespace with this word in its name.
    pub async fn namespace(&self, word: &str) -> anyhow::Result<String> {
        let name = format!("{word}-{}", self.next_namespace());
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let namespaces: Api<Namespace> = Api::all(self.admin()?);
        let made = namespaces.create(&PostParams::default(), &namespace).await;
        made.with_context(|| format!("cannot create the namespace {name}"))?;
        Ok(name)
    }

    /// A bearer token of a service account. The account is created if necessary, with a Role of these rules
    /// in its namespace.
    pub async fn account_token(
        &self,
        namespace: &str,
        name: &str,
        rules: &[PolicyRule],
    ) -> anyhow::Result<String> {
        let admin = self.admin()?;
        let manager = PatchParams::apply("tests").force();
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
        let account = ServiceAccount { metadata: metadata.clone(), ..ServiceAccount::default() };
        accounts.patch(name, &manager, &Patch::Apply(account)).await?;
        let roles: Api<Role> = Api::namespaced(admin.clone(), namespace);
        let role = Role { metadata: metadata.clone(), rules: Some(rules.to_vec()) };
        roles.patch(name, &manager, &Patch::Apply(role)).await?;
        let bindings: Api<RoleBinding> = Api::namespaced(admin, namespace);
        let binding = binding(metadata, namespace, name);
        bindings.patch(name, &manager, &Patch::Apply(binding)).await?;
        self.token(namespace, name).await
    }

    /// A bearer token of an existing service account, with the permissions it has.
    pub async fn token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin()?, namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        let token = answer.status.context("the token request has no answer")?;
        Ok(token.token)
    }

    /// A kubeconfig with the token of an existing service account, as for its pods: its namespace is the
    /// default.
    pub async fn account_kubeconfig(&self, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        let token = self.token(namespace, name).await?;
        let path = self.kubeconfig(&format!("{namespace}-{name}"), &token)?;
        let mut value: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        value["contexts"][0]["context"]["namespace"] = namespace.into();
        std::fs::write(&path, value.to_string())?;
        Ok(path)
    }

    /// A client of a service account, created as in [`account_token`](Self::account_token).
    pub async fn account(
        &self,
        namespace: &str,
        name: &str,
        rules: &[PolicyRule],
    ) -> anyhow::Result<Client> {
        self.client(&self.account_token(namespace, name, rules).await?)
    }
}

fn binding(metadata: ObjectMeta, namespace: &str, name: &str) -> RoleBinding {
    RoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: name.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }]),
    }
}

/// One rule: these verbs on these resources of a group.
pub fn rules(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}
