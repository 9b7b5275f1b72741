//! `bootstrapper recover`: before everything else, opens the disk of a node that rebooted.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::port::chain;
use tec_core::system::SystemEntropy;
use tec_node::drive::{OfferedKeys, RecoverPorts, drive_recover};
use tec_node::port::{Pause as _, StateDisk as _};
use tec_node::recover::RecoverOutcome;
use tec_node::rpc::generated::recoverproto::api_server::ApiServer;
use tec_node::rpc::{RecoverService, RejoinClient};
use tec_support::exit;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::instance::discover::Discovery;
use crate::instance::mapping::SystemdMapping;
use crate::instance::node::{Node, Standing};
use crate::instance::pause::JitteredPause;
use crate::instance::settings::Settings;
use crate::instance::transport;
use crate::instance::transport::Bounds;

const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The source of keys, for the log, and the keys.
type Offer = (&'static str, OfferedKeys);

/// Runs until the disk is open, or `stop`. A node with a new disk has nothing to recover.
/// Errors: the node does not match the settings, or its marker belongs to another cluster.
pub async fn run(settings: &Settings, stop: impl Future<Output = ()>) -> anyhow::Result<u8> {
    let node = Node::open(settings)?;
    if node.standing().await? != Standing::New {
        tracing::info!("the node was recovered already");
        return Ok(exit::OK);
    }
    node.disk.check_device().await?;
    if node.has_new_disk().await? {
        tracing::info!("the state disk is new; there is nothing to recover");
        return Ok(exit::OK);
    }
    let _held = node.hold()?;
    tokio::select! {
        recovered = recover(settings, &node) => recovered,
        () = stop => Ok(exit::FAILED),
    }
}

async fn recover(settings: &Settings, node: &Node) -> anyhow::Result<u8> {
    let mapping = SystemdMapping::new(
        Arc::clone(&node.disk),
        node.recovering(),
        &settings.disk,
        (*node.store).clone(),
        Arc::clone(&node.programs),
    );
    let pause = JitteredPause::new(FIRST_WAIT, Arc::new(SystemEntropy));
    let ports = RecoverPorts {
        lock: &node.lock,
        disk: &*node.disk,
        mapped: &mapping,
        store: &*node.store,
        pause: &pause,
    };
    let end = watch::Sender::new(false);
    let (sender, mut offers) = mpsc::channel(1);
    let (operator, mut recovered) = mpsc::channel(1);
    let listed = settings.listed_key_services()?;
    let disk = Arc::clone(&node.disk) as Arc<_>;
    let service = RecoverService::new(node.keys(), listed, disk, operator);
    let listener = TcpListener::bind(settings.recovery_listen).await;
    let listener =
        listener.with_context(|| format!("cannot listen on {}", settings.recovery_listen))?;
    tracing::info!(address = %listener.local_addr()?, "Recover is served");
    let (endpoint, service) = (node.server()?, ApiServer::new(service));
    let current = || (endpoint.clone(), service.clone());
    let serving = transport::serve(listener, current, Bounds::SMALL, end.subscribe());
    let rejoining = rejoin(settings, node, &pause, sender);
    let deciding = async {
        loop {
            let offer = tokio::select! {
                Some(keys) = recovered.recv() => ("Operator", keys),
                Some(offer) = offers.recv() => offer,
            };
            if let Some(outcome) = drive_recover(ports, &offer.1).await {
                end.send_replace(true);
                return outcome;
            }
            tracing::warn!(source = %offer.0, "the keys do not open the state disk");
        }
    };
    // The caller whose keys were accepted gets its answer before the server ends.
    let served = async { tokio::join!(serving, deciding).1 };
    let outcome = tokio::select! {
        outcome = served => outcome,
        never = rejoining => match never {},
    };
    match outcome {
        RecoverOutcome::Recovered(cluster) => {
            tracing::info!(%cluster, "the state disk is open");
            Ok(exit::OK)
        }
        _ => anyhow::bail!(
            "the keys or the TPM's marker do not match the cluster in the disk's journal; reboot"
        ),
    }
}

/// Asks join services forever. If it cannot start, it reports that and tries again: an operator may recover
/// the disk in the meantime.
async fn rejoin(
    settings: &Settings,
    node: &Node,
    pause: &JitteredPause,
    offers: mpsc::Sender<Offer>,
) -> Infallible {
    let mut doublings = 0;
    let client = loop {
        match rejoin_client(settings, node).await {
            Ok(client) => break client,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "join services cannot be asked; Recover is served on");
            }
        }
        pause.pause(doublings).await;
        doublings += 1;
    };
    doublings = 0;
    loop {
        match client.fetch().await {
            Ok(keys) => {
                let _ = offers.send(("Rejoin", keys)).await;
            }
            Err(error) => tracing::info!(error = chain(&error), "no rejoin ticket"),
        }
        pause.pause(doublings).await;
        doublings += 1;
    }
}

async fn rejoin_client(settings: &Settings, node: &Node) -> anyhow::Result<RejoinClient> {
    let endpoint = node.client(&settings.join_services)?;
    let discovery = Discovery::new(Arc::clone(&node.metadata), endpoint, settings.join_port);
    let client = RejoinClient::new(Arc::new(discovery), node.disk.id().await?);
    Ok(client.with_endorser(Arc::clone(&node.attestation.endorser)))
}
