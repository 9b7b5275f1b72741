//! The program kubeadm: init of a cluster, and join.

mod component;
mod config;
mod identity;
mod paths;
mod serving;
mod settings;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::init::InitRequest;
use crate::lock::LockedNode;
use crate::metadata::Instance;
use crate::port::{ClusterInitializer, ClusterJoiner, KeyUris};
use crate::state::Role;
use crate::ticket::{Component, ComponentForm, JoinTicket, PkiFile};
use async_trait::async_trait;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tempfile::NamedTempFile;

use super::directory::{remove_if_there, write_whole};
use super::program::{Call, HostPrograms};

use self::config::Attempt;

pub use self::identity::{KubeletIdentity, KubeletKey};
pub use self::paths::KubeadmPaths;
pub use self::settings::{ClusterDns, EtcdTls, ExternalEtcd, KubeadmSettings};

const KUBEADM: &str = "kubeadm";
const SYSTEMCTL: &str = "systemctl";
/// Time limit of init, which pulls images, waits for static pods, and talks to the API server that it
/// created.
const INIT_LIMIT: Duration = Duration::from_mins(15);
/// Time limit of a preflight, which pulls the images of a control plane.
const PREFLIGHT_LIMIT: Duration = Duration::from_mins(15);
/// Time limit of a join (Constellation). A control plane holds a lease for its turn, which must not expire
/// while it changes etcd.
const JOIN_LIMIT: Duration = Duration::from_mins(5);
/// Time limit for the start of the kubelet (Constellation).
const KUBELET_LIMIT: Duration = Duration::from_mins(10);
/// Time limit for an answer from the server that provides components.
const DOWNLOAD_IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of a kubeconfig.
const MAX_KUBECONFIG: u64 = 1024 * 1024;
const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

/// Runs kubeadm on this node.
#[derive(Clone, Debug)]
pub struct Kubeadm {
    settings: KubeadmSettings,
    paths: KubeadmPaths,
    this: Instance,
    identity: Arc<dyn KubeletIdentity>,
    programs: Arc<HostPrograms>,
    network: Option<Arc<dyn ClusterNetwork>>,
    client: reqwest::Client,
}

/// Deploys the pod network of a new cluster.
#[async_trait]
pub trait ClusterNetwork: fmt::Debug + Send + Sync {
    /// Creates or updates its objects, as the admin of this kubeconfig; repeating it changes nothing.
    async fn apply(&self, kubeconfig: &SecretBytes) -> Result<(), PortError>;
}

fn unavailable(operation: impl Into<String>, error: std::io::Error) -> PortError {
    PortError::new(PortErrorKind::Unavailable, operation).because(error)
}

impl Kubeadm {
    /// Runs kubeadm for this instance. The client downloads components; only its time limit for idle
    /// connections matters.
    pub fn new(
        settings: KubeadmSettings,
        paths: KubeadmPaths,
        this: Instance,
        identity: Arc<dyn KubeletIdentity>,
        programs: Arc<HostPrograms>,
    ) -> Result<Self, PortError> {
        let client = reqwest::Client::builder()
            .connect_timeout(DOWNLOAD_IDLE_LIMIT)
            .read_timeout(DOWNLOAD_IDLE_LIMIT)
            .build()
            .map_err(|error| {
                PortError::new(PortErrorKind::Internal, "make an HTTP client").because(error)
            })?;
        Ok(Self { settings, paths, this, identity, programs, network: None, client })
    }

    /// Deploys this network in a cluster that it creates.
    pub fn with_network(self, network: Arc<dyn ClusterNetwork>) -> Self {
        Self { network: Some(network), ..self }
    }

    /// Starts the kubelet, now and at each boot.
    pub async fn start_kubelet(&self) -> Result<(), PortError> {
        start_kubelet(&self.programs).await
    }

    async fn fetch(&self, components: &[Component]) -> Result<(), PortError> {
        for one in components {
            component::fetch(&self.client, &self.paths, one).await?;
        }
        Ok(())
    }

    async fn install(&self, components: &[Component]) -> Result<(), PortError> {
        for one in components {
            component::install(&self.paths, one).await?;
        }
        Ok(())
    }

    /// The component that is kubeadm, or else the host's own.
    fn kubeadm(&self, components: &[Component], at: Place) -> String {
        let is_kubeadm = |one: &&Component| {
            one.form == ComponentForm::File && one.install_path.ends_with("/kubeadm")
        };
        let Some(found) = components.iter().find(is_kubeadm) else {
            return KUBEADM.to_owned();
        };
        let path = match at {
            Place::Cached => component::cached(&self.paths, found),
            Place::Installed => self.paths.of_host(&found.install_path),
        };
        path.display().to_string()
    }

