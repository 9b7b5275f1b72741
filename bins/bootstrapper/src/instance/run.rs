//! `bootstrapper run`: init or join, whichever wins, then the kubelet.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::system::{SystemClock, SystemEntropy};
use tec_node::drive::{JoinPorts, drive_join};
use tec_node::grant::Claim;
use tec_node::host::{Content, Kubeadm, KubeadmSettings, KubeletIdentity, start_kubelet};
use tec_node::join::JoinOutcome;
use tec_node::metadata::{Instance, MetadataSource};
use tec_node::port::{Pause, StateDisk as _};
use tec_node::rpc::generated::init::api_server::ApiServer;
use tec_node::rpc::{InitService, InitServicePorts, TicketClient};
use tec_node::state::Role;
use tec_node::ticket::NodeName;
use tec_support::exit;
use tec_support::exit::CodedError;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::instance::authority::Authority;
use crate::instance::clock;
use crate::instance::discover::Discovery;
use crate::instance::finding::describe;
use crate::instance::founder::Founder;
use crate::instance::gate::InitGate;
use crate::instance::identity::Identity;
use crate::instance::kept::{KeptTickets, TicketFile};
use crate::instance::network::Manifest;
use crate::instance::node::{Node, Standing};
use crate::instance::pause::JitteredPause;
use crate::instance::secret::InitSecretHash;
use crate::instance::settings::{Kubernetes, Settings};
use crate::instance::transport;
use crate::instance::transport::Bounds;

/// First wait between attempts of any kind.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Runs until the node is a member, or `stop`. Returns the exit code.
pub async fn run(settings: &Settings, stop: impl Future<Output = ()>) -> anyhow::Result<u8> {
    let node = Node::open(settings)?;
    if let Some(code) = settled(settings, &node).await? {
        return Ok(code);
    }
    let _held = node.hold()?;
    let end = watch::Sender::new(false);
    tokio::select! {
        ended = bootstrap(settings, &node, &end) => ended,
        () = stop => Ok(exit::FAILED),
    }
}

/// Runs until the node has joined a cluster, or `stop`; serves no Init. Returns the exit code.
pub async fn run_join(settings: &Settings, stop: impl Future<Output = ()>) -> anyhow::Result<u8> {
    let node = Node::open(settings)?;
    if let Some(code) = settled(settings, &node).await? {
        return Ok(code);
    }
    let _held = node.hold()?;
    let joining = async {
        let parts = Parts::new(settings, &node).await?;
        match join(settings, &node, &parts).await? {
            JoinOutcome::Joined(cluster) => tracing::info!(%cluster, "the node is a member"),
            _ => anyhow::bail!(
                "cannot join: this node was initialized in the meantime, or is \
                 already a member"
            ),
        }
        Ok(exit::OK)
    };
    tokio::select! {
        ended = joining => ended,
        () = stop => Ok(exit::FAILED),
    }
}

/// The exit code for a node that needs no bootstrapping, or cannot be bootstrapped.
async fn settled(settings: &Settings, node: &Node) -> anyhow::Result<Option<u8>> {
    match node.standing().await? {
        Standing::Member => {
            // An earlier process may have died right after it was done.
            TicketFile::new(&settings.state_directory).remove()?;
            tracing::info!("the node is a member; the kubelet is started");
            start_kubelet(&node.programs).await?;
            return Ok(Some(exit::OK));
        }
        Standing::New => {
            clock::check(&SystemClock)?;
            node.disk.check_device().await?;
            if !node.has_new_disk().await? {
                let locked = Code::BootstrapLocked;
                match node.disk.content().await? {
                    Content::Encrypted => tracing::error!(
                        code = %locked,
                        fix = locked.fix(),
                        "the state disk belongs to a cluster: it has to be recovered first"
                    ),
                    content => tracing::error!(
                        ?content,
                        "the state disk is not made yet: `bootstrapper prepare` makes it"
                    ),
                }
                return Ok(Some(exit::NOT_READY));
            }
            node.keeps_state_on_disk(settings).await?;
        }
        Standing::Begun => tracing::warn!("an earlier attempt of this boot is taken up again"),
    }
    Ok(None)
}

