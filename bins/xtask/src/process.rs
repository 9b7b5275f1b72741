//! Child processes: no standard input, and an error that names the command.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::term;

/// Directories of administration programs, which are not in every user's PATH (Filesystem Hierarchy Standard
/// 3.0, sections 3.16 and 4.10).
const ADMIN_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Linux reports times to programs in units of 1/100 s (`USER_HZ`; time(7), "The software clock, HZ, and jiffies").
const MILLISECONDS_PER_TICK: u64 = 10;

/// A command without standard input, so that nothing ever waits for input.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs the command, inheriting the output of this program.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let text = shown(command);
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    if !status.success() {
        bail!("`{text}` ended with {status}");
    }
    Ok(())
}

/// Runs the command and captures its output, whatever its exit status.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let text = shown(command);
    command.output().with_context(|| format!("cannot start `{text}`"))
}

/// Runs the command and returns standard output; on failure, the error includes standard error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let text = shown(command);
    let output = output(command)?;
    if !output.status.success() {
        bail!(
            "`{text}` ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed bytes, not text"))
}

/// Runs the command, passes standard output through line by line, and shows each line to `look`.
/// Errors: only if the command cannot be run; its exit status is part of the result.
pub(crate) fn watch(command: &mut Command, mut look: impl FnMut(&str)) -> Result<bool> {
    let text = shown(command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{text}`"))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.with_context(|| format!("cannot read what `{text}` prints"))?;
            let line = String::from_utf8_lossy(&line);
            term::out(&line);
            look(&line);
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{text}`"))?;
    Ok(status.success())
}

/// Processor time of all programs that were started and have ended; zero where the system has no `/proc`.
pub(crate) fn worked() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Duration::from_millis(ticks_of_children(&stat).saturating_mul(MILLISECONDS_PER_TICK))
}

/// Fields `cutime` and `cstime` (proc_pid_stat(5)); the name of the program, the second field, may contain spaces.
fn ticks_of_children(stat: &str) -> u64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
}

/// PATH with the administration directories appended.
pub(crate) fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for dir in ADMIN_DIRS.map(PathBuf::from) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

/// Path of the program, if it is installed.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    search_path().into_iter().map(|dir| dir.join(program)).find(|file| is_executable(file))
}

/// Whether this is a file that can be run.
#[cfg(unix)]
pub(crate) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
pub(crate) fn is_executable(file: &Path) -> bool {
    file.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_what_it_said() {
        let error = capture(command("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("sh -c") && text.contains("why"), "{text}");
    }

    #[test]
    fn watching_shows_every_line_and_the_exit_status() {
        let mut lines = Vec::new();
        let mut sh = command("sh");
        let ended_well = watch(sh.args(["-c", "echo a; printf b; exit 1"]), |line| {
            lines.push(line.to_owned());
        })
        .unwrap();
        assert!(!ended_well);
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn processor_time_of_children_is_read_behind_any_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4 11 12 13 14 15 16 170 180 20 0 1 0 99 0 0";
        assert_eq!(ticks_of_children(stat), 350);
        assert_eq!(ticks_of_children("nothing"), 0);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(which("sh").is_some());
        assert!(which("no-such-program-here").is_none());
    }
}
