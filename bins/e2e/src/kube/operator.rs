//! The controllers in this process, in their own namespace on a shared control plane.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::{Api, Client, Resource};
use operator::Maker;
use tec_core::luks::CompatLuksKey;
use tec_k8s::api::{
    RegistrationMode, RegistrationSpec, TrustedExecutionCluster, TrustedExecutionClusterSpec,
};
use tec_k8s::controller::{Health, Metrics, Operator, Parts};
use tec_k8s::render::{Component, Deploy, Installation};
use tec_support::SystemEntropy;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::control_plane::ControlPlane;
use super::memory_trust::{Labels, MemoryTrust, ShiftedClock, Tags};

/// Deadline for what should happen, on a machine that is also busy otherwise.
const SOON: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(50);

/// A namespace with the operator.
#[derive(Debug)]
pub struct Bench {
    /// The control plane.
    pub plane: Arc<ControlPlane>,
    /// The namespace.
    pub namespace: String,
    /// The Trustee that the operator feeds.
    pub trust: Arc<MemoryTrust>,
    /// Labels of images.
    pub labels: Arc<Labels>,
    /// Tags of images.
    pub tags: Arc<Tags>,
    /// The operator's clock.
    pub clock: ShiftedClock,
    /// Deployment settings of replicas started from now on.
    pub deploy: Deploy,
    token: String,
    running: JoinSet<anyhow::Result<()>>,
    stops: Vec<oneshot::Sender<()>>,
    metrics: Arc<Metrics>,
}

impl Bench {
    /// A new namespace without an operator.
    pub async fn new() -> anyhow::Result<Self> {
        Self::on(ControlPlane::shared().await?).await
    }

    /// Like [`new`](Self::new), on a separate control plane, which the test may break.
    pub async fn alone() -> anyhow::Result<Self> {
        let plane = Arc::new(ControlPlane::start().await?);
        plane.install_resources().await?;
        Self::on(plane).await
    }

    /// The control plane of [`alone`](Self::alone), to break it.
    pub fn plane_mut(&mut self) -> anyhow::Result<&mut ControlPlane> {
        Arc::get_mut(&mut self.plane).context("other tests use this control plane")
    }

    /// A new namespace on this control plane, which has the custom resources or gets them later.
    pub async fn on(plane: Arc<ControlPlane>) -> anyhow::Result<Self> {
        let namespace = plane.namespace("operator").await?;
        let account = Component::Operator.service_account();
        // Exactly the permissions that the packages grant.
        let rights = rights(Component::Operator)?;
        let token = plane.account_token(&namespace, account, &rights).await?;
        Ok(Self {
            plane,
            namespace,
            trust: Arc::default(),
            labels: Arc::default(),
            tags: Arc::default(),
            clock: ShiftedClock::default(),
            deploy: Deploy::default(),
            token,
            running: JoinSet::new(),
            stops: Vec::new(),
            metrics: Arc::default(),
        })
    }

    /// A new namespace with a cluster object and a running operator.
    pub async fn at_work() -> anyhow::Result<Self> {
        Self::at_work_on(&cluster("cluster")).await
    }

    /// Like [`at_work`](Self::at_work), with this cluster object.
    pub async fn at_work_on(object: &TrustedExecutionCluster) -> anyhow::Result<Self> {
        let mut bench = Self::new().await?;
        bench.create(object).await?;
        bench.start("one")?;
        Ok(bench)
    }

    /// Starts a replica.
    pub fn start(&mut self, identity: &str) -> anyhow::Result<Health> {
        self.start_over(identity, self.client()?)
    }

    /// Starts a replica that reaches the API server through this client.
    pub fn start_over(&mut self, identity: &str, client: Client) -> anyhow::Result<Health> {
        Ok(self.start_of(self.parts(identity, client)))
    }

    /// Starts a replica that compares its clock with the API server's, like the program.
    pub fn start_comparing(&mut self, identity: &str) -> anyhow::Result<Health> {
        let parts = self.parts(identity, self.client()?);
        Ok(self.start_of(parts.with_server_clock()))
    }

    fn parts(&self, identity: &str, client: Client) -> Parts {
        Parts::new(
            client,
            self.namespace.clone(),
            identity.to_owned(),
            Arc::clone(&self.trust) as _,
            Arc::clone(&self.labels) as _,
            Arc::new(Maker),
            Arc::new(self.clock.clone()),
            Arc::new(SystemEntropy),
        )
        .with_tags(Arc::clone(&self.tags) as _)
        .with_deploy(self.deploy.clone())
        .with_keys(Arc::new(CompatLuksKey))
    }

