//! etcd, API server and controllers, from start to end.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kube::config::AuthInfo;
use kube::{Client, Config};
use serde_json::json;
use tec_core::port::Entropy as _;
use tec_support::SystemEntropy;
use tec_support::testing::free_port;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::guarded::Guarded;
use super::pki::Pki;
use crate::process::Transcript;

/// Deadline for a control plane to be ready, on a machine that is also busy otherwise.
const READY: Duration = Duration::from_mins(2);
/// Interval between readiness checks.
const POLL: Duration = Duration::from_millis(100);
/// Attempts with other ports, if a port is taken between its choice and its use.
const ATTEMPTS: u32 = 5;
/// Controllers for owner references, namespaces and service accounts. Tests play the controllers of
/// Deployments and Jobs: without nodes, the real ones report that nothing ever starts.
const CONTROLLERS: &str =
    "garbage-collector-controller,namespace-controller,serviceaccount-controller";

/// What to do with a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    GoOn,
}

/// A running control plane. Stopped on drop, or with the process.
#[derive(Debug)]
pub struct ControlPlane {
    // The order matters: fields are dropped from the top.
    controllers: Option<Guarded>,
    api_server: Option<Guarded>,
    etcd: Option<Guarded>,
    ports: [u16; 3],
    pki: Pki,
    token: String,
    logs: Transcript,
    programs: PathBuf,
    namespaces: AtomicU32,
    directory: TempDir,
}

impl ControlPlane {
    /// The one with the custom resources that all tests of this process share, each in its own namespace. It
    /// ends with the process: the tests that run at a time may all have their own.
    pub async fn shared() -> anyhow::Result<Arc<Self>> {
        static SHARED: OnceCell<(Arc<ControlPlane>, Child)> = OnceCell::const_new();
        let start = async || {
            let plane = Self::start().await?;
            plane.install_resources().await?;
            let remover = remove_at_exit(plane.directory.path())?;
            anyhow::Ok((Arc::new(plane), remover))
        };
        let (plane, _) = SHARED.get_or_try_init(start).await?;
        Ok(Arc::clone(plane))
    }

