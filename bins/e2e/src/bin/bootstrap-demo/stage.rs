//! The hosts, and what is done to them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::host::{Host, Process, pause};
use crate::{Args, files};
use tec_e2e::admin::Admin;

const ADMIN: &str = "/etc/kubernetes/admin.conf";
const LIMIT: Duration = Duration::from_mins(4);
/// Exit status for a disk that has to be recovered first.
const NOT_READY: i32 = 3;

pub(crate) struct Stage<'a> {
    pub(crate) args: &'a Args,
    pub(crate) began: Instant,
    pub(crate) admin: Admin,
}

impl Stage<'_> {
    pub(crate) fn say(&self, what: &str) -> anyhow::Result<()> {
        let seconds = self.began.elapsed().as_secs();
        Ok(writeln!(std::io::stdout(), "{seconds:>4} s  {what}")?)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.args.bin_dir.join(name)
    }

    pub(crate) fn kubectl(&self, host: &Host, arguments: &[&str]) -> anyhow::Result<String> {
        let mut all = vec!["--kubeconfig", ADMIN];
        all.extend(arguments);
        host.output(&self.args.kubernetes.join("kubectl"), &all)
    }

    pub(crate) fn bootstrapper(&self, host: &Host, command: &str) -> anyhow::Result<Process> {
        let settings = host.path("bootstrapper.toml").display().to_string();
        let arguments = ["--config", &settings, command];
        host.spawn("bootstrapper", &self.program("bootstrapper"), &arguments)
    }

    /// Makes a host whose settings name the key of the join service; its own key.
    pub(crate) fn host(
        &self,
        base: &Path,
        number: u8,
        role: &str,
        join_service: Option<&str>,
    ) -> anyhow::Result<(Host, String)> {
        let mut host = Host::create(base, number)?;
        let stub = self.program("host-stub");
        let kubeadm = self.args.kubernetes.join("kubeadm");
        files::write_node(&host, role, join_service, (&stub, &kubeadm))?;
        host.start_kubelet(&stub, &self.args.kubernetes)?;
        let settings = host.path("bootstrapper.toml").display().to_string();
        let program = self.program("bootstrapper");
        let key = host.output(&program, &["--config", &settings, "key"])?;
        Ok((host, key.trim().to_owned()))
    }

    pub(crate) fn join_service(&self, host: &Host) -> anyhow::Result<Process> {
        let settings = host.path("join-service.toml").display().to_string();
        let kubeconfig = host.path("join-service.kubeconfig");
        let kubeconfig = format!("KUBECONFIG={}", kubeconfig.display());
        let program = self.program("join-service").display().to_string();
        let arguments = [&*kubeconfig, &program, "--config", &settings];
        host.spawn("join-service", Path::new("env"), &arguments)
    }

    pub(crate) fn boot(&self, host: &mut Host) -> anyhow::Result<()> {
        host.reboot()?;
        host.start_kubelet(&self.program("host-stub"), &self.args.kubernetes)?;
        let early = self.bootstrapper(host, "run")?;
        ended(host, early, NOT_READY)
    }
}

pub(crate) fn ended(host: &Host, process: Process, expected: i32) -> anyhow::Result<()> {
    let status = process.wait()?;
    anyhow::ensure!(
        status == Some(expected),
        "the bootstrapper of {} ended with {status:?}, not {expected}; see {}",
        host.name,
        host.path("bootstrapper.log").display()
    );
    Ok(())
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !is_so() {
        anyhow::ensure!(begin.elapsed() < LIMIT, "{what} does not come");
        pause();
    }
    Ok(())
}