    async fn run(
        &self,
        kubeadm: &str,
        operation: &'static str,
        arguments: &[&str],
        config: &[u8],
        limit: Duration,
    ) -> Result<(), PortError> {
        // Deleted at the end of this function, however it ends; a crash leaves it only in memory.
        let file = self.temporary(config)?;
        let mut arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        arguments.extend(["--config".into(), file.path().into()]);
        let call = Call { program: kubeadm, arguments, input: None, limit };
        let ran = self.programs.run(call).await;
        ran.map(drop).map_err(|error| error.during(operation))
    }

    /// A file readable only by root.
    fn temporary(&self, content: &[u8]) -> Result<NamedTempFile, PortError> {
        let failed = |error| unavailable("write kubeadm's configuration", error);
        let scratch = self.paths.scratch();
        fs::create_dir_all(&scratch).map_err(failed)?;
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix("kubeadm-").suffix(".yaml").tempfile_in(scratch);
        let mut file = file.map_err(failed)?;
        file.write_all(content).map_err(failed)?;
        Ok(file)
    }

    fn write_audit_policy(&self) -> Result<(), PortError> {
        let policy = config::audit_policy().as_bytes();
        write(&self.paths.audit_policy(), policy, PUBLIC)
    }

    fn write_kubelet_pair(&self, certificate: &str) -> Result<(), PortError> {
        let key = self.identity.key().private.expose("the kubelet serves with it");
        write(&self.paths.kubelet_key(), key, PRIVATE)?;
        serving::place(&self.paths.kubelet_own_pki(), certificate, key)?;
        write(&self.paths.kubelet_certificate(), certificate.as_bytes(), PUBLIC)
    }

    /// Whether an earlier attempt passed preflight. This is recorded only after the lock, before the kubelet
    /// is started: preflight would refuse that kubelet's port and the files that kubeadm has written since,
    /// so that only the first attempt could pass.
    fn is_begun(&self) -> bool {
        self.paths.kubelet_certificate().exists()
    }

    /// Checks that the ticket is complete and its parts match.
    fn check(&self, ticket: &JoinTicket) -> Result<(), PortError> {
        let refused = |operation: String| Err(PortError::new(PortErrorKind::Invalid, operation));
        if !self.identity.is_of(&ticket.kubelet_certificate) {
            return refused("take the kubelet's certificate: it is not for its key".to_owned());
        }
        let Some(ca) = ca(ticket) else {
            return refused(
                "take the ticket: it has no ca.crt; update the join service".to_owned(),
            );
        };
        let ca = ca.expose("it is public");
        if !self.identity.is_pinned(ca, &ticket.ca_pin) {
            return refused("take the cluster's CA: it is not the pinned one".to_owned());
        }
        if self.this.role != Role::ControlPlane {
            return Ok(());
        }
        // An external etcd has its own CA.
        let is_due = |file: &PkiFile| {
            self.settings.external_etcd.is_none() || !file.as_str().starts_with("etcd/")
        };
        // Without a store there is no URI for it.
        let is_due = |file: &PkiFile| is_due(file) && *file != PkiFile::STORAGE_URI;
        let is_there = |file: &PkiFile| ticket.files.iter().any(|(one, _)| one == file);
        let mut due = PkiFile::ALL.into_iter().filter(is_due);
        match due.find(|file| !is_there(file)) {
            Some(file) => refused(format!("take the ticket: it has no {}", file.as_str())),
            None => Ok(()),
        }
    }

    fn init_config(&self, request: &InitRequest) -> String {
        let version = &request.kubernetes_version;
        config::init(version, &self.paths, &self.settings, &self.this)
    }

    /// Runs a part of `kubeadm join`, which authenticates as this node.
    async fn run_join(
        &self,
        kubeadm: &str,
        operation: &'static str,
        arguments: &[&str],
        ticket: &JoinTicket,
        attempt: Attempt,
    ) -> Result<(), PortError> {
        let ca = ca(ticket).map_or(&[][..], |ca| ca.expose("it is public"));
        let discovery = config::discovery(ticket, ca, &self.identity.key().private);
        let discovery = self.temporary(discovery.expose("kubeadm reads it"))?;
        let config = config::join(discovery.path(), attempt, &self.settings, &self.this);
        let limit = match attempt {
            Attempt::Preflight => PREFLIGHT_LIMIT,
            Attempt::Join => JOIN_LIMIT,
        };
        let config = config.as_bytes();
        self.run(kubeadm, operation, arguments, config, limit).await
    }
}

fn ca(ticket: &JoinTicket) -> Option<&SecretBytes> {
    let mut files = ticket.files.iter();
    let found = files.find(|(file, _)| *file == PkiFile::CA);
    found.map(|(_, content)| content)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), PortError> {
    let operation = || format!("write {}", path.display());
    write_whole(path, content, mode).map_err(|error| unavailable(operation(), error))
}

/// The place from which a program is run.
#[derive(Clone, Copy)]
enum Place {
    Cached,
    Installed,
}

