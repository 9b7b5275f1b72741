//! Shared by suites that measure servers and processes as a whole.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context as _, Result};
use tokio::runtime::Runtime;

/// A runtime of two threads.
pub fn runtime() -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build()
}

/// A number that an environment variable may set.
pub fn number(variable: &str, default: u64) -> Result<u64> {
    let Some(text) = std::env::var_os(variable) else {
        return Ok(default);
    };
    let text = text.to_string_lossy();
    let number = text.parse();
    number.with_context(|| format!("{variable} is not a number: {text}"))
}

/// A count as a float: counts here are far below 2^32.
pub fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The time of `times` operations, given that `done` of them took this long.
pub fn scaled(took: Duration, times: u64, done: u64) -> Duration {
    let nanos = took.as_nanos() * u128::from(times) / u128::from(done);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Peak memory of a process in bytes, by its ID or as `self` (Linux, proc_pid_status(5): `VmHWM`).
pub fn peak_memory(process: impl Display) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let size = line.context("the system reports no peak")?;
    let kibibytes: f64 = size.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0)
}

/// How long individual operations took, and how many failed.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<(Mutex<Vec<Duration>>, AtomicU64)>);

impl Tally {
    fn times(&self) -> MutexGuard<'_, Vec<Duration>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation that took this long.
    pub fn add(&self, took: Duration) {
        self.times().push(took);
    }

    /// Runs an operation and adds it.
    pub async fn time(self, work: impl Future<Output = Result<()>>) {
        let begin = Instant::now();
        match work.await {
            Ok(()) => self.add(begin.elapsed()),
            Err(_) => drop(self.0.1.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Forgets the successful operations so far.
    pub fn clear(&self) {
        self.times().clear();
    }

    /// 99th percentile in nanoseconds.
    pub fn p99(&self) -> Result<f64> {
        self.percentile(99)
    }

    /// The time in nanoseconds within which so many of 100 operations finished.
    ///
    /// # Errors
    /// There was no operation, or one failed: a failed operation was not measured, so the number would be
    /// misleading.
    pub fn percentile(&self, percent: usize) -> Result<f64> {
        let failed = self.0.1.load(Ordering::Relaxed);
        anyhow::ensure!(failed == 0, "{failed} operations failed");
        let mut times = self.times();
        times.sort_unstable();
        let index = times.len().saturating_sub(1) * percent / 100;
        let slow = times.get(index).context("nothing was measured")?;
        Ok(slow.as_secs_f64() * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_failed_has_no_percentile() {
        let tally = Tally::default();
        assert!(tally.p99().is_err());
        for millis in 1..=200 {
            tally.add(Duration::from_millis(millis));
        }
        assert!((tally.p99().unwrap() - 198e6).abs() < 1.0);
        assert!((tally.percentile(50).unwrap() - 100e6).abs() < 1.0);
        tally.clone().time(async { anyhow::bail!("no") }).await;
        assert!(tally.p99().is_err());
    }

    #[test]
    fn the_system_tells_the_peak_of_this_process() {
        assert!(peak_memory("self").unwrap() > 1024.0);
        assert_eq!(scaled(Duration::from_secs(6), 1, 3), Duration::from_secs(2));
    }
}