    fn start_of(&mut self, parts: Parts) -> Health {
        let operator = Operator::new(parts);
        let health = operator.health();
        self.metrics = operator.metrics();
        let (stop, stopped) = oneshot::channel();
        self.stops.push(stop);
        self.running.spawn(async move {
            let shutdown = async {
                // A dropped sender stops it, too.
                let _ = stopped.await;
            };
            Box::pin(operator.run(shutdown)).await.context("the operator ended")
        });
        health
    }

    /// /metrics of the replica started last.
    pub fn metrics(&self) -> String {
        self.metrics.render()
    }

    /// Stops all replicas, and waits for them.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.stops.clear();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Whether a replica ended by itself; each call reports one.
    pub fn take_ended(&mut self) -> bool {
        self.running.try_join_next().is_some()
    }

    /// Stops the replica that was started first.
    pub fn stop_first(&mut self) {
        if !self.stops.is_empty() {
            drop(self.stops.remove(0));
        }
    }

    /// Aborts all replicas in the middle of whatever they do.
    pub async fn kill(&mut self) {
        self.running.abort_all();
        while self.running.join_next().await.is_some() {}
        self.stops.clear();
    }

    /// A kubeconfig with the operator's permissions, for a replica that is a program.
    pub fn kubeconfig(&self, identity: &str) -> anyhow::Result<PathBuf> {
        self.kubeconfig_at(identity, &self.plane.url())
    }

    /// Like [`kubeconfig`](Self::kubeconfig), with a different URL for the API server.
    pub fn kubeconfig_at(&self, identity: &str, api_server: &str) -> anyhow::Result<PathBuf> {
        let name = format!("{}-{identity}", self.namespace);
        self.plane.kubeconfig_at(api_server, &name, &self.token)
    }

    /// A client with the operator's permissions.
    pub fn client(&self) -> anyhow::Result<Client> {
        self.plane.client(&self.token)
    }

    /// A client with all permissions.
    pub fn admin(&self) -> anyhow::Result<Client> {
        self.plane.admin()
    }

    /// Objects of the namespace, as the admin.
    pub fn objects<K>(&self) -> anyhow::Result<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Ok(Api::namespaced(self.admin()?, &self.namespace))
    }

    /// Creates an object.
    pub async fn create<K>(&self, object: &K) -> anyhow::Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let created = self.objects::<K>()?.create(&kube::api::PostParams::default(), object).await;
        Ok(created?)
    }
}

/// The permissions that the packages grant to a component.
pub fn rights(component: Component) -> anyhow::Result<Vec<PolicyRule>> {
    let name = format!("{}-role", component.service_account());
    let objects = tec_k8s::render::operator(&Installation::default());
    let rules = objects.into_iter().find_map(|object| match object {
        tec_k8s::render::Object::Role(role) if role.metadata.name.as_ref() == Some(&name) => {
            role.rules
        }
        _ => None,
    });
    rules.with_context(|| format!("the packages have no role {name}"))
}

/// A cluster object with an address.
pub fn cluster(name: &str) -> TrustedExecutionCluster {
    let mut spec = TrustedExecutionClusterSpec::default();
    spec.public_trustee_addr = Some("kbs.example:8080".to_owned());
    TrustedExecutionCluster::new(name, spec)
}

/// A cluster object that lets nodes register without a token.
#[must_use]
pub fn open(mut cluster: TrustedExecutionCluster) -> TrustedExecutionCluster {
    let mut registration = RegistrationSpec::default();
    registration.mode = RegistrationMode::Open;
    cluster.spec.registration = Some(registration);
    cluster
}

/// A cluster object with an address, whose servers speak plain HTTP.
pub fn plain_cluster(name: &str) -> TrustedExecutionCluster {
    let mut object = cluster(name);
    object.spec.dangerous_plain_http = Some(true);
    object
}

/// Waits at most three minutes until `holds` is true.
///
/// # Errors
/// The deadline passes; `what` describes the condition.
pub async fn eventually(
    what: &str,
    holds: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    within(SOON, what, holds).await
}

/// Waits until `holds` is true.
///
/// # Errors
/// The deadline passes; `what` describes the condition.
pub async fn within(
    limit: Duration,
    what: &str,
    mut holds: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let waiting = async {
        while !holds().await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    };
    let answer = tokio::time::timeout(limit, waiting).await;
    answer.with_context(|| format!("{what}: timed out after {} s", limit.as_secs()))?
}
