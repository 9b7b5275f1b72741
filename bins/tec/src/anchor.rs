//! The trust anchor that a command works on.
//!
//! ```text
//! command ─► Anchor ─► ports: registries and logs, as servers use them
//!                   ─► place: what only a state directory, or only a namespace, can answer
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::ignition::ClevisPinGenerator;
use tec_core::machine::Machine;
use tec_core::port::{
    AkRegistry, AttemptLog, AuditSink, ClockLog, ImageRegistry, MachineRegistry, PlatformLog,
    PortError, SecretStore,
};
use tec_core::store::{Store, StoreError};
use tec_k8s::client::{AttemptRecords, pinned_of};
use tec_support::exit::CodedError;

use crate::args::{Access, MachineFilter, MachineRef};
use crate::attempt::LastSeen;
use crate::image::Approval;
use crate::known::{Known, Unknown, meant, unknown};
use crate::kube;
use crate::kube::access::Cluster;
use crate::state::{Endpoints, Said, open_existing};

/// Machines are read in pages of this size.
const PAGE: usize = 1000;

/// What both kinds of anchors are to servers.
pub(crate) trait Ports:
    MachineRegistry + AkRegistry + ImageRegistry + SecretStore + ClockLog + PlatformLog + AuditSink
{
}

impl<T> Ports for T where
    T: MachineRegistry
        + AkRegistry
        + ImageRegistry
        + SecretStore
        + ClockLog
        + PlatformLog
        + AuditSink
{
}

/// A state directory, or a namespace of a Kubernetes cluster.
#[derive(Clone)]
pub(crate) struct Anchor {
    pub(crate) ports: Arc<dyn Ports>,
    pub(crate) attempts: Arc<dyn AttemptLog>,
    pub(crate) place: Place,
}

#[derive(Clone)]
pub(crate) enum Place {
    Directory(PathBuf, Arc<Store>),
    Namespace(Cluster),
}

impl Anchor {
    /// The namespace, or the state directory, which must exist.
    pub(crate) async fn open(state_dir: &Path, access: Option<&Access>) -> anyhow::Result<Self> {
        Ok(match access {
            Some(access) => Self::namespace(Cluster::connect(access).await?),
            None => Self::directory(state_dir, open_existing(state_dir)?),
        })
    }

    pub(crate) fn directory(path: &Path, store: Arc<Store>) -> Self {
        let place = Place::Directory(path.to_owned(), store.clone());
        Self { ports: store.clone(), attempts: store, place }
    }

    pub(crate) fn namespace(cluster: Cluster) -> Self {
        let registry = kube::of(&cluster);
        let attempts = Arc::new(AttemptRecords::new(registry.clone()));
        Self { ports: Arc::new(registry), attempts, place: Place::Namespace(cluster) }
    }

