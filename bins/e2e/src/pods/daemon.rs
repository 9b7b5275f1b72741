//! Programs that outlive the process that started them, in the network namespace of the node.

use std::fs;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The network namespace.
pub(super) const NETWORK: &str = "tec-node";
/// How long a program may take to stop by itself.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(50);

/// A command in the network of the node. It does not unshare mounts, which kubelet and containerd must share.
pub(super) fn inside(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{NETWORK}")).arg("--").arg(program);
    command.stdin(Stdio::null());
    command
}

/// Moves the calling thread to that network (Linux, setns(2)).
pub(super) fn enter() -> anyhow::Result<()> {
    let namespace = File::open(format!("/run/netns/{NETWORK}"))?;
    let kind = LinkNameSpaceType::Network;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(kind))?)
}

/// Starts a program; its log and a record of its process are in the folders `log` and `pid`.
pub(super) fn start(
    dir: &Path,
    name: &str,
    program: &Path,
    arguments: &[String],
) -> anyhow::Result<()> {
    let log = File::create(dir.join("log").join(format!("{name}.log")))?;
    let mut command = inside(program);
    command.args(arguments).stdout(log.try_clone()?).stderr(log).process_group(0);
    let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let note = Note { pid: child.id().try_into()?, since: started(child.id().try_into()?) };
    fs::write(dir.join("pid").join(name), note.to_text())?;
    Ok(())
}

/// Stops a program that [`start`] started, if it is still running.
pub(super) fn stop(dir: &Path, name: &str) {
    if let Some(note) = Note::read(dir, name) {
        for signal in [Signal::TERM, Signal::KILL] {
            note.end(signal);
        }
    }
}

/// Whether a program that [`start`] started is still running.
pub(super) fn runs(dir: &Path, name: &str) -> bool {
    Note::read(dir, name).is_some_and(|note| note.runs())
}

/// The last line of the log of a program.
pub(super) fn last_words(dir: &Path, name: &str) -> String {
    let log = fs::read_to_string(dir.join("log").join(format!("{name}.log")));
    log.unwrap_or_default().lines().last().unwrap_or_default().to_owned()
}

/// Identifies a process, even if its PID was reused.
struct Note {
    pid: i32,
    since: Option<String>,
}

impl Note {
    fn read(dir: &Path, name: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(dir.join("pid").join(name)).ok()?)
    }

    fn to_text(&self) -> String {
        format!("{} {}", self.pid, self.since.as_deref().unwrap_or_default())
    }

    fn parse(text: &str) -> Option<Self> {
        let (pid, since) = text.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, since: Some(since.to_owned()) })
    }

    fn runs(&self) -> bool {
        self.since.is_some() && started(self.pid) == self.since
    }

    fn end(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.runs()) else { return };
        let _ = rustix::process::kill_process(pid, signal);
        let begin = Instant::now();
        while self.runs() && begin.elapsed() < PATIENCE {
            pause(STEP);
        }
    }
}

/// When a process started, in clock ticks since boot (Linux, proc_pid_stat(5), field 22). `None` if it is not
/// running.
fn started(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain blanks; the state follows it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18).map(str::to_owned)
}

#[expect(clippy::disallowed_methods, reason = "waits for processes, with deadlines around it")]
pub(super) fn pause(step: Duration) {
    std::thread::sleep(step);
}

/// Polls until the condition is true.
pub fn until(what: &str, limit: Duration, is_so: impl Fn() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !is_so() {
        anyhow::ensure!(begin.elapsed() < limit, "{what}: timed out after {} s", limit.as_secs());
        pause(STEP);
    }
    Ok(())
}

/// Calls `look` every half second until it succeeds.
///
/// # Errors
/// `look` does not succeed within the limit; the error contains the last failure.
pub fn watch(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    while let Err(error) = look() {
        if begin.elapsed() >= limit {
            return Err(error)
                .with_context(|| format!("{what}: timed out after {} s", limit.as_secs()));
        }
        pause(10 * STEP);
    }
    Ok(())
}
