//! `tec serve`: registration, attestation-key registration and key broker in one process on the
//! embedded store.

pub(crate) mod args;
mod compose;
mod pins;
mod signer;
mod ui;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::migrate::belonging::{Binding, Demands, Entry};
use tec_core::port::{Clock, ImageRegistry, MachineRegistry as _};
use tec_core::store::Store;
use tec_support::exit::CodedError;
use tec_support::listen::{Counts, Server};
use tec_support::serve::{Shutdown, Transport, bind, until_ended};
use tec_support::tls::LiveCertificate;
use tec_support::{SystemClock, endpoint, front, tls};
use tokio::task::JoinSet;

use self::args::{Approval, ServeArgs};
use self::pins::pins;
use crate::image::UnpinnedImage;
use crate::state::{Endpoints, Running, Said, open};

/// Interval between removals of unclaimed machines.
const EXPIRE_EVERY: Duration = Duration::from_mins(5);

pub(crate) async fn run(
    state_dir: &Path,
    args: ServeArgs,
    lower_demands: bool,
) -> anyhow::Result<u8> {
    // A program that embeds this may have installed a different provider, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = open(state_dir)?;
    let _running = Running::mark(state_dir).await?;
    // `tec key reseal` may have run since the store was opened, and waits for this server from here on.
    store.health().map_err(|error| {
        CodedError::caused(error.code(), format!("cannot serve {}", state_dir.display()), error)
    })?;
    let pins = pins(state_dir, &args.pins)?;
    // Before anybody is served: a server that is killed now has demanded this.
    demand(&store, state_dir, &said(&args, pins)?, lower_demands).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (shutdown, signals) = Shutdown::on_signals()?;
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();

    let (transport, ca) = transport(state_dir, &args, &shutdown, &mut tasks)?;
    let [register, ak, kbs] = args.addresses();
    let (register, ak, kbs) = (bind(register)?, bind(ak)?, bind(kbs)?);
    let port = |listener: &std::net::TcpListener| anyhow::Ok(listener.local_addr()?.port());
    let ports = [port(&register)?, port(&ak)?, port(&kbs)?];
    let endpoints = endpoints(&args, ports, ca)?;

    let images = ImageRegistry::list(&*store).await?;
    let images: Vec<_> =
        images.into_iter().map(|image| crate::image::Approval::new(image, pins)).collect();
    for UnpinnedImage { image, unpinned } in UnpinnedImage::among(&images) {
        tracing::warn!(%image, %unpinned, "an image is approved of which parts are not checked");
    }
    let signer = signer::open(state_dir)?;
    let counts = ["register", "ak", "kbs"].map(Counts::new);
    let signing = (signer, counts.clone());
    let routers = compose::routers(state_dir, &store, &clock, (&args, pins), &endpoints, signing)?;
    let listeners = [(register, routers.register), (ak, routers.ak), (kbs, routers.kbs)];
    for ((listener, router), counts) in listeners.into_iter().zip(&counts) {
        let server = Server::new(transport.clone(), router).counted_by(counts);
        tasks.spawn(server.run(listener, shutdown.clone()));
    }
    if let Some(ui::Loopback(address)) = args.ui_addr {
        let listener = bind(address)?;
        tracing::info!(address = %listener.local_addr()?, "page for browsers on this machine");
        let server = Server::new(Transport::DangerousPlain, ui::router(state_dir, store.clone()));
        tasks.spawn(server.run(listener, shutdown.clone()));
    }
    tasks.spawn(expire(store, clock, args.unclaimed_seconds(), shutdown));
    endpoints.write(state_dir)?;
    tracing::info!(
        register = %endpoints.register,
        ak = %endpoints.ak,
        kbs = ?endpoints.kbs.first().map(|kbs| kbs.url.as_str()),
        "ready"
    );
    if args.public_host.is_none() {
        tracing::warn!(
            "nodes are sent to localhost, so only this machine can be one (set --public-host)"
        );
    }
    until_ended(tasks, signals, "server").await
}

/// Creates what a server needs before its first start, and returns its future addresses.
pub(crate) async fn found(
    (store, state_dir): (&Store, &Path),
    args: &ServeArgs,
    ports: [u16; 3],
) -> anyhow::Result<Endpoints> {
    let ca = if args.dangerous_plain_http {
        String::new()
    } else {
        let (source, ca_file) = certificate(state_dir, args);
        LiveCertificate::load(source, &SystemClock)?;
        tls::ca_pem(&ca_file)?
    };
    let endpoints = endpoints(args, ports, ca)?;
    demand(store, state_dir, &said(args, pins(state_dir, &args.pins)?)?, false).await?;
    endpoints.write(state_dir)?;
    Ok(endpoints)
}

