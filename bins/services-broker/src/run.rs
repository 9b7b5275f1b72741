//! From flags to a broker that runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use services_init::output::Output;
use tec_core::port::Clock;
use tec_k8s::service::Export;
use tec_k8s::service::Http;
use tec_k8s::service::Target;
use tec_support::serve;
use tec_support::serve::Shutdown;
use tec_support::serve::Transport;

use crate::bus::Bus;
use crate::cli::Args;
use crate::face;
use crate::identity::Grant;
use crate::identity::Identity;

/// Name of the program, for collectors.
const SERVICE: &str = "services-broker";
/// A collector takes lines by then.
const DEADLINE: Duration = Duration::from_secs(10);

/// Connects, leaves what the runtime needs on the shared volume, serves until shutdown.
///
/// # Errors
/// The controller refused for good, NATS does not take us, or the volume or the port cannot be used.
pub async fn run(
    args: &Args,
    authorities: &str,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let identity = Identity::new(args.way.clone(), authorities, Arc::clone(&clock))?;
    let identity = Arc::new(identity);
    let grant = identity.grant().await?;
    let exported = export(args.otlp.as_deref(), &identity, &grant)?;
    let bus = Arc::new(Bus::connect(Arc::clone(&identity), args.nats.clone()).await?);
    share(args, &grant)?;
    let listener = serve::bind(args.listen)?;
    tracing::info!(name = %grant.name, listen = %args.listen, "connected to NATS");
    let transport = Transport::Tls(identity.certificate().server_config());
    let server = serve::serve(
        listener,
        transport,
        face::router(Arc::clone(&bus)),
        shutdown,
    );
    tokio::select! {
        served = server => served,
        () = bus.keep(&*clock) => Ok(()),
        () = exported => Ok(()),
    }
}

/// Sends the log to the collector, with the certificate of the moment; without one, never ends. Lines
/// count from this call on.
fn export(
    collector: Option<&str>,
    identity: &Identity,
    grant: &Grant,
) -> anyhow::Result<impl Future<Output = ()>> {
    let mut sending = None;
    if let Some(address) = collector
        && let Some(lines) = tec_support::export::lines()
    {
        let config = identity
            .certificate()
            .client_config(grant.authorities.as_bytes())?;
        let target = Target::tls(address, Arc::new(config));
        let target = target.with_context(|| format!("{address:?} is no collector"))?;
        sending = Some((Export::new(Http::new(target, DEADLINE), SERVICE), lines));
    }
    Ok(async move {
        match sending {
            Some((export, lines)) => export.run(lines).await,
            None => std::future::pending().await,
        }
    })
}

/// The runtime trusts the authorities; the key stays here.
fn share(args: &Args, grant: &Grant) -> anyhow::Result<()> {
    let mut output = Output::default();
    output.file("ca.crt", grant.authorities.as_str());
    output.file("tls.crt", grant.chain.as_str());
    output.write(&args.out)
}
