//! `kbs-guard`: parses the command line, composes, serves.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clap::Parser as _;
use kbs_guard::cli::Args;
use kbs_guard::compose;
use kbs_guard::compose::ApiServer;
use kbs_guard::keys::Keys;
use tec_core::http::ReplyStyle;
use tec_core::port::Clock;
use tec_support::front::{Gate, gated};
use tec_support::listen::{Counts, Limits, Server};
use tec_support::reserve::Reserve;
use tec_support::serve::{Shutdown, Transport, bind, until_ended};
use tec_support::{SystemClock, exit, front, program, tls};
use tokio::task::JoinSet;

/// Deadline of the clock comparison with the API server.
const COMPARED: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args = Args::parse();
    let log = args.log.clone();
    exit::finish(program::run(&log, run(args)))
}

async fn run(args: Args) -> anyhow::Result<u8> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (shutdown, signals) = Shutdown::on_signals()?;
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let missing = "pass --tls-cert and --tls-key, or --dangerous-plain-http behind another proxy";
    let missing = (!args.dangerous_plain_http).then(|| anyhow!(missing));
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let source = files.map(|(cert, key)| tls::Source::Files { cert, key });
    let (transport, certificate) = front::transport(source, missing, &shutdown, &mut tasks)?;

    let verifier = args.evidence.verifier(&clock)?;
    let store = compose::open(&args.state_dir)?;
    let mut gate: Gate = Arc::new(|| None);
    let (registries, authorities) = if args.kubernetes {
        let api = ApiServer::of_this_pod(None).await?;
        api.spawn(&mut tasks, &shutdown);
        // The gate stays closed until then. An unreachable API server delays only nodes.
        let _ = tokio::time::timeout(COMPARED, api.clock.compared()).await;
        let server_clock = api.clock.clone();
        gate = Arc::new(move || server_clock.refusal());
        let authorities = args.tls_ca.as_deref().map(|ca| compose::authorities(ca, &api));
        (compose::of_cluster(&api, args.pins.pins()?, &store, clock), authorities)
    } else {
        let keys = Keys::new(args.keys.clone(), Arc::clone(&store), Arc::clone(&clock));
        keys.sync().await?;
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            keys.follow(shutdown).await;
            Ok(())
        });
        (compose::of_store(&store, clock), None)
    };
    let reserve = Reserve::of(&args.state_dir, args.reserve_mib);
    let guard = compose::guard(args.upstream.clone(), verifier, registries, reserve, authorities);

    let listener = bind(args.listen)?;
    let address = listener.local_addr()?;
    let public = gated(compose::public(&guard, args.auth_rate), gate, ReplyStyle::KeyBroker);
    let connections = Counts::new("public");
    let server = Server::new(transport, public).counted_by(&connections);
    tasks.spawn(server.run(listener, shutdown.clone()));
    if let Some(address) = args.metrics_addr {
        let own = Counts::new("metrics");
        let metrics = compose::metrics(&guard, vec![connections, Arc::clone(&own)], certificate);
        let listener = bind(address)?;
        let address = listener.local_addr()?;
        tracing::info!(%address, "metrics are served");
        let server = Server::new(Transport::DangerousPlain, metrics)
            .with_limits(Limits::probes())
            .counted_by(&own);
        tasks.spawn(server.run(listener, shutdown));
    }
    tracing::info!(%address, upstream = %args.upstream, "ready");
    until_ended(tasks, signals, "guard").await
}
