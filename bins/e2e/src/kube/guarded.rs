//! A process that ends with the test that started it, however that test ends.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::process::Transcript;

/// Runs the program and waits for the end of its own standard input, a pipe from the test, which the kernel
/// closes when the test is gone. The shell remains the program's parent and does not reap it before killing
/// it, so the process ID cannot belong to another process by then.
const KEEPER: &str =
    r#""$@" </dev/null & program=$!; read -r _; kill -KILL $program; wait $program"#;

/// A running program.
#[derive(Debug)]
pub struct Guarded {
    keeper: Child,
    log: PathBuf,
}

impl Guarded {
    /// Starts a program, with its output in a log of this name.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: &[(&str, &OsStr)],
        logs: &Transcript,
    ) -> anyhow::Result<Self> {
        let (log, out) = logs.file(name)?;
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { keeper, log })
    }

    /// What the program printed so far.
    pub fn log(&self) -> anyhow::Result<String> {
        let text = std::fs::read(&self.log)
            .with_context(|| format!("cannot read {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Its process ID, once it has started.
    pub fn pid(&self) -> anyhow::Result<u32> {
        let keeper = self.keeper.id();
        // Linux, proc_pid_task(5): the program is the only child of the waiting shell.
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        let children =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let first = children.split_whitespace().next();
        Ok(first.context("the program has not been started yet")?.parse()?)
    }

    /// Whether the program is still running.
    pub fn is_running(&self) -> bool {
        let stat = self.pid().and_then(|pid| {
            let path = format!("/proc/{pid}/stat");
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        });
        // Linux, proc_pid_stat(5): the state comes after the name, which is in parentheses.
        stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    }

    /// Kills the program with SIGKILL and waits for it.
    pub fn kill(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}
