//! The servers in their other form: the operator and what it deploys, on a real API server.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::id::MachineId;
use tec_k8s::api::{
    ApprovedImage, ApprovedImageSpec, Machine, TrustedExecutionCluster, TrustedExecutionClusterSpec,
};
use tec_k8s::render::Component;
use tokio::runtime::Runtime;

use super::stage::HOST;
use crate::kube::{Bench, Broker, Guarded, Server, eventually, open};

/// Path of the config for new nodes on the register server (docs/reference/http.md).
const CONFIG: &str = "ignition-clevis-pin-trustee";

/// Everything that a cluster runs for nodes, as processes of this host; the key broker is embedded, and fed
/// through its admin API like a Trustee.
#[derive(Debug)]
pub(super) struct Cluster {
    register: Server,
    _keys: Server,
    _operator: Guarded,
    broker: Broker,
    bench: Bench,
    runtime: Runtime,
}

impl Cluster {
    /// Starts everything in a new namespace.
    pub(super) fn start() -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (bench, broker, operator, keys, register) = runtime.block_on(async {
            let bench = Bench::alone().await?;
            let broker = Broker::start(1).await?;
            bench.create(&broker.admin_secret()).await?;
            let server = async |component| {
                Server::start(&bench.plane, component, &bench.namespace, &[]).await
            };
            let keys = server(Component::AttestationKeyRegister).await?;
            bench.create(&cluster(&broker, &keys)).await?;
            let flags = ["--trustee-url", broker.url()];
            let operator = bench.start_program("one", &flags)?;
            let register = server(Component::RegisterServer).await?;
            anyhow::Ok((bench, broker, operator, keys, register))
        })?;
        Ok(Self { register, _keys: keys, _operator: operator, broker, bench, runtime })
    }

    /// Approves an image; writes the output of `tec pcr compute` in place of the Job.
    pub(super) fn approve(&self, name: &str, label: &Path) -> anyhow::Result<()> {
        let label: Value = serde_json::from_slice(&fs::read(label)?)?;
        let mut spec = ApprovedImageSpec::default();
        spec.image = format!("registry.example/os@sha256:{:064x}", 1);
        let status = Patch::Merge(json!({ "status": { "pcrs": label["pcrs"] } }));
        self.runtime.block_on(async {
            self.bench.create(&ApprovedImage::new(name, spec)).await?;
            let images = self.bench.objects::<ApprovedImage>()?;
            images.patch_status(name, &PatchParams::default(), &status).await?;
            Ok(())
        })
    }

    /// The config with which a node requests its own config.
    pub(super) fn merge(&self) -> Value {
        let source = format!("http://{}/{CONFIG}", for_nodes(&self.register.address));
        json!({"ignition": {
            "version": "3.6.0",
            "config": { "merge": [{ "source": source }] },
        }})
    }

    /// The key broker, as announced to nodes.
    pub(super) fn kbs(&self) -> String {
        format!("http://{}", broker_for_nodes(&self.broker))
    }

    /// Flags of `tec migrate` that name this cluster as the target.
    pub(super) fn as_target(&self) -> anyhow::Result<[String; 2]> {
        let kubeconfig = self.bench.plane.admin_kubeconfig()?;
        Ok([
            format!("--to-namespace={}", self.bench.namespace),
            format!("--to-kubeconfig={}", kubeconfig.display()),
        ])
    }

    /// Waits until the key broker has a machine's key.
    pub(super) fn has_key(&self, id: &MachineId) -> anyhow::Result<()> {
        self.runtime.block_on(eventually("the broker has the key", async || {
            Ok(self.broker.key(id).await.is_some())
        }))
    }

    /// Deletes a machine, and waits until the key broker no longer has its key.
    pub(super) fn delete(&self, id: &MachineId) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            let machines = self.bench.objects::<Machine>()?;
            let name = Machine::name_of(id);
            machines
                .delete(&name, &DeleteParams::default())
                .await
                .with_context(|| format!("cannot delete {name}"))?;
            eventually("the broker has lost the key", async || {
                Ok(self.broker.key(id).await.is_none())
            })
            .await
        })
    }
}

fn cluster(broker: &Broker, keys: &Server) -> TrustedExecutionCluster {
    let mut spec = TrustedExecutionClusterSpec::default();
    spec.dangerous_plain_http = Some(true);
    spec.public_trustee_addr = Some(broker_for_nodes(broker));
    spec.public_attestation_key_register_addr = Some(for_nodes(&keys.address));
    open(TrustedExecutionCluster::new("cluster", spec))
}

fn broker_for_nodes(broker: &Broker) -> String {
    for_nodes(broker.url().trim_start_matches("http://"))
}

/// A loopback address, as reached by machines.
fn for_nodes(address: &str) -> String {
    address.replace("127.0.0.1", HOST)
}
