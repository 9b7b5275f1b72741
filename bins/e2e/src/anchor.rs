//! A running `tec serve`, the trust anchor of the scenes.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::store::Store;
use tec_support::SystemEntropy;

use crate::process::{Transcript, wait_for};
use crate::settings::Settings;

/// Deadline for a server to be ready.
const READY: Duration = Duration::from_secs(20);

/// Where servers of tests listen.
pub const LOOPBACK: &str = "127.0.0.1";

/// A server process and its state directory; stopped on drop.
#[derive(Debug)]
pub struct Anchor {
    tec: PathBuf,
    state_dir: PathBuf,
    logs: Arc<Transcript>,
    child: Child,
    /// Addresses of the first start: disks refer to them, so later starts use the same ones.
    addresses: [String; 3],
    host: String,
    extra: Vec<String>,
    /// How long the last start took.
    pub time_to_ready: Duration,
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Anchor {
    /// Starts a server on free ports of the loopback address.
    ///
    /// # Errors
    /// The server did not become ready; the error contains its output.
    pub fn start(
        settings: &Settings,
        state_dir: &Path,
        logs: &Arc<Transcript>,
        extra: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start_at((LOOPBACK, LOOPBACK), settings, state_dir, logs, extra)
    }

    /// Starts a server on free ports of `address`, which nodes reach as `host`.
    pub fn start_at(
        (host, address): (&str, &str),
        settings: &Settings,
        state_dir: &Path,
        logs: &Arc<Transcript>,
        extra: &[&str],
    ) -> anyhow::Result<Self> {
        let tec = settings.tec();
        let extra: Vec<String> = extra.iter().map(|&word| word.to_owned()).collect();
        let free = format!("{address}:0");
        let any = [free.clone(), free.clone(), free];
        let (child, time_to_ready) = spawn(&tec, host, state_dir, logs, &any, &extra)?;
        let mut anchor = Self {
            tec,
            state_dir: state_dir.to_owned(),
            logs: Arc::clone(logs),
            child,
            addresses: any,
            host: host.to_owned(),
            extra,
            time_to_ready,
        };
        let listens = |url: &BaseUrl| {
            let port = url.as_str().rsplit(':').next().unwrap_or("");
            format!("{address}:{port}")
        };
        anchor.addresses = anchor.urls()?.each_ref().map(listens);
        Ok(anchor)
    }

    /// Process ID of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server with SIGKILL: no handler runs, nothing is flushed.
    ///
    /// # Errors
    /// The server was already gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the server")?;
        self.child.wait().context("cannot reap the server")?;
        Ok(())
    }

    /// Stops the server with SIGTERM, and waits for it.
    pub fn terminate(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the server has no process ID")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let mut status = None;
        wait_for("the server to end", limit, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        status.context("the server did not end")
    }

    /// Starts the server again with the same state and addresses.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let (child, time) = spawn(
            &self.tec,
            &self.host,
            &self.state_dir,
            &self.logs,
            &self.addresses,
            &self.extra,
        )?;
        self.child = child;
        self.time_to_ready = time;
        Ok(())
    }

    /// Runs `tec … --output json` on the server's state and parses the output.
    pub fn tec(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.tec);
        command.args(["--output", "json", "--log", "warn", "--state-dir"]);
        let printed = self.logs.must(command.arg(&self.state_dir).args(arguments))?;
        serde_json::from_str(&printed)
            .with_context(|| format!("cannot parse the output of {arguments:?}"))
    }

    /// Runs `tec …` and returns its output as text.
    pub fn tec_text(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.tec);
        command.args(["--log", "warn", "--state-dir"]);
        self.logs.must(command.arg(&self.state_dir).args(arguments))
    }

    /// Base URLs of registration, attestation-key registration and key broker.
    pub fn urls(&self) -> anyhow::Result<[BaseUrl; 3]> {
        let endpoints = read_endpoints(&self.state_dir)?;
        let url = |value: &Value| -> anyhow::Result<BaseUrl> {
            Ok(value.as_str().context("no URL in endpoints.json")?.parse()?)
        };
        Ok([
            url(&endpoints["register"])?,
            url(&endpoints["ak"])?,
            url(&endpoints["kbs"][0]["url"])?,
        ])
    }

    /// The CA that nodes pin.
    pub fn ca(&self) -> anyhow::Result<String> {
        let endpoints = read_endpoints(&self.state_dir)?;
        Ok(endpoints["ca"].as_str().context("no CA in endpoints.json")?.to_owned())
    }

    /// The key broker, as announced to nodes.
    pub fn kbs(&self) -> anyhow::Result<Endpoint> {
        let [_, _, kbs] = self.urls()?;
        Ok(Endpoint::new(kbs, self.ca()?))
    }

    /// The key broker, as reached from this host.
    pub fn local_kbs(&self) -> anyhow::Result<BaseUrl> {
        let [_, _, kbs] = &self.addresses;
        // The certificate contains this name in addition to the public name.
        Ok(kbs.replace(LOOPBACK, "https://localhost").parse()?)
    }

    /// Runs `tec …`, which exits with 3 if the boot would be refused; returns whether it would be accepted.
    pub fn foretells(&self, arguments: &[&str]) -> anyhow::Result<bool> {
        let mut command = Command::new(&self.tec);
        command.args(["--log", "warn", "--state-dir"]).arg(&self.state_dir);
        let output = self.logs.run(command.args(arguments))?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(code) if code == i32::from(tec_support::exit::NOT_READY) => Ok(false),
            _ => bail!("tec failed: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// Opens the store while the server is running.
    pub fn store(&self) -> anyhow::Result<Store> {
        Store::open(&self.state_dir, &SystemEntropy).context("cannot open the server's store")
    }

    /// Resident memory of the server in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no VmRSS line")?.parse::<u64>()? * 1024)
    }
}

fn read_endpoints(state_dir: &Path) -> anyhow::Result<Value> {
    let path = state_dir.join("endpoints.json");
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))
}

fn spawn(
    tec: &Path,
    host: &str,
    state_dir: &Path,
    logs: &Transcript,
    addresses: &[String; 3],
    extra: &[String],
) -> anyhow::Result<(Child, Duration)> {
    // The server writes it when it starts to listen, so its absence means "not yet".
    let _ = fs::remove_file(state_dir.join("endpoints.json"));
    let (path, log) = logs.file("serve")?;
    let [register, ak, kbs] = addresses;
    let begin = Instant::now();
    let mut child = Command::new(tec)
        .arg("--state-dir")
        .arg(state_dir)
        .args(["serve", "--public-host", host, "--register-addr", register])
        .args(["--ak-addr", ak, "--kbs-addr", kbs])
        .args(extra)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", tec.display()))?;
    let ready = wait_for("tec serve", READY, || {
        if let Some(status) = child.try_wait()? {
            bail!("tec serve ended ({status}): {}", fs::read_to_string(&path)?.trim());
        }
        let Ok(endpoints) = read_endpoints(state_dir) else {
            return Ok(false);
        };
        let port = endpoints["kbs"][0]["url"]
            .as_str()
            .and_then(|url| url.rsplit(':').next()?.parse().ok());
        Ok(port.is_some_and(|port: u16| TcpStream::connect((LOOPBACK, port)).is_ok()))
    });
    if let Err(error) = ready {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok((child, begin.elapsed()))
}