    /// Starts everything and waits until it serves.
    ///
    /// # Errors
    /// A program is missing (`cargo xtask tools`), or does not become ready; the error contains the end of
    /// its log.
    pub async fn start() -> anyhow::Result<Self> {
        let mut attempt = 1;
        loop {
            let mut plane = Self::prepare()?;
            match plane.launch().await {
                Ok(()) => return Ok(plane),
                Err(error)
                    if attempt < ATTEMPTS
                        && format!("{error:#}").contains("address already in use") =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn prepare() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let pki = Pki::create(directory.path())?;
        let mut random = [0; 16];
        SystemEntropy.fill(&mut random);
        let token = hex::encode(random);
        let line = format!("{token},admin,admin,system:masters\n");
        fs::write(directory.path().join("tokens.csv"), line)?;
        Ok(Self {
            controllers: None,
            api_server: None,
            etcd: None,
            ports: [free_port()?, free_port()?, free_port()?],
            pki,
            token,
            logs: Transcript::new(directory.path().join("logs"))?,
            programs: programs()?,
            namespaces: AtomicU32::new(0),
            directory,
        })
    }

    async fn launch(&mut self) -> anyhow::Result<()> {
        self.start_etcd()?;
        self.start_api_server().await?;
        let kubeconfig = self.kubeconfig("controllers", &self.token)?;
        let key = self.pki.accounts_key.as_os_str();
        let arguments: Vec<std::ffi::OsString> = vec![
            flag("--kubeconfig=", &kubeconfig),
            flag("--service-account-private-key-file=", key),
            flag("--root-ca-file=", &self.pki.ca_file),
            format!("--controllers={CONTROLLERS}").into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=200".into(),
            "--kube-api-burst=400".into(),
        ];
        let program = self.programs.join("kube-controller-manager");
        let controllers = Guarded::start("controllers", &program, arguments, &[], &self.logs)?;
        self.controllers = Some(controllers);
        Ok(())
    }

    fn start_etcd(&mut self) -> anyhow::Result<()> {
        let [client, peer, _] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let data = self.directory.path().join("etcd");
        let arguments: Vec<std::ffi::OsString> = vec![
            flag("--data-dir=", &data),
            format!("--listen-client-urls={client}").into(),
            format!("--advertise-client-urls={client}").into(),
            format!("--listen-peer-urls={peer}").into(),
            format!("--initial-advertise-peer-urls={peer}").into(),
            format!("--initial-cluster=default={peer}").into(),
            "--log-level=warn".into(),
        ];
        let etcd = Path::new("etcd");
        self.etcd = Some(Guarded::start("etcd", etcd, arguments, &[], &self.logs)?);
        Ok(())
    }

    /// Makes etcd refuse every write, as if its disk quota were used up, or stops doing so.
    pub async fn fill_etcd(&self, is_full: bool) -> anyhow::Result<()> {
        let [etcd, ..] = self.ports;
        let ask = async |path: &str, body: serde_json::Value| {
            let url = format!("http://127.0.0.1:{etcd}/v3/{path}");
            let client = reqwest::Client::builder().no_proxy().build()?;
            let answer =
                client.post(url).body(body.to_string()).send().await?.error_for_status()?;
            anyhow::Ok(serde_json::from_slice::<serde_json::Value>(&answer.bytes().await?)?)
        };
        let status = ask("maintenance/status", json!({})).await?;
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let member = &status["header"]["member_id"];
        let alarm = json!({"action": action, "memberID": member, "alarm": "NOSPACE"});
        ask("maintenance/alarm", alarm).await?;
        Ok(())
    }

    /// Starts the API server, for the first time or after [`stop_api_server`](Self::stop_api_server), and
    /// waits until it is ready.
    pub async fn start_api_server(&mut self) -> anyhow::Result<()> {
        let [etcd, _, port] = self.ports;
        let [certificate, key] = &self.pki.server;
        let arguments: Vec<std::ffi::OsString> = vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}").into(),
            format!("--secure-port={port}").into(),
            "--bind-address=127.0.0.1".into(),
            // An address that no host has (RFC 5737): by default it is that of the default route, and a
            // machine without a network has none.
            "--advertise-address=192.0.2.1".into(),
            flag("--tls-cert-file=", certificate),
            flag("--tls-private-key-file=", key),
            flag("--token-auth-file=", self.directory.path().join("tokens.csv")),
            "--authorization-mode=RBAC".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            flag("--service-account-signing-key-file=", &self.pki.accounts_key),
            flag("--service-account-key-file=", &self.pki.accounts_public),
            "--service-cluster-ip-range=10.0.0.0/16".into(),
            // One test program is not a fleet of tenants; otherwise it would be throttled as one.
            "--enable-priority-and-fairness=false".into(),
            // Image volumes, which Jobs mount; off by default in this release.
            "--feature-gates=ImageVolume=true".into(),
        ];
        let program = self.programs.join("kube-apiserver");
        let server = Guarded::start("kube-apiserver", &program, arguments, &[], &self.logs)?;
        self.wait_until_ready(&server).await?;
        self.api_server = Some(server);
        Ok(())
    }

    /// Stops the API server in the middle of whatever it does, like a machine that hangs, or continues it.
    /// Connections stay open, but nothing answers.
    pub fn freeze_api_server(&self, freeze: Freeze) -> anyhow::Result<()> {
        let server = self.api_server.as_ref().context("no API server runs")?;
        let pid = rustix::process::Pid::from_raw(server.pid()?.try_into()?);
        let signal = match freeze {
            Freeze::Stop => rustix::process::Signal::STOP,
            Freeze::GoOn => rustix::process::Signal::CONT,
        };
        rustix::process::kill_process(pid.context("the process has no ID")?, signal)?;
        Ok(())
    }