/// Records what a server demands. Refuses less than the last one here did: flags that were forgotten, or a restored
/// backup. A backup has the file alone, and a copy of the database the record in the store alone.
async fn demand(
    store: &Store,
    state_dir: &Path,
    said: &Said,
    is_wanted: bool,
) -> anyhow::Result<()> {
    let (kept, stored) = (Said::read(state_dir)?.map(|said| said.demands), store.demands()?);
    let mut before = kept.iter().chain(&stored);
    match before.find_map(|before| said.demands.less_than(before)) {
        Some(what) if !is_wanted => return Err(CodedError::new(Code::DemandsLowered, what).into()),
        Some(what) => tracing::warn!(what, "less is demanded of nodes from now on"),
        None => {}
    }
    store.demand(&said.demands).await?;
    said.write(state_dir)
}

/// What a server with these flags requires of nodes.
fn said(args: &ServeArgs, pins: Pins) -> anyhow::Result<Said> {
    let roots = args.ek_roots.as_ref().map(|path| {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        anyhow::Ok(Sha256Digest::of(text).to_string())
    });
    Ok(Said {
        demands: Demands {
            entry: match args.registration_token_file {
                Some(_) => Entry::Token,
                None => Entry::Open,
            },
            binding: match args.ak_approval {
                Approval::Tofu => Binding::FirstUse,
                Approval::Ek => Binding::EndorsementKey,
                Approval::Manual => Binding::Manual,
            },
            endorsement_keys: args.allow_ek.iter().map(ToString::to_string).collect(),
            endorsement_roots: roots.transpose()?,
        },
        pcrs: match pins {
            Pins::Exactly(pinned) => pinned.iter().collect(),
            Pins::Predicted => BTreeSet::new(),
        },
    })
}

/// Where nodes reach servers on these ports.
fn endpoints(args: &ServeArgs, ports: [u16; 3], ca: String) -> anyhow::Result<Endpoints> {
    let scheme = if args.dangerous_plain_http { "http" } else { "https" };
    let url = |port: u16| -> anyhow::Result<BaseUrl> {
        format!("{scheme}://{}:{port}", bracketed(args.public_host()))
            .parse()
            .with_context(|| format!("--public-host {:?}", args.public_host()))
    };
    let [register, ak, kbs] = ports;
    Ok(Endpoints {
        register: url(register)?,
        ak: url(ak)?,
        kbs: kbs_list(Endpoint::new(url(kbs)?, ca.clone()), &args.also_kbs)?,
        ca,
        certificate: args.tls_cert.as_ref().map(std::path::absolute).transpose()?,
        root_device: args.root_device.clone(),
    })
}

fn bracketed(host: &str) -> String {
    if host.parse::<std::net::Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_owned() }
}

fn transport(
    state_dir: &Path,
    args: &ServeArgs,
    shutdown: &Shutdown,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<(Transport, String)> {
    if args.dangerous_plain_http {
        tracing::warn!("serving plain HTTP: anybody on the network path can read and drop");
        return Ok((Transport::DangerousPlain, String::new()));
    }
    let (source, ca_file) = certificate(state_dir, args);
    let (transport, _) = front::transport(Some(source), None, shutdown, tasks)?;
    Ok((transport, tls::ca_pem(&ca_file)?))
}

/// The certificate source, and the CA for nodes to pin.
fn certificate(state_dir: &Path, args: &ServeArgs) -> (tls::Source, std::path::PathBuf) {
    match (&args.tls_cert, &args.tls_key, &args.tls_ca) {
        (Some(cert), Some(key), Some(ca)) => {
            (tls::Source::Files { cert: cert.clone(), key: key.clone() }, ca.clone())
        }
        _ => (
            tls::Source::BuiltIn { directory: state_dir.to_owned(), names: names(args) },
            tls::built_in_ca(state_dir),
        ),
    }
}

fn names(args: &ServeArgs) -> Vec<String> {
    let addresses = args.addresses();
    let concrete = |address: &&SocketAddr| !address.ip().is_unspecified();
    let addresses = addresses.iter().filter(concrete).map(|address| address.ip().to_string());
    let names = [args.public_host(), "localhost"].map(str::to_owned).into_iter().chain(addresses);
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The KBS servers for nodes: this one, then `URL` or `URL=CA-FILE`.
fn kbs_list(own: Endpoint, also: &[String]) -> anyhow::Result<Vec<Endpoint>> {
    let parse =
        |text: &String| endpoint::parse(text).with_context(|| format!("--also-kbs {text:?}"));
    std::iter::once(Ok(own)).chain(also.iter().map(parse)).collect()
}

async fn expire(
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    seconds: i64,
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = shutdown.triggered() => return Ok(()),
            () = tokio::time::sleep(EXPIRE_EVERY) => {},
        }
        match store.expire_unclaimed(clock.now().plus_seconds(-seconds)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "unclaimed machines removed"),
            Err(error) => {
                let error = tec_core::port::chain(&error);
                tracing::warn!(error, "unclaimed machines not removed, will retry");
            }
        }
    }
}