/// Starts the kubelet, now and at each boot.
pub async fn start_kubelet(programs: &HostPrograms) -> Result<(), PortError> {
    let call = Call {
        program: SYSTEMCTL,
        arguments: ["enable", "--now", "kubelet.service"].map(OsString::from).to_vec(),
        input: None,
        limit: KUBELET_LIMIT,
    };
    let started = programs.run(call).await;
    started.map(drop).map_err(|error| error.during("start the kubelet"))
}

#[async_trait]
impl ClusterInitializer for Kubeadm {
    async fn prepare(&self, request: &InitRequest) -> Result<(), PortError> {
        self.settings.leave_out(self.this.address)?;
        self.fetch(&request.components).await?;
        if self.is_begun() {
            return Ok(());
        }
        let kubeadm = self.kubeadm(&request.components, Place::Cached);
        let config = self.init_config(request);
        let arguments = ["init", "phase", "preflight"];
        let operation = "pass kubeadm's preflight";
        let config = config.as_bytes();
        self.run(&kubeadm, operation, &arguments, config, PREFLIGHT_LIMIT).await
    }

    async fn keep_key_uris(&self, _node: &LockedNode, uris: &KeyUris) -> Result<(), PortError> {
        const WHY: &str = "the join service on this node opens the key service with it";
        let kept = [(PkiFile::KMS_URI, &uris.kms), (PkiFile::STORAGE_URI, &uris.storage)];
        for (file, uri) in kept {
            write(&self.paths.of_ticket(file), uri.expose(WHY), file.mode())?;
        }
        Ok(())
    }

    async fn init(&self, _node: &LockedNode, request: &InitRequest) -> Result<(), PortError> {
        self.install(&request.components).await?;
        self.write_audit_policy()?;
        let kubeadm = self.kubeadm(&request.components, Place::Installed);
        let config = self.init_config(request);
        let config = config.as_bytes();
        let certs = ["init", "phase", "certs", "all"];
        let operation = "make the cluster's certificates";
        self.run(&kubeadm, operation, &certs, config, INIT_LIMIT).await?;
        let certificate = self.identity.certify(&self.paths.pki())?;
        self.write_kubelet_pair(&certificate)?;
        self.start_kubelet().await?;
        let skipped = config::skipped(request.proxy, self.settings.dns);
        let skipped = format!("--skip-phases={skipped}");
        // kubeadm would print a token that is valid for a day.
        let init = ["init", "--skip-token-print", &skipped];
        self.run(&kubeadm, "make the cluster", &init, config, INIT_LIMIT).await?;
        match &self.network {
            Some(network) => network.apply(&self.kubeconfig().await?).await,
            None => Ok(()),
        }
    }

    async fn kubeconfig(&self) -> Result<SecretBytes, PortError> {
        let path = self.paths.admin_kubeconfig();
        let failed = |error| unavailable("read the admin's kubeconfig", error);
        if fs::metadata(&path).map_err(failed)?.len() > MAX_KUBECONFIG {
            return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
        }
        fs::read(&path).map(SecretBytes::new).map_err(failed)
    }
}

#[async_trait]
impl ClusterJoiner for Kubeadm {
    async fn prepare(&self, ticket: &JoinTicket) -> Result<(), PortError> {
        self.check(ticket)?;
        self.fetch(&ticket.components).await?;
        if self.is_begun() {
            return Ok(());
        }
        let kubeadm = self.kubeadm(&ticket.components, Place::Cached);
        let arguments = ["join", "phase", "preflight"];
        let operation = "pass kubeadm's preflight";
        self.run_join(&kubeadm, operation, &arguments, ticket, Attempt::Preflight).await
    }

    async fn write_files(&self, _node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        for (file, content) in &ticket.files {
            // Whatever its service sends, a worker stores nothing of the control plane.
            if self.this.role != Role::ControlPlane && *file != PkiFile::CA {
                continue;
            }
            let path = self.paths.of_ticket(*file);
            write(&path, content.expose("a control plane has it"), file.mode())?;
        }
        self.write_kubelet_pair(&ticket.kubelet_certificate)
    }

    /// A node with a kubelet kubeconfig has gone through kubeadm's join before. A worker is then done; a
    /// control plane repeats the steps that make it one, which converge.
    async fn join(&self, _node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        self.install(&ticket.components).await?;
        let role = self.this.role;
        if role == Role::ControlPlane {
            self.write_audit_policy()?;
        }
        self.start_kubelet().await?;
        let is_known = self.paths.kubelet_kubeconfig().exists();
        let arguments: &[&str] = match (role, is_known) {
            (Role::ControlPlane, true) => &["join", "phase", "control-plane-join", "all"],
            (_, true) => return Ok(()),
            (_, false) => &["join"],
        };
        remove_if_there(&self.paths.bootstrap_kubeconfig())
            .map_err(|error| unavailable("remove an older attempt's kubeconfig", error))?;
        let kubeadm = self.kubeadm(&ticket.components, Place::Installed);
        let operation = "join the cluster";
        self.run_join(&kubeadm, operation, arguments, ticket, Attempt::Join).await
    }
}
