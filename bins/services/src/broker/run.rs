//! Runs a broker from its flags.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::init::output::Output;
use anyhow::Context as _;
use tec_core::port::Clock;
use tec_services::shell::{Export, Http, Target};
use tec_support::serve;
use tec_support::serve::{Shutdown, Transport};
use tokio::sync::watch;

use crate::broker::bus::Bus;
use crate::broker::cli::Args;
use crate::broker::events::Events;
use crate::broker::face;
use crate::broker::identity::{Grant, Identity};

/// Name of the program, for collectors.
const SERVICE: &str = "services-broker";
/// Wait before writing again to a volume that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// Deadline for a collector to accept lines.
const DEADLINE: Duration = Duration::from_secs(10);

/// Connects, writes what the runtime needs to the shared volume, and serves until shutdown.
/// Errors: the controller refused permanently, NATS does not accept the identity, or the volume or the port cannot be
/// used.
pub async fn run(args: &Args, clock: Arc<dyn Clock>, shutdown: Shutdown) -> anyhow::Result<()> {
    let identity = Arc::new(Identity::new(args.way.clone(), Arc::clone(&clock)));
    let grants = identity.grants();
    let grant = identity.grant().await?;
    let exported = export(args.otlp.as_deref(), &identity, &grant)?;
    let bus = Arc::new(Bus::connect(Arc::clone(&identity), args.nats.clone()).await?);
    shared(&grant).write(&args.out)?;
    let listener = serve::bind(args.listen)?;
    tracing::info!(name = %grant.name, listen = %args.listen, "connected to NATS");
    let transport = Transport::Tls(identity.certificate().server_config());
    let events = args.stored_events.then(|| Events::new(Arc::clone(&bus), grant.name.clone()));
    let (health, router) = face::router(Arc::clone(&bus), events);
    let probes = probes(args.health_listen, &bus, shutdown.clone())?;
    let server = serve::serve(listener, transport, router, shutdown);
    tokio::select! {
        served = server => served,
        served = probes => served,
        () = bus.keep(&*clock) => Ok(()),
        () = exported => Ok(()),
        () = share(&args.out, grants) => Ok(()),
        () = face::tell(&bus, &health) => Ok(()),
    }
}

/// Serves probes if requested; otherwise never ends.
fn probes(
    listen: Option<SocketAddr>,
    bus: &Arc<Bus>,
    shutdown: Shutdown,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>>> {
    let router = face::probes(Arc::clone(bus));
    let listener = listen.map(serve::bind).transpose()?;
    Ok(async move {
        match listener {
            Some(listener) => {
                serve::serve(listener, Transport::DangerousPlain, router, shutdown).await
            }
            None => std::future::pending().await,
        }
    })
}

/// Sends the log to the collector, with the current certificate and authorities; never ends without a
/// collector. Covers the lines from this call on.
fn export(
    collector: Option<&str>,
    identity: &Arc<Identity>,
    grant: &Grant,
) -> anyhow::Result<impl Future<Output = ()>> {
    let mut sending = None;
    if let Some(address) = collector
        && let Some(lines) = tec_support::export::lines()
    {
        let export = Export::new(connection(address, identity, grant)?, SERVICE);
        sending = Some((address.to_owned(), export, lines));
    }
    let (identity, mut trusted) = (Arc::clone(identity), grant.authorities.clone());
    Ok(async move {
        let Some((address, export, lines)) = sending else {
            return std::future::pending().await;
        };
        let mut grants = identity.grants();
        let follow = async {
            // The sender lives as long as the identity.
            while grants.changed().await.is_ok() {
                let grant = grants.borrow_and_update().clone();
                if let Some(grant) = grant.filter(|grant| grant.authorities != trusted)
                    && let Ok(http) = connection(&address, &identity, &grant)
                {
                    export.replace(http);
                    trusted = grant.authorities;
                }
            }
        };
        tokio::select! {
            () = export.run(lines) => {}
            () = follow => {}
        }
    })
}

fn connection(collector: &str, identity: &Identity, grant: &Grant) -> anyhow::Result<Http> {
    let config = identity.certificate().client_config(grant.authorities.as_bytes())?;
    let target = Target::tls(collector, Arc::new(config));
    let target =
        target.with_context(|| format!("invalid address of the collector {collector:?}"))?;
    Ok(Http::new(target, DEADLINE))
}

/// Files with what the runtime trusts; the key stays here.
fn shared(grant: &Grant) -> Output {
    let mut output = Output::default();
    output.certificate("", grant.chain.clone(), grant.authorities.clone());
    output
}

/// Writes the files of each new grant, for as long as it is polled.
pub async fn share(out: &Path, mut grants: watch::Receiver<Option<Grant>>) {
    // The sender lives as long as the identity.
    while grants.changed().await.is_ok() {
        let grant = grants.borrow_and_update().clone();
        if let Some(grant) = grant
            && let Err(error) = shared(&grant).renew(out)
        {
            let error = format!("{error:#}");
            tracing::warn!(error, "the runtime has no new certificate");
            grants.mark_changed();
            tokio::time::sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_runtime_finds_the_certificate_of_each_grant_and_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("shared");
        let first = Grant::sample("first");
        let (told, grants) = watch::channel(None);
        let sharing = share(&out, grants);
        let telling = async {
            told.send_replace(Some(first));
            // Still not writable: the next try comes later.
            tokio::time::sleep(AGAIN * 2).await;
            fs::create_dir(&out).unwrap();
            tokio::time::sleep(AGAIN * 2).await;
            let read = || fs::read_to_string(out.join("ca.crt")).unwrap();
            assert_eq!(read(), "first");
            told.send_replace(Some(Grant::sample("second")));
            tokio::time::sleep(AGAIN).await;
            assert_eq!(read(), "second");
        };
        tokio::select! {
            () = sharing => panic!("it ended"),
            () = telling => {}
        }
        for name in ["ca.crt", "tls.crt"] {
            let found = fs::metadata(out.join(name)).unwrap();
            assert_eq!(found.permissions().mode() & 0o777, 0o644, "{name}");
        }
        assert!(!out.join("tls.key").exists());
    }
}
