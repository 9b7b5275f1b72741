//! A running `tec serve`, and what the system counts for it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_benches::load;
use tec_core::endpoint::Endpoint;
use tec_e2e::anchor::Anchor;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;

use crate::fleet::Fleet;

/// Rate limit: in a round the fleet is as fast as it can.
const FLAGS: [&str; 2] = ["--kbs-rate", "100000"];
/// Unit of the system's accounts of processor time (Linux, proc_pid_stat(5)): USER_HZ is 100 everywhere.
const TICK: Duration = Duration::from_millis(10);

pub(crate) struct Server {
    anchor: Anchor,
    pub(crate) kbs: Arc<Endpoint>,
    _directory: tempfile::TempDir,
}

impl Server {
    /// A server that knows the machines.
    pub(crate) async fn start(programs: PathBuf, fleet: &Fleet) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let state = directory.path().join("state");
        fleet.enroll(&state).await?;
        let logs = Arc::new(Transcript::new(directory.path().join("logs"))?);
        let anchor = Anchor::start(&Settings::for_benches(programs)?, &state, &logs, &FLAGS)?;
        let kbs = Arc::new(anchor.kbs()?);
        Ok(Self { anchor, kbs, _directory: directory })
    }

    /// Resident memory in bytes.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        let kibibytes = u32::try_from(self.anchor.memory()? / 1024)?;
        Ok(f64::from(kibibytes) * 1024.0)
    }

    /// The most memory that it ever had.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<f64> {
        load::peak_memory(self.anchor.pid())
    }

    /// Processor time of all its threads (fields 14 and 15).
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = self.file("stat")?;
        let (_, tail) = stat.rsplit_once(") ").context("the process status has no name")?;
        let times = tail.split(' ').skip(11).take(2).map(str::parse::<u32>);
        Ok(TICK * times.sum::<Result<u32, _>>()?)
    }

    /// Bytes that it caused to be written to disk (Linux, proc_pid_io(5)).
    pub(crate) fn written(&self) -> anyhow::Result<f64> {
        let io = self.file("io")?;
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        Ok(line.context("the system does not count writes")?.parse()?)
    }

    fn file(&self, name: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{name}", self.anchor.pid());
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    }
}
