//! `bootstrapper run`: init or join, whichever wins, then the kubelet.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::node::drive::JoinPorts;
use tec_core::node::drive::drive_join;
use tec_core::node::grant::Claim;
use tec_core::node::join::JoinOutcome;
use tec_core::node::metadata::Instance;
use tec_core::node::port::Pause;
use tec_core::node::port::StateDisk as _;
use tec_core::node::state::Role;
use tec_core::port::chain;
use tec_k8s::node::Kubeadm;
use tec_k8s::node::KubeadmSettings;
use tec_k8s::node::KubeletIdentity;
use tec_k8s::node::start_kubelet;
use tec_k8s::rpc::InitService;
use tec_k8s::rpc::InitServicePorts;
use tec_k8s::rpc::TicketClient;
use tec_k8s::rpc::generated::init::api_server::ApiServer;
use tec_support::SystemClock;
use tec_support::SystemEntropy;
use tec_support::exit;
use tokio::net::TcpListener;

use crate::authority::Authority;
use crate::cleaner::Cleaner;
use crate::discover::Discovery;
use crate::gate::InitGate;
use crate::identity::Identity;
use crate::keys;
use crate::node::Node;
use crate::node::Standing;
use crate::pause::JitteredPause;
use crate::secret::InitSecretHash;
use crate::settings::Kubernetes;
use crate::settings::Settings;
use crate::transport;

/// First wait between attempts of any sort.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Runs until the node is a member, or `stop`. The exit code.
///
/// # Errors
/// The node cannot be bootstrapped as it is.
pub async fn run(settings: &Settings, stop: impl Future<Output = ()>) -> anyhow::Result<u8> {
    let node = Node::open(settings)?;
    match node.standing().await? {
        Standing::Member => {
            tracing::info!("the node is a member; the kubelet is started");
            start_kubelet(&*node.programs).await?;
            return Ok(exit::OK);
        }
        Standing::New => {
            if !node.has_new_disk().await? {
                tracing::error!(
                    "the state disk belongs to a cluster: it has to be recovered first"
                );
                return Ok(exit::NOT_READY);
            }
        }
        Standing::Begun => tracing::warn!("an earlier attempt of this boot is taken up again"),
    }
    let cleaner = Cleaner::new();
    tokio::select! {
        ended = bootstrap(settings, &node, &cleaner) => ended,
        () = stop => Ok(exit::FAILED),
    }
}

/// Both sides, until one of them is done.
async fn bootstrap(settings: &Settings, node: &Node, cleaner: &Cleaner) -> anyhow::Result<u8> {
    let pause: Arc<dyn Pause> = Arc::new(JitteredPause::new(FIRST_WAIT, Arc::new(SystemEntropy)));
    let this = this(node, &*pause).await;
    let name = this.name.clone();
    tracing::info!(node = %name, role = %this.role, "bootstrapping");
    let authority = Authority::new("", Arc::new(SystemClock), Arc::new(SystemEntropy));
    let identity = Identity::generate(&this.name, this.address, authority);
    let identity: Arc<dyn KubeletIdentity> = Arc::new(identity.context("make the kubelet's key")?);
    let api_server = node.metadata.api_server().await?;
    let kubeadm = Arc::new(Kubeadm::new(
        kubeadm_settings(api_server, &settings.kubernetes),
        node.paths.clone(),
        this.clone(),
        Arc::clone(&identity),
        Arc::clone(&node.programs),
    )?);
    let gate = gate(node, &kubeadm, &pause, cleaner).await?;
    note_founder(settings, node, &this).await?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "Init is served");
    let service = ApiServer::new(gate.clone());
    let serving = transport::serve(node.server()?, listener, service, cleaner.stop());
    let joining = async {
        let joined = join(settings, node, &kubeadm, &*pause, (&this, &*identity)).await;
        match joined {
            Ok(JoinOutcome::Joined(_)) => cleaner.clean(),
            // The marker is that of an Init, which runs and has a caller to answer.
            Ok(_) => tracing::info!("init came first"),
            Err(error) => tracing::error!(error = format!("{error:#}"), "this node cannot join"),
        }
        // Init may still come.
        cleaner.cleaned().await;
    };
    // Join has not locked the node where init cleans, so it may be dropped anywhere.
    tokio::join!(serving, async {
        tokio::select! {
            () = joining => {}
            () = cleaner.cleaned() => {}
        }
    });
    gate.ended().await;
    tracing::info!("the node is a member");
    Ok(exit::OK)
}