/// What init and join share.
struct Parts {
    pause: Arc<dyn Pause>,
    this: Instance,
    identity: Arc<dyn KubeletIdentity>,
    kubeadm: Arc<Kubeadm>,
}

impl Parts {
    async fn new(settings: &Settings, node: &Node) -> anyhow::Result<Self> {
        let pause = JitteredPause::new(FIRST_WAIT, Arc::new(SystemEntropy));
        let pause: Arc<dyn Pause> = Arc::new(pause);
        let this = patiently(&*pause, || node.metadata.this()).await;
        tracing::info!(node = %this.name, role = %this.role, "bootstrapping");
        let authority = Authority::new("", Arc::new(SystemClock), Arc::new(SystemEntropy));
        let key = node.paths.kubelet_key();
        let identity = Identity::open(&key, &this.name, this.address, authority);
        let identity: Arc<dyn KubeletIdentity> =
            Arc::new(identity.context("cannot create the kubelet's key")?);
        let api_server = patiently(&*pause, || api_server(&*node.metadata)).await;
        let mut kubeadm = Kubeadm::new(
            kubeadm_settings(api_server, &settings.kubernetes)?,
            node.paths.clone(),
            this.clone(),
            Arc::clone(&identity),
            Arc::clone(&node.programs),
        )?;
        if let Some(path) = &settings.kubernetes.network {
            kubeadm = kubeadm.with_network(Arc::new(Manifest::read(path)?));
        }
        Ok(Self { pause, this, identity, kubeadm: Arc::new(kubeadm) })
    }
}

/// Runs both sides until one of them is done, which `end` announces.
async fn bootstrap(
    settings: &Settings,
    node: &Node,
    end: &watch::Sender<bool>,
) -> anyhow::Result<u8> {
    let parts = Parts::new(settings, node).await?;
    let gate = gate(node, &parts, end).await?;
    note_founder(settings, node, &parts.this).await?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "Init is served");
    let service = ApiServer::new(gate.clone());
    let endpoint = node.server()?;
    let current = || (endpoint.clone(), service.clone());
    let serving = transport::serve(listener, current, Bounds::INIT, end.subscribe());
    let joining = async {
        match join(settings, node, &parts).await {
            Ok(JoinOutcome::Joined(_)) => {
                end.send_replace(true);
            }
            // The marker belongs to an Init that is running and has a caller to answer.
            Ok(_) => tracing::info!("init came first"),
            Err(error) => tracing::error!(error = format!("{error:#}"), "this node cannot join"),
        }
        // Init may still come.
        transport::told(&mut end.subscribe()).await;
    };
    let mut ended = end.subscribe();
    // Join has not locked the node when init announces the end, so it may be dropped anywhere.
    tokio::join!(serving, async {
        tokio::select! {
            () = joining => {}
            () = transport::told(&mut ended) => {}
        }
    });
    gate.ended().await;
    tracing::info!("the node is a member");
    Ok(exit::OK)
}

/// Asks the platform until it answers: instances are still being set up while they boot.
async fn patiently<T>(pause: &dyn Pause, ask: impl AsyncFn() -> Result<T, PortError>) -> T {
    let mut doublings = 0;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(error = describe(&error), "no metadata yet"),
        }
        pause.pause(doublings).await;
        doublings += 1;
    }
}

/// kubeadm builds URLs and certificates from what the platform reports here.
async fn api_server(metadata: &dyn MetadataSource) -> Result<String, PortError> {
    let name = metadata.api_server().await?;
    if name.parse::<IpAddr>().is_ok() || NodeName::of_instance(&name).is_ok() {
        return Ok(name);
    }
    let operation =
        format!("take {name:?} for the API server: it is no host name and no IP address");
    Err(PortError::new(PortErrorKind::Unavailable, operation).with_code(Code::BootstrapMetadata))
}