    /// CA certificate of the API server, PEM.
    pub fn authority(&self) -> &str {
        &self.pki.ca
    }

    /// Kills the API server with SIGKILL; what it acknowledged is in etcd.
    pub fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    async fn wait_until_ready(&self, server: &Guarded) -> anyhow::Result<()> {
        let client = self.admin()?;
        let end = Instant::now() + READY;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            if client.request_text(request).await.is_ok() {
                return Ok(());
            }
            let log = server.log()?;
            if Instant::now() > end || log.contains("command failed") {
                let lines: Vec<_> = log.lines().rev().take(10).collect();
                bail!("the API server is not ready: {}", lines.join("\n"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// A client with all permissions.
    pub fn admin(&self) -> anyhow::Result<Client> {
        self.client(&self.token)
    }

    /// A client with this bearer token.
    pub fn client(&self, token: &str) -> anyhow::Result<Client> {
        // A provider installed by other code is just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = Config::new(self.url().parse()?);
        let ca = pem_body(&self.pki.ca)?;
        config.root_cert = Some(vec![ca]);
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }

    /// URL of the API server.
    pub fn url(&self) -> String {
        let [_, _, port] = self.ports;
        format!("https://127.0.0.1:{port}")
    }

    /// A kubeconfig for kubectl and other programs, with this bearer token.
    pub fn kubeconfig(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        self.kubeconfig_at(&self.url(), name, token)
    }

    /// Like [`kubeconfig`](Self::kubeconfig), with a different URL for the API server.
    pub fn kubeconfig_at(&self, url: &str, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory.path().join(format!("{name}.kubeconfig"));
        let value = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": url, "certificate-authority": self.pki.ca_file,
            }}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        // The previous file may be being read at this moment.
        let mut file = tempfile::NamedTempFile::new_in(self.directory.path())?;
        file.write_all(value.to_string().as_bytes())?;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// A kubeconfig with all permissions.
    pub fn admin_kubeconfig(&self) -> anyhow::Result<PathBuf> {
        self.kubeconfig("admin", &self.token)
    }

    /// Logs of everything that runs here; tests may add their own programs.
    pub fn logs(&self) -> &Transcript {
        &self.logs
    }

    /// A number for the name of the next namespace.
    pub(super) fn next_namespace(&self) -> u32 {
        self.namespaces.fetch_add(1, Ordering::Relaxed)
    }
}

/// Removes a directory when this process is gone, however it ends: nothing drops what is static.
fn remove_at_exit(directory: &Path) -> anyhow::Result<Child> {
    let script = r#"read -r _; sleep 1; rm -rf "$1""#;
    let mut remover = Command::new("sh");
    remover.args(["-c", script, "sh"]).arg(directory).stdin(Stdio::piped());
    Ok(remover.spawn()?)
}

/// Directory of the programs built by `cargo xtask tools`.
fn programs() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("TEC_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|dir| dir.join("tec")))
        .or_else(|| variable("HOME").map(|dir| dir.join(".cache/tec")))
        .context("no cache of tools; run `cargo xtask tools`")?;
    let bin = cache.join("bin");
    let is_there = bin.join("kube-apiserver").is_file();
    anyhow::ensure!(is_there, "{} has no kube-apiserver; run `cargo xtask tools`", bin.display());
    Ok(bin)
}

fn flag(name: &str, path: impl AsRef<OsStr>) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(name);
    flag.push(path.as_ref());
    flag
}

/// The DER form of the only block in a PEM text.
fn pem_body(pem: &str) -> anyhow::Result<Vec<u8>> {
    use base64::Engine as _;
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    let body: String = lines.collect();
    base64::engine::general_purpose::STANDARD.decode(body).context("cannot decode the certificate")
}
