//! A NATS server with what its initializer wrote.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::kube::{Guarded, eventually};
use crate::packages::tool;
use anyhow::Context as _;
use http::Method;
use services::init::cli::Args;
use services::init::run;
use tec_services::shell::{Http, Target};

use crate::services::platform::Platform;
use tec_support::testing::free_address;

/// Deadline for an answer about its health.
const HEALTH: Duration = Duration::from_secs(2);

/// A running server. Stopped on drop, or with the process.
#[derive(Debug)]
pub struct Nats {
    /// URL that clients connect to.
    pub url: String,
    /// The settings of its initializer.
    pub init: Args,
    process: Guarded,
}

/// One of several servers that store events together: where it listens.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Member {
    /// For clients.
    pub clients: SocketAddr,
    /// For the other servers.
    pub servers: SocketAddr,
    /// For its health.
    pub monitor: SocketAddr,
}

impl Member {
    /// Free addresses.
    pub fn new() -> anyhow::Result<Self> {
        let (clients, servers) = (free_address()?, free_address()?);
        Ok(Self { clients, servers, monitor: free_address()? })
    }

    /// URL that clients connect to.
    pub fn url(&self) -> String {
        format!("tls://localhost:{}", self.clients.port())
    }

    /// Whether the server is up, and has what the others have.
    pub async fn is_healthy(&self) -> bool {
        let address = self.monitor.to_string();
        let http = Http::new(Target::DangerousPlain { address }, HEALTH);
        let reply = http.call(Method::GET, "/healthz", &[], None).await;
        reply.is_ok_and(|reply| reply.status == 200)
    }
}

impl Nats {
    /// Runs the init container, the server's own check of the configuration, and the server.
    ///
    /// # Errors
    /// One of them fails; the error contains its log.
    pub async fn start(platform: &Platform, program: &str) -> anyhow::Result<Self> {
        Self::start_at(platform, program, free_address()?).await
    }

    /// Like [`start`](Self::start), at an address that was chosen before.
    ///
    /// # Errors
    /// One of them fails; the error contains its log.
    pub async fn start_at(
        platform: &Platform,
        program: &str,
        listen: SocketAddr,
    ) -> anyhow::Result<Self> {
        Self::start_with(platform, program, listen, &[]).await
    }

    /// Like [`start_at`](Self::start_at), with a server that stores events.
    ///
    /// # Errors
    /// One of them fails; the error contains its log.
    pub async fn start_storing(platform: &Platform, listen: SocketAddr) -> anyhow::Result<Self> {
        let storage = platform.stage.path("nats-events").display().to_string();
        Self::start_with(platform, "nats-server", listen, &["--storage", &storage]).await
    }

    /// Like [`start_storing`](Self::start_storing), with a monitor at this address.
    ///
    /// # Errors
    /// One of them fails; the error contains its log.
    pub async fn start_watched(
        platform: &Platform,
        listen: SocketAddr,
        monitor: SocketAddr,
    ) -> anyhow::Result<Self> {
        let storage = platform.stage.path("nats-events").display().to_string();
        let monitor = monitor.to_string();
        let more = ["--storage", &storage, "--monitor", &monitor];
        Self::start_with(platform, "nats-server", listen, &more).await
    }

    /// Starts the server with this number of several; its files outlive it.
    ///
    /// # Errors
    /// One of its programs fails; the error contains its log.
    pub async fn start_member(
        platform: &Platform,
        members: &[Member],
        number: usize,
    ) -> anyhow::Result<Self> {
        let member = members.get(number).context("there is no such server")?;
        let account = platform.stage.cluster.account("nats")?;
        let own = platform.stage.path(&format!("nats-{number}"));
        std::fs::create_dir_all(&own)?;
        let at = |name: &str| own.join(name).display().to_string();
        let routes: Vec<String> =
            members.iter().map(|one| format!("localhost:{}", one.servers.port())).collect();
        let listen = member.clients.to_string();
        let flags = [
            ["--listen", &listen],
            ["--accounts", &at("accounts")],
            ["--storage", &at("events")],
            ["--monitor", &member.monitor.to_string()],
            ["--cluster-listen", &member.servers.to_string()],
            ["--name", &format!("nats-{number}")],
            ["--routes", &routes.join(",")],
        ];
        let mut args = platform.init(&account, &[&["nats"], flags.as_flattened()].concat()).await?;
        // Each pod has its own volume.
        args.out = own.join("shared");
        std::fs::create_dir_all(&args.out)?;
        run::run(&args).await?;
        Self::run(platform, tool("bin/nats-server")?, args, &listen).await
    }

    async fn start_with(
        platform: &Platform,
        program: &str,
        listen: SocketAddr,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let program = tool(&format!("bin/{program}"))?;
        let account = platform.stage.cluster.account("nats")?;
        let listen = listen.to_string();
        let kept = platform.stage.path("nats-accounts");
        let kept = kept.display().to_string();
        let flags = ["nats", "--listen", &listen, "--accounts", &kept];
        let args = platform.init(&account, &[&flags[..], more].concat()).await?;
        run::run(&args).await?;
        Self::run(platform, program, args, &listen).await
    }

    async fn run(
        platform: &Platform,
        program: PathBuf,
        init: Args,
        listen: &str,
    ) -> anyhow::Result<Self> {
        let config = init.out.join("nats.conf");
        let logs = &platform.stage.logs;
        logs.must(Command::new(&program).arg("-t").arg("-c").arg(&config))
            .context("the server does not accept its configuration")?;
        let arguments = ["-c".as_ref(), config.as_os_str()];
        let process = Guarded::start("nats-server", &program, arguments, &[], logs)?;
        let up = eventually("a NATS server that listens", async || {
            Ok(tokio::net::TcpStream::connect(listen).await.is_ok())
        });
        let up = up.await;
        let log = process.log()?;
        up.with_context(|| format!("no NATS server: {log}"))?;
        let port = listen.rsplit_once(':').context("the address has no port")?.1;
        Ok(Self { url: format!("tls://localhost:{port}"), init, process })
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Its output so far.
    pub fn log(&self) -> anyhow::Result<String> {
        self.process.log()
    }
}
