//! Runs programs: all of their output is kept in a log directory, which is searched for key material at the
//! end.

use std::ffi::OsStr;
use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// Keeps the output of programs.
#[derive(Debug)]
pub struct Transcript {
    directory: PathBuf,
    next: AtomicU32,
}

impl Transcript {
    /// Logs go to this directory, which is created.
    pub fn new(directory: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { directory, next: AtomicU32::new(0) })
    }

    /// A new log file with this word in its name.
    pub fn file(&self, word: &str) -> anyhow::Result<(PathBuf, File)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("{number:03}-{word}.log"));
        let file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok((path, file))
    }

    /// Runs a program to its end, and keeps its output.
    pub fn run(&self, command: &mut Command) -> anyhow::Result<Output> {
        let name = command.get_program().to_string_lossy().into_owned();
        let word = Path::new(&name).file_name().unwrap_or_else(|| OsStr::new("program"));
        let (_, mut log) = self.file(&word.to_string_lossy())?;
        let output =
            command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
        log.write_all(&output.stdout)?;
        log.write_all(&output.stderr)?;
        Ok(output)
    }

    /// Runs a program that must succeed, and returns its standard output.
    ///
    /// # Errors
    /// The program failed; the error contains its stderr.
    pub fn must(&self, command: &mut Command) -> anyhow::Result<String> {
        let output = self.run(command)?;
        ensure!(
            output.status.success(),
            "{} failed: {}",
            command.get_program().display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Files that contain one of the needles, with the needle's name.
    pub fn search(&self, needles: &[(String, Vec<u8>)]) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let content = fs::read(&path)?;
            for (name, needle) in needles {
                if !needle.is_empty() && content.windows(needle.len()).any(|part| part == needle) {
                    found.push(format!("{name} in {}", path.display()));
                }
            }
        }
        Ok(found)
    }

    /// Number of logs.
    pub fn count(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }
}

/// Waits until `ready` is true.
///
/// # Errors
/// The deadline passes; `what` describes the condition.
pub fn wait_for(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let end = Instant::now() + limit;
    while !ready()? {
        if Instant::now() > end {
            bail!("{what}: timed out after {} s", limit.as_secs());
        }
        #[expect(clippy::disallowed_methods, reason = "the one poll loop, with a deadline")]
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