    /// The program as an admin of this anchor calls it.
    pub(crate) fn program(&self) -> &'static str {
        match &self.place {
            Place::Directory(..) => "tec",
            Place::Namespace(_) => "kubectl tec",
        }
    }

    /// Adds a code and the failed operation to the error of a port.
    pub(crate) fn failed<C: Into<String>>(
        &self,
        context: C,
    ) -> impl FnOnce(PortError) -> CodedError + use<C> {
        let context = context.into();
        let fallback = match &self.place {
            Place::Directory(..) => |_: &PortError| Code::StoreUnavailable,
            Place::Namespace(_) => kube::code_of,
        };
        move |error| {
            let code = error.code().unwrap_or_else(|| fallback(&error));
            CodedError::caused(code, context, error)
        }
    }

    /// All machines, in the order of their IDs.
    pub(crate) async fn known(&self) -> anyhow::Result<Vec<Known>> {
        match &self.place {
            Place::Directory(_, store) => {
                let machines = machines(&**store).await;
                let machines = machines.map_err(self.failed("list the machines"))?;
                let mut names = names(store)?;
                let last = store.last_attempts().map_err(unread("read the last attempts"))?;
                let known = machines.into_iter().map(|machine| Known {
                    name: names.remove(&machine.id),
                    last_seen: last.get(&machine.id).map(LastSeen::of),
                    ..Known::new(machine)
                });
                Ok(known.collect())
            }
            Place::Namespace(cluster) => kube::machine::known(cluster).await,
        }
    }

    /// The machine with this ID or name.
    pub(crate) async fn find(&self, asked: &MachineRef) -> anyhow::Result<Known> {
        let id = self.id_of(asked).await?;
        let found = match &self.place {
            Place::Directory(_, store) => {
                let found = MachineRegistry::find(&*self.ports, &id).await;
                let found = found.map_err(self.failed(format!("look up machine {id}")))?;
                let name = names(store)?.remove(&id);
                found.map(|machine| Known { name, ..Known::new(machine) })
            }
            Place::Namespace(cluster) => kube::machine::find(cluster, &id).await?,
        };
        found.ok_or_else(|| unknown(format!("there is no machine {id}")).into())
    }

    /// The given ID, even if there is no such machine, or the ID of the machine with this name.
    pub(crate) async fn id_of(&self, asked: &MachineRef) -> anyhow::Result<MachineId> {
        Ok(self.meant(&asked.machine).await?.map_err(|none| unknown(none.to_string()))?)
    }

    /// The same, if one machine is meant.
    pub(crate) async fn meant(&self, asked: &str) -> anyhow::Result<Result<MachineId, Unknown>> {
        if let Ok(id) = asked.parse() {
            return Ok(Ok(id));
        }
        let known = self.known().await?;
        let known = known.into_iter().map(|known| (known.machine.id, known.name));
        Ok(meant(known, asked))
    }

    /// The machine that the filter of a list names, if any.
    pub(crate) async fn wanted(&self, filter: MachineFilter) -> anyhow::Result<Option<MachineId>> {
        match filter.machine {
            Some(machine) => Ok(Some(self.id_of(&MachineRef { machine }).await?)),
            None => Ok(None),
        }
    }

    /// Refuses the name of another machine, because commands would find neither, and IDs, because they would hide
    /// a machine.
    pub(crate) async fn check_name(&self, id: MachineId, name: &str) -> anyhow::Result<()> {
        let known = self.known().await?;
        let has_it = |one: &Known| one.machine.id != id && one.name.as_deref() == Some(name);
        if name.parse::<MachineId>().is_ok() || known.iter().any(has_it) {
            anyhow::bail!("cannot name machine {id} {name}: another machine has that name or ID");
        }
        Ok(())
    }

    /// Names a machine.
    pub(crate) async fn set_name(&self, id: MachineId, name: &str) -> anyhow::Result<()> {
        self.check_name(id, name).await?;
        match &self.place {
            Place::Directory(_, store) => {
                let named = store.name_machine(&id, name).await;
                Ok(named.map_err(self.failed(format!("name machine {id}")))?)
            }
            Place::Namespace(cluster) => kube::machine::set_name(cluster, &id, name).await,
        }
    }

    /// The registers that boots must match.
    pub(crate) async fn checked(&self) -> anyhow::Result<Pins> {
        match &self.place {
            Place::Directory(path, _) => Said::pins(path),
            Place::Namespace(cluster) => {
                let pinned = pinned_of(&cluster.cluster_object().await?)
                    .context("the operator has not said yet which PCRs boots must match")?;
                let pinned = PinnedPcrs::new(pinned.into_iter().collect());
                Ok(pinned.map_or(Pins::Predicted, Pins::Exactly))
            }
        }
    }

    /// All images with what their approval is worth.
    pub(crate) async fn approvals(&self) -> anyhow::Result<Vec<Approval>> {
        match &self.place {
            Place::Directory(..) => {
                let images = ImageRegistry::list(&*self.ports).await;
                let images = images.map_err(self.failed("list the images"))?;
                let pins = self.checked().await?;
                Ok(images.into_iter().map(|image| Approval::new(image, pins)).collect())
            }
            Place::Namespace(cluster) => kube::image::approvals(cluster).await,
        }
    }

    /// Renders the configs of machines.
    pub(crate) async fn pins(&self) -> anyhow::Result<ClevisPinGenerator> {
        match &self.place {
            Place::Directory(path, _) => Endpoints::read(path)?.pins(),
            Place::Namespace(cluster) => kube::ignition::pins_of(cluster).await,
        }
    }
}

/// All machines of a registry.
pub(crate) async fn machines(registry: &dyn MachineRegistry) -> Result<Vec<Machine>, PortError> {
    let mut machines: Vec<Machine> = Vec::new();
    loop {
        let after = machines.last().map(|machine| machine.id);
        let page = registry.list(after, PAGE).await?;
        if page.is_empty() {
            return Ok(machines);
        }
        machines.extend(page);
    }
}

fn names(store: &Store) -> Result<std::collections::BTreeMap<MachineId, String>, CodedError> {
    store.machine_names().map_err(unread("list the names of machines"))
}

fn unread(what: &'static str) -> impl FnOnce(StoreError) -> CodedError {
    move |error| CodedError::caused(error.code(), what, error)
}
