//! Builds a controller from flags.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tec_core::port::Clock;
use tec_services::shell::{
    ApiServer, Disk, Http, Keys, SecretNames, Settings, Standing, Target, Vault,
};
use tec_services::vault::snapshot::Schedule;
use tec_services::vault::{Ordinal, Peers, Platform, SealKind};
use tec_support::certificate::Certificate;
use tec_support::{SystemClock, SystemEntropy};
use tokio::sync::Mutex;

use crate::bootstrap::accounts::Accounts;
use crate::bootstrap::cli::{Place, Seal, Serve};
use crate::bootstrap::controller::Controller;
use crate::bootstrap::disk::Volume;
use crate::bootstrap::health::Health;
use crate::bootstrap::passwords::Passwords;
use crate::bootstrap::peers::Others;
use crate::bootstrap::sealing::Sealing;
use crate::bootstrap::snapshots::Snapshots;

/// Deadline: longer than the ten seconds that the vault gives the API server, and short enough to answer a
/// caller that waits for fifteen.
pub(crate) const VAULT_DEADLINE: Duration = Duration::from_secs(12);
const KUBERNETES_DEADLINE: Duration = Duration::from_secs(10);
/// Longest time between two parts of a snapshot, and until the first one.
const SNAPSHOT_DEADLINE: Duration = Duration::from_mins(1);

/// The controller that these flags describe.
/// Errors: the pod does not belong to a StatefulSet, or the API server's CA cannot be read.
pub fn controller(args: &Serve) -> anyhow::Result<Controller> {
    let ordinal = Ordinal::of_pod(&args.pod).with_context(|| {
        format!("invalid pod name {:?}: not that of a pod of a StatefulSet", args.pod)
    })?;
    let vault = Http::new(Target::Unix(args.place.vault_socket.clone()), VAULT_DEADLINE);
    let names = SecretNames {
        namespace: args.place.namespace.clone(),
        key: args.place.key_secret.clone(),
        tls: args.tls_secret.clone(),
        authorities: args.ca_config_map.clone(),
        copies: args.component_namespaces.clone(),
        revocations: args.nats_revocations.clone(),
    };
    let kubernetes = target(&args.place.kubernetes, &args.place.kubernetes_ca)?;
    let kubernetes = Http::new(kubernetes, KUBERNETES_DEADLINE);
    let vault = Vault::new(vault);
    let token = args.place.kubernetes_token.clone();
    let cluster = Arc::new(ApiServer::new(kubernetes, token, names));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let certificate = Arc::new(Certificate::default());
    let standing = Arc::new(Standing::default());
    let platform = platform(args)?;
    let disk: Arc<dyn Disk> = Arc::new(Volume::new(args.place.volume.clone()));
    Ok(Controller {
        pod: args.pod.clone(),
        pod_uid: args.pod_uid.clone(),
        ordinal,
        sealing: Sealing::new(args.unseal, args.place.vault_socket.clone()),
        accounts: Accounts {
            vault: vault.clone(),
            cluster: Arc::clone(&cluster),
            standing: Arc::clone(&standing),
            keys: Keys::default(),
            clock: Arc::clone(&clock),
            certificate: Arc::clone(&certificate),
            url: args.nats_url.clone(),
            event_replicas: args.event_replicas,
            user_life: Duration::from_secs(args.user_seconds.into()),
            pushed: Mutex::default(),
        },
        passwords: Passwords {
            vault: vault.clone(),
            standing: Arc::clone(&standing),
            clock: Arc::clone(&clock),
            entropy: Arc::new(SystemEntropy),
            opensearch: args.opensearch_address.clone(),
            life: Duration::from_secs(args.password_seconds.into()),
            roles_told: AtomicBool::new(false),
        },
        peers: Arc::new(Others {
            addresses: others(args),
            name: args.controller.host(),
            token: args.token.clone(),
            cluster: Arc::clone(&cluster),
        }),
        vault,
        cluster,
        snapshots: snapshots(args, &disk, &clock),
        disk,
        token: args.token.clone(),
        settings: Settings {
            platform: platform.clone(),
            user_life: Duration::from_secs(args.user_seconds.into()),
            concurrency: args.concurrency,
            calls_per_minute: args.calls_per_minute,
        },
        health: Health::default(),
        platform,
        clock,
        entropy: Arc::new(SystemEntropy),
        certificate,
        standing,
    })
}

/// Snapshots, if they are requested.
fn snapshots(args: &Serve, disk: &Arc<dyn Disk>, clock: &Arc<dyn Clock>) -> Option<Snapshots> {
    let vault = Http::new(Target::Unix(args.place.vault_socket.clone()), SNAPSHOT_DEADLINE);
    Some(Snapshots {
        directory: args.snapshots.clone()?,
        vault: Vault::new(vault),
        token: args.token.clone(),
        disk: Arc::clone(disk),
        schedule: Schedule {
            every: Duration::from_hours(args.snapshot_hours.into()),
            keep: usize::try_from(args.snapshot_keep).unwrap_or(usize::MAX),
        },
        clock: Arc::clone(clock),
    })
}

/// The cluster as a restore needs it: it only reads and advances the Secret of the wrapping key.
pub fn cluster_of_restore(place: &Place) -> anyhow::Result<ApiServer> {
    let kubernetes = target(&place.kubernetes, &place.kubernetes_ca)?;
    let names = SecretNames {
        namespace: place.namespace.clone(),
        key: place.key_secret.clone(),
        tls: String::new(),
        authorities: String::new(),
        revocations: String::new(),
        copies: Vec::new(),
    };
    let kubernetes = Http::new(kubernetes, KUBERNETES_DEADLINE);
    Ok(ApiServer::new(kubernetes, place.kubernetes_token.clone(), names))
}

/// Excludes this pod, so every pod can have the same list: a pod gains nothing from asking itself.
fn others(args: &Serve) -> Vec<String> {
    let own = |peer: &&String| peer.split(['.', ':']).next() == Some(args.pod.as_str());
    let peers = args.peers.iter();
    peers.filter(|peer| !own(peer)).cloned().collect()
}

fn platform(args: &Serve) -> anyhow::Result<Platform> {
    let host = args.vault_kubernetes.clone();
    let authority = args.vault_kubernetes_ca.as_deref().map(|file| {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
    });
    Ok(Platform {
        namespace: args.place.namespace.clone(),
        stateful_set: args.place.stateful_set.clone(),
        audience: args.audience.clone(),
        kubernetes_host: host.unwrap_or_else(|| format!("https://{}", args.place.kubernetes)),
        kubernetes_ca: authority.transpose()?,
        controller: args.controller.clone(),
        nats: args.nats.clone(),
        opensearch: args.opensearch.clone(),
        collectors: args.collectors.clone(),
        tracers: args.tracers.clone(),
        viewers: args.viewers.clone(),
        component_namespaces: args.component_namespaces.clone(),
        certificate_life: Duration::from_secs(args.certificate_seconds.into()),
        seal: match args.seal {
            Seal::Shamir => SealKind::Shamir,
            Seal::Static => SealKind::Static,
        },
        peers: match args.peers.as_slice() {
            [] => Peers::Alone,
            _ => Peers::Raft,
        },
    })
}

fn target(address: &str, file: &Path) -> anyhow::Result<Target> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(file)
        .with_context(|| format!("cannot read {}", file.display()))?
    {
        roots.add(authority.with_context(|| format!("cannot read {}", file.display()))?)?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Target::tls(address, Arc::new(config))
        .with_context(|| format!("invalid address of the API server {address:?}"))
}
