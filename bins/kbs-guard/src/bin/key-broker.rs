//! `key-broker`: releases disk keys to nodes that attest, based on the objects of the API server.
//!
//! ```text
//!   auth ─ attest ─ resource ─► Kbs ─ LiveBackend ─► Machines, AttestationKeys, ApprovedImages,
//!                                                    TpmClocks, PlatformBaselines, PlatformApprovals,
//!                                                    AttestationRecords, Secrets, RecoveryKeys
//! ```
//! It is stateless. Replicas with the same session key can continue each other's sessions.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use kbs_guard::cli::broker::Args;
use kbs_guard::compose::{ApiServer, key_broker};
use tec_core::http::ReplyStyle;
use tec_k8s::signal::Metric;
use tec_support::front::Front;
use tec_support::metrics::RequestMetrics;
use tec_support::serve::Shutdown;
use tec_support::{exit, front, program};
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.front.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let (shutdown, signals) = Shutdown::on_signals()?;
    let api = ApiServer::of_this_pod(args.front.namespace.clone()).await?;
    let kbs = key_broker(args, &api)?;
    let mut tasks = JoinSet::new();
    api.spawn(&mut tasks, &shutdown);
    let (reachable, stop) = (api.reachable(), shutdown.clone());
    let ready = reachable.answer();
    tasks.spawn(async move { stop.until(reachable.follow()).await });

    let clock = api.clock.clone();
    let name = |metric: Metric| (metric.as_str(), metric.help());
    let served = Front {
        service: kbs.router(),
        style: ReplyStyle::KeyBroker,
        metrics: RequestMetrics::new(name(Metric::BrokerRequests), name(Metric::BrokerSeconds)),
        gate: Arc::new(move || clock.refusal()),
        also: Some(Arc::new(move || kbs.metrics())),
    };
    front::run(&args.front, args.port, served, ready, (shutdown, signals), tasks).await
}
