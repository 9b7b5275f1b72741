//! `tec node recover`: opens the disks of rebooted nodes that cannot reach their cluster.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_node::atls::Endpoint;
use tec_node::rpc::generated::recoverproto::RecoverMessage;
use tec_node::rpc::generated::recoverproto::api_client::ApiClient;
use tec_support::exit::{CodedError, FAILED, NOT_READY, OK};
use tokio::time::Instant;

use super::args::{TrustArgs, address};
use super::keys::{KeyArgs, Uris};
use super::reach::{reach, refused};
use crate::output::{Output, table};

/// Port of Recover (Constellation).
const PORT: u16 = 9999;

/// Longest time that a node may take after it has proven itself: a minute for the key service, then Argon2id,
/// once for each earlier caller.
const TRYING: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// Addresses of the nodes, `HOST` or `HOST:PORT`.
    #[arg(required = true)]
    nodes: Vec<String>,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    keys: KeyArgs,
    /// Only try the keys on each disk.
    #[arg(long)]
    check: bool,
    /// Time limit for each node to prove itself, in seconds; trying the keys may then take two more minutes.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
}

/// The outcome for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tried {
    node: String,
    /// ID of the disk that the keys open.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
    /// Whether the disk is being opened; false with `--check`.
    recovered: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Exit code 0 if the keys open every disk, 3 if the only problem is that some nodes do not answer, otherwise
/// 1.
pub(crate) async fn recover(args: RecoverArgs, output: &Output) -> anyhow::Result<u8> {
    let endpoint = args.trust.endpoint(Some(Sha256Digest::ZERO))?;
    let uris = args.keys.read()?;
    let mut all = Vec::new();
    let mut code = OK;
    for given in &args.nodes {
        let node = address(given, PORT);
        let until = Instant::now() + Duration::from_secs(args.wait);
        let tried = ask(&endpoint, &node, &uris, (args.check, until)).await;
        code = match &tried {
            Ok(_) => code,
            Err(error) if error.code == Code::BootstrapUnreachable => code.max(NOT_READY),
            // Higher than 3 and 0, so that it wins.
            Err(_) => WORST,
        };
        all.push(outcome(node, tried, args.check));
    }
    output.print(&all, |all| render(all))?;
    Ok(if code == WORST { FAILED } else { code })
}

/// Higher than every possible exit code.
const WORST: u8 = u8::MAX;

async fn ask(
    endpoint: &Endpoint,
    node: &str,
    uris: &Uris,
    (check, until): (bool, Instant),
) -> Result<String, CodedError> {
    let channel = reach(endpoint, node, until).await?.channel;
    tracing::info!(node, "the node proved itself; it tries the keys");
    let message = RecoverMessage { kms_uri: uris.kms(), storage_uri: uris.storage(), check };
    let limit = until.max(Instant::now() + TRYING);
    let mut client = ApiClient::new(channel);
    match tokio::time::timeout_at(limit, client.recover(message)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner().disk_uuid),
        Ok(Err(status)) => Err(refused(node, &status)),
        Err(_) => {
            let context = format!("{node} does not say whether the keys fit");
            Err(CodedError::new(Code::BootstrapUnreachable, context))
        }
    }
}

fn outcome(node: String, tried: Result<String, CodedError>, check: bool) -> Tried {
    match tried {
        Ok(disk) => Tried { node, disk: Some(disk), recovered: !check, code: None, error: None },
        Err(error) => Tried {
            node,
            disk: None,
            recovered: false,
            code: Some(error.code.as_str()),
            error: Some(tec_core::port::chain(&error)),
        },
    }
}

fn render(all: &[Tried]) -> String {
    let row = |one: &Tried| {
        let state = match (&one.error, one.recovered) {
            (Some(_), _) => "FAILED",
            (None, true) => "opened",
            (None, false) => "fits",
        };
        let found = one.error.clone().or_else(|| one.disk.clone());
        [
            state.to_owned(),
            one.node.clone(),
            one.code.unwrap_or_default().to_owned(),
            found.unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    table(["", "NODE", "CODE", "DISK"], &rows)
}
