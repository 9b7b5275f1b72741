//! A server that nodes reach, run as a pod: the public port, and a port for probes and metrics.
//!
//! ```text
//!   0.0.0.0:PORT     TLS with live reload ─► counted ─► rate limit ─► gate, deadline ─► the service
//!   --metrics-addr   /metrics /livez /healthz /readyz, in plain HTTP
//! ```

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use clap::Args;
use tec_core::code::Code;
use tec_core::http::{ReplyStyle, refusal};
use tokio::task::JoinSet;

use crate::exit::CodedError;
use crate::limit::{Limiter, limit};
use crate::listen::{Counts, Limits, Server};
use crate::metrics::{RequestMetrics, count};
use crate::program::LogArgs;
use crate::serve::{Shutdown, Transport, bind, until_ended};
use crate::shared::{Network, SharedSources};
use crate::tls::LiveCertificate;
use crate::{SystemClock, listen, tls};

/// Longest time to answer a request, including its body: a node must not wait for a hanging API server when
/// it could ask a different server.
const ANSWER: Duration = Duration::from_secs(30);
/// Metric that shows why every request is refused.
const REFUSING: &str = "tec_refusing";

/// Flags of such a server; the TLS flags are those of the existing programs (trusted-cluster-operator).
#[derive(Clone, Debug, Args)]
pub struct FrontArgs {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0")]
    pub bind: IpAddr,
    /// Certificate chain, PEM; read again when it changes
    #[arg(long, requires = "key_path")]
    pub cert_path: Option<PathBuf>,
    /// Private key, PEM
    #[arg(long, requires = "cert_path")]
    pub key_path: Option<PathBuf>,
    /// Serve plain HTTP: anyone on the network path can read and change what nodes receive
    #[arg(long, conflicts_with = "cert_path")]
    pub dangerous_plain_http: bool,
    /// Address of the probes (/livez, /readyz) and /metrics, plain HTTP
    #[arg(long)]
    pub metrics_addr: Option<SocketAddr>,
    /// Requests per second in total; each client network gets a tenth of that, with bursts of up to
    /// 10 seconds' worth of the total
    #[arg(long, env = "TEC_RATE", default_value = "1000")]
    pub rate: NonZeroU32,
    /// Networks, separated by commas (such as 10.0.0.0/8), in which each address stands for many clients: nodes
    /// or load balancers that hide client addresses. Only the server's total limits apply to them (default:
    /// none)
    #[arg(long, env = "TEC_SHARED_SOURCES", value_name = "LIST", value_delimiter = ',')]
    pub shared_sources: Vec<Network>,
    /// Namespace of the objects (default: the pod's own)
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What to serve.
#[derive(derive_more::Debug)]
#[debug("Front {{ metrics: {metrics:?}, .. }}")]
pub struct Front {
    /// The service, with all paths.
    pub service: Router,
    /// Wording of refusals.
    pub style: ReplyStyle,
    /// Metrics of the requests.
    pub metrics: Arc<RequestMetrics>,
    /// Why every request is refused at the moment, if so.
    pub gate: Gate,
    /// Additional metrics, in the text format of Prometheus.
    pub also: Option<MoreMetrics>,
}

/// Metrics that a part of the service collects itself.
pub type MoreMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The code that refuses every request, if there is one.
pub type Gate = Arc<dyn Fn() -> Option<Code> + Send + Sync>;

/// Whether the server should receive requests.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

impl Front {
    fn public(self, rate: NonZeroU32, shared: SharedSources) -> Router {
        let limiter = Arc::new(Limiter::new(rate, self.style).shared_by(shared));
        gated(self.service.layer(from_fn_with_state(self.style, in_time)), self.gate, self.style)
            .layer(from_fn_with_state(limiter, limit))
            .layer(from_fn_with_state(self.metrics, count))
    }
}

/// The service, behind a gate.
pub fn gated(service: Router, gate: Gate, style: ReplyStyle) -> Router {
    service.layer(from_fn_with_state((gate, style), admit))
}

async fn admit(
    State((gate, style)): State<(Gate, ReplyStyle)>,
    request: Request,
    next: Next,
) -> Response {
    match gate() {
        Some(code) => refusal(style, code).into_response(),
        None => next.run(request).await,
    }
}

/// Answers within the deadline, whatever the service is waiting for.
async fn in_time(State(style): State<ReplyStyle>, request: Request, next: Next) -> Response {
    let late = match style {
        ReplyStyle::KeyBroker => Code::StoreUnavailable,
        _ => Code::RegisterUnavailable,
    };
    let answer = tokio::time::timeout(ANSWER, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        tracing::warn!(code = %late, "a request was not answered in time");
        refusal(style, late).into_response()
    })
}