async fn gate(node: &Node, parts: &Parts, end: &watch::Sender<bool>) -> anyhow::Result<InitGate> {
    let hash = patiently(&*parts.pause, || node.metadata.init_secret_hash()).await;
    let hash = hash.parse::<InitSecretHash>().map_err(|error| {
        let context = "take the hash of the init secret from the metadata";
        CodedError::caused(Code::BootstrapMetadata, context, error)
    })?;
    let ports = InitServicePorts {
        secret: Arc::new(hash),
        lock: Arc::clone(&node.lock),
        keys: node.keys(),
        disk: Arc::clone(&node.disk) as Arc<_>,
        store: Arc::clone(&node.store) as Arc<_>,
        cluster: Arc::clone(&parts.kubeadm) as Arc<_>,
        pause: Arc::clone(&parts.pause),
    };
    Ok(InitGate::new(InitService::new(ports), end.clone()))
}

async fn join(settings: &Settings, node: &Node, parts: &Parts) -> anyhow::Result<JoinOutcome> {
    let endpoint = node.client(&settings.join_services)?;
    let discovery = Discovery::new(Arc::clone(&node.metadata), endpoint, settings.join_port);
    let request = parts.identity.key().request.clone();
    let disk = node.disk.id().await?;
    let tickets = TicketClient::new(Arc::new(discovery), disk, parts.this.role, request)
        .with_endorser(Arc::clone(&node.attestation.endorser))
        .with_control_plane_ticket(settings.control_plane_ticket.clone());
    let kept = KeptTickets {
        file: TicketFile::new(&settings.state_directory),
        source: &tickets,
        joiner: &*parts.kubeadm,
        role: parts.this.role,
        clock: &SystemClock,
    };
    let ports = JoinPorts {
        lock: &node.lock,
        disk: &*node.disk,
        store: &*node.store,
        tickets: &kept,
        cluster: &kept,
        pause: &*parts.pause,
    };
    let joined = drive_join(ports, &parts.this.name, parts.this.role).await;
    let joined = joined.context("the join ended without an outcome")?;
    if matches!(joined, JoinOutcome::Joined(_)) {
        kept.file.remove()?;
    }
    Ok(joined)
}

fn kubeadm_settings(api_server: String, from: &Kubernetes) -> anyhow::Result<KubeadmSettings> {
    let mut settings = KubeadmSettings::new(api_server);
    let take = |to: &mut String, from: &Option<String>| {
        if let Some(from) = from {
            to.clone_from(from);
        }
    };
    take(&mut settings.cluster_name, &from.cluster_name);
    take(&mut settings.service_subnet, &from.service_subnet);
    take(&mut settings.pod_subnet, &from.pod_subnet);
    take(&mut settings.cri_socket, &from.cri_socket);
    settings.dns = from.dns;
    if let Some(path) = &from.kube_proxy {
        let read = std::fs::read_to_string(path);
        settings.kube_proxy = read.with_context(|| format!("cannot read {}", path.display()))?;
    }
    settings.cloud_provider.clone_from(&from.cloud_provider);
    settings.certificate_names.clone_from(&from.certificate_names);
    settings.ignored_preflight_errors.clone_from(&from.ignored_preflight_errors);
    if !from.external_etcd.is_empty() {
        settings.external_etcd =
            Some(tec_node::host::ExternalEtcd { endpoints: from.external_etcd.clone(), tls: None });
    }
    Ok(settings)
}

/// The first node asked no join service; the join service that runs on it takes its claim from here. The
/// claim is written before the node can be a member: a process that dies afterwards must not leave a member
/// whose name and disk anyone may claim.
async fn note_founder(settings: &Settings, node: &Node, this: &Instance) -> anyhow::Result<()> {
    if this.role != Role::ControlPlane {
        return Ok(());
    }
    let claim = Claim {
        ak: node.attestation.ak,
        name: this.name.clone(),
        role: this.role,
        disk: node.disk.id().await?,
        addresses: [this.address].into(),
    };
    let founder = Founder { claim, key: node.attestation.key.clone() };
    crate::instance::founder::write(&settings.state_directory, &founder)
}