async fn this(node: &Node, pause: &dyn Pause) -> Instance {
    let mut doublings = 0;
    loop {
        match node.metadata.this().await {
            Ok(this) => return this,
            Err(error) => tracing::warn!(error = chain(&error), "no metadata yet"),
        }
        pause.pause(doublings).await;
        doublings += 1;
    }
}

async fn gate(
    node: &Node,
    kubeadm: &Arc<Kubeadm>,
    pause: &Arc<dyn Pause>,
    cleaner: &Cleaner,
) -> anyhow::Result<InitGate> {
    let hash: InitSecretHash = node.metadata.init_secret_hash().await?.parse()?;
    let ports = InitServicePorts {
        secret: Arc::new(hash),
        lock: Arc::clone(&node.lock),
        keys: keys::services(Arc::clone(&node.attestation.attester)),
        disk: Arc::clone(&node.disk) as Arc<_>,
        store: Arc::clone(&node.store) as Arc<_>,
        cluster: Arc::clone(kubeadm) as Arc<_>,
        pause: Arc::clone(pause),
    };
    Ok(InitGate::new(InitService::new(ports), cleaner.clone()))
}

async fn join(
    settings: &Settings,
    node: &Node,
    kubeadm: &Kubeadm,
    pause: &dyn Pause,
    (this, identity): (&Instance, &dyn KubeletIdentity),
) -> anyhow::Result<JoinOutcome> {
    let endpoint = node.client(&settings.join_services)?;
    let discovery = Discovery::new(Arc::clone(&node.metadata), endpoint, settings.join_port);
    let request = identity.key().request.clone();
    let disk = node.disk.id().await?;
    let tickets = TicketClient::new(Arc::new(discovery), disk, this.role, request);
    let ports = JoinPorts {
        lock: &node.lock,
        disk: &*node.disk,
        store: &*node.store,
        tickets: &tickets,
        cluster: kubeadm,
        pause,
    };
    let joined = drive_join(ports, &this.name, this.role).await;
    joined.context("the join ended without an outcome")
}

fn kubeadm_settings(api_server: String, from: &Kubernetes) -> KubeadmSettings {
    let mut settings = KubeadmSettings::new(api_server);
    let take = |to: &mut String, from: &Option<String>| {
        if let Some(from) = from {
            to.clone_from(from);
        }
    };
    take(&mut settings.cluster_name, &from.cluster_name);
    take(&mut settings.service_subnet, &from.service_subnet);
    take(&mut settings.cri_socket, &from.cri_socket);
    settings.cloud_provider.clone_from(&from.cloud_provider);
    settings
        .certificate_names
        .clone_from(&from.certificate_names);
    settings
        .ignored_preflight_errors
        .clone_from(&from.ignored_preflight_errors);
    if !from.external_etcd.is_empty() {
        settings.external_etcd = Some(tec_k8s::node::ExternalEtcd {
            endpoints: from.external_etcd.clone(),
            tls: None,
        });
    }
    settings
}

/// The first node asked no join service; the one that runs on it takes its claim from here. It is
/// written before the node can be a member: a process that dies then must not leave a member whose
/// name and disk anybody may claim.
async fn note_founder(settings: &Settings, node: &Node, this: &Instance) -> anyhow::Result<()> {
    if this.role != Role::ControlPlane {
        return Ok(());
    }
    let claim = Claim {
        ak: node.attestation.ak,
        name: this.name.clone(),
        role: this.role,
        disk: node.disk.id().await?,
    };
    crate::founder::write(&settings.state_directory, &claim)
}
