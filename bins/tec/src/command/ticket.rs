//! `tec ticket`: tickets that an admin signs for nodes of a cluster.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;
use tec_core::ak::Fingerprint;
use tec_core::port::Clock as _;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_node::derive::ClusterId;
use tec_node::plane::{AdminKey, PlaneTicket};
use tec_support::exit::OK;
use tec_support::files::create_private;
use tec_support::{SystemClock, SystemEntropy, input};

use crate::command::member::cluster_id;
use crate::output::Output;

/// Largest key file.
const MAX_KEY: u64 = 64 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum TicketCommand {
    /// Create a key that signs tickets, and print its fingerprint for control_plane_signers of
    /// join-service.toml.
    Key {
        /// File to create, PEM, mode 0600.
        file: PathBuf,
    },
    /// Issue a ticket that lets one node be a control plane of one cluster. Save the output on the
    /// node, in the file set by control_plane_ticket in bootstrapper.toml.
    ControlPlane {
        /// File with the admin's key, PEM.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Fingerprint of the attestation key or the endorsement key of the node.
        #[arg(long, value_name = "FINGERPRINT")]
        node: Fingerprint,
        /// ID of the cluster, as printed by `tec node init`.
        #[arg(long, value_name = "ID", value_parser = cluster_id)]
        cluster: ClusterId,
        /// Time at which the ticket expires, RFC 3339.
        #[arg(long, value_name = "TIME")]
        until: Timestamp,
    },
}

pub(crate) fn ticket(command: TicketCommand, output: &Output) -> anyhow::Result<u8> {
    match command {
        TicketCommand::Key { file } => create(&file, output),
        TicketCommand::ControlPlane { key, node, cluster, until } => {
            anyhow::ensure!(until > SystemClock.now(), "cannot sign: {until} is in the past");
            let pem = SecretBytes::new(input::read(&key, MAX_KEY)?);
            let key = AdminKey::from_pem(&pem)
                .with_context(|| format!("cannot read {}", key.display()))?;
            let ticket = PlaneTicket { cluster, node, until }.sign(&key)?;
            output.print(&json!({ "ticket": ticket }), |_| ticket.clone())?;
            Ok(OK)
        }
    }
}

fn create(file: &Path, output: &Output) -> anyhow::Result<u8> {
    let key = AdminKey::generate(&SystemEntropy);
    let pem = key.to_pem()?;
    create_private(file, pem.expose("the admin keeps it"))
        .with_context(|| format!("cannot create {}", file.display()))?;
    let fingerprint = key.fingerprint()?.to_string();
    output.print(&json!({ "signer": fingerprint }), |_| fingerprint.clone())?;
    Ok(OK)
}
