//! A NATS server with what its initializer wrote.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use crate::kube::{Guarded, eventually};
use crate::packages::tool;
use anyhow::Context as _;
use tec_services::init::cli::Args;
use tec_services::init::run;

use crate::services::platform::Platform;
use tec_support::testing::free_address;

/// A running server. Stopped on drop, or with the process.
#[derive(Debug)]
pub struct Nats {
    /// URL that clients connect to.
    pub url: String,
    /// The settings of its initializer.
    pub init: Args,
    process: Guarded,
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
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        self.process.log()
    }
}