fn status(
    (metrics, also): (&Arc<RequestMetrics>, MoreMetrics),
    connections: [Arc<Counts>; 2],
    ready: Ready,
    shutdown: &Shutdown,
) -> Router {
    let (metrics, shutdown) = (Arc::clone(metrics), shutdown.clone());
    let all = async move || metrics.render() + &listen::render(&connections) + &also();
    let is_ready = async move || {
        if ready() && !shutdown.is_triggered() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    Router::new()
        .route("/livez", get(async || StatusCode::OK))
        .route("/healthz", get(async || StatusCode::OK))
        .route("/readyz", get(is_ready))
        .route("/metrics", get(all))
}

/// The service's own metrics, the expiry of its certificate, and why every request is refused.
fn with_state(
    also: Option<MoreMetrics>,
    certificate: Option<Arc<LiveCertificate>>,
    gate: Gate,
) -> MoreMetrics {
    Arc::new(move || {
        let own = also.as_ref().map(|also| also()).unwrap_or_default();
        let expiry = certificate.as_ref().map(|live| live.metrics()).unwrap_or_default();
        own + &expiry + &gate().map(refusing).unwrap_or_default()
    })
}

fn refusing(code: Code) -> String {
    format!(
        "# HELP {REFUSING} 1 while the server refuses every request with this code.\n\
         # TYPE {REFUSING} gauge\n{REFUSING}{{code=\"{code}\"}} 1\n"
    )
}

/// Serves until a signal arrives or a part dies. `tasks` end with `shutdown`.
/// Errors: A port is taken, the TLS material cannot be used, or a part died.
pub async fn run(
    args: &FrontArgs,
    port: u16,
    front: Front,
    ready: Ready,
    (shutdown, signals): (Shutdown, impl Future<Output = ()> + Send + 'static),
    mut tasks: JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<u8> {
    let (transport, certificate) = args.transport(&shutdown, &mut tasks)?;
    let listener = bind(SocketAddr::new(args.bind, port))?;
    let address = listener.local_addr()?;
    let connections = Counts::new("public");
    let gate = Arc::clone(&front.gate);
    let closed = Arc::clone(&gate);
    let ready: Ready = Arc::new(move || ready() && closed().is_none());
    if let Some(address) = args.metrics_addr {
        let listener = bind(address)?;
        let address = listener.local_addr()?;
        let counts = Counts::new("metrics");
        let both = [Arc::clone(&connections), Arc::clone(&counts)];
        let also = with_state(front.also.clone(), certificate, gate);
        let counted = (&front.metrics, also);
        let status = status(counted, both, ready, &shutdown);
        let server = Server::new(Transport::DangerousPlain, status)
            .with_limits(Limits::probes())
            .counted_by(&counts);
        tasks.spawn(server.run(listener, shutdown.clone()));
        tracing::info!(%address, "probes and metrics");
    }
    let shared = SharedSources::from(args.shared_sources.as_slice());
    let public = front.public(args.rate, shared.clone());
    let server = Server::new(transport, public).shared_by(shared).counted_by(&connections);
    tasks.spawn(server.run(listener, shutdown));
    tracing::info!(%address, "listening");
    until_ended(tasks, signals, "server").await
}

impl FrontArgs {
    fn transport(
        &self,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<(Transport, Option<Arc<LiveCertificate>>)> {
        let why = "start without a certificate: give --cert-path and --key-path, or \
                   --dangerous-plain-http";
        let missing = || CodedError::new(Code::TlsMaterial, why).into();
        let missing = (!self.dangerous_plain_http).then(missing);
        let files = self.cert_path.clone().zip(self.key_path.clone());
        transport(
            files.map(|(cert, key)| tls::Source::Files { cert, key }),
            missing,
            shutdown,
            tasks,
        )
    }
}

/// TLS with a certificate that a task keeps fresh. Without one, plain HTTP, unless `missing` tells why not.
/// Errors: `missing`; the TLS material cannot be used.
pub fn transport(
    source: Option<tls::Source>,
    missing: Option<anyhow::Error>,
    shutdown: &Shutdown,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<(Transport, Option<Arc<LiveCertificate>>)> {
    let Some(source) = source else {
        if let Some(missing) = missing {
            return Err(missing);
        }
        tracing::warn!("serving plain HTTP: anybody on the network path can read and change it");
        return Ok((Transport::DangerousPlain, None));
    };
    let certificate = LiveCertificate::load(source, &SystemClock)?;
    let transport = Transport::Tls(certificate.server_config());
    let (shutdown, kept) = (shutdown.clone(), Arc::clone(&certificate));
    tasks.spawn(async move {
        kept.keep_fresh(Arc::new(SystemClock), shutdown).await;
        Ok(())
    });
    Ok((transport, Some(certificate)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::body::Body;
    use axum::http::Request;
    use clap::Parser as _;
    use tower::ServiceExt as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        front: FrontArgs,
    }

    #[tokio::test]
    async fn a_server_without_a_certificate_starts_only_if_plain_http_is_named() {
        let (_end, shutdown) = Shutdown::by_hand();
        let speaks = |words: &[&str]| {
            let args = Cli::parse_from(["server"].iter().chain(words)).front;
            args.transport(&shutdown, &mut JoinSet::new()).map(|(transport, _)| transport)
        };
        let refused = speaks(&[]).unwrap_err();
        let coded = refused.downcast_ref::<CodedError>().unwrap();
        assert_eq!(coded.code, Code::TlsMaterial);
        assert!(coded.context.contains("--dangerous-plain-http"));
        let named = speaks(&["--dangerous-plain-http"]).unwrap();
        assert!(matches!(named, Transport::DangerousPlain));
    }

    fn front(service: Router, gate: Gate) -> Router {
        let metrics = RequestMetrics::new(("a_total", "Requests."), ("a_seconds", "Time."));
        let style = ReplyStyle::Registration;
        let front = Front { service, style, metrics, gate, also: None };
        let peer =
            axum::extract::connect_info::MockConnectInfo(SocketAddr::from(([127, 0, 0, 1], 1)));
        front.public(NonZeroU32::new(1000).unwrap(), SharedSources::default()).layer(peer)
    }

    #[tokio::test]
    async fn a_closed_gate_refuses_with_its_code_and_an_open_one_does_not() {
        let code = Arc::new(std::sync::Mutex::new(Some(Code::ClockSkewed)));
        let seen = Arc::clone(&code);
        let service = Router::new().fallback(async || StatusCode::OK);
        let router = front(service, Arc::new(move || *seen.lock().unwrap()));
        let request = || Request::get("/").body(Body::empty()).unwrap();
        let refused = router.clone().oneshot(request()).await.unwrap();
        assert_eq!(refused.extensions().get(), Some(&Code::ClockSkewed));
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        *code.lock().unwrap() = None;
        assert_eq!(ask(&router, "/").await, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_waits_for_ever_is_answered_for() {
        let service = Router::new().fallback(async || std::future::pending::<StatusCode>().await);
        let router = front(service, Arc::new(|| None));
        assert_eq!(ask(&router, "/").await, StatusCode::SERVICE_UNAVAILABLE);
    }

    async fn ask(router: &Router, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn a_pod_is_alive_before_it_is_ready_and_not_ready_once_it_shall_end() {
        let is_ready = Arc::new(AtomicBool::new(false));
        let (end, shutdown) = Shutdown::by_hand();
        let metrics = RequestMetrics::new(("a_total", "Requests."), ("a_seconds", "Time."));
        let seen = Arc::clone(&is_ready);
        let router = status(
            (&metrics, with_state(None, None, Arc::new(|| None))),
            [Counts::new("public"), Counts::new("metrics")],
            Arc::new(move || seen.load(Ordering::Relaxed)),
            &shutdown,
        );
        let (ok, not) = (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE);
        for path in ["/livez", "/healthz", "/metrics"] {
            assert_eq!(ask(&router, path).await, ok, "{path}");
        }
        assert_eq!(ask(&router, "/readyz").await, not);
        is_ready.store(true, Ordering::Relaxed);
        assert_eq!(ask(&router, "/readyz").await, ok);
        end.send_replace(true);
        assert_eq!(ask(&router, "/readyz").await, not);
        assert_eq!(ask(&router, "/livez").await, ok);
    }
}
