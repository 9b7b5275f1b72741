//! Programs of the host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Number of output lines of a failed program that are kept.
const KEPT_LINES: usize = 20;
/// Characters of a bootstrap token: six, a dot, sixteen (Kubernetes, "Authenticating with Bootstrap
/// Tokens").
const TOKEN: (usize, usize) = (6, 16);

/// One run of a program. Secrets go through `input` only.
#[derive(Debug)]
pub struct Call<'c> {
    /// Name, or an absolute path.
    pub program: &'c str,
    /// Arguments; no secret among them.
    pub arguments: Vec<OsString>,
    /// Data that the program reads from standard input.
    pub input: Option<&'c SecretBytes>,
    /// Time after which it is killed.
    pub limit: Duration,
}

/// A program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// It cannot be run.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("{program} did not finish within {limit:?}")]
    TimedOut {
        /// The program.
        program: String,
        /// Its time limit.
        limit: Duration,
    },
    /// It failed.
    #[error("{program} ended with status {status:?}: {words}")]
    Failed {
        /// The program.
        program: String,
        /// Exit status; none for a signal.
        status: Option<i32>,
        /// The end of its output, without tokens.
        words: String,
    },
}

impl ProgramError {
    /// Its exit status, if it had one.
    pub fn status(&self) -> Option<i32> {
        match self {
            Self::Failed { status, .. } => *status,
            _ => None,
        }
    }

    /// Turns the error into a failure of an operation that may be retried.
    pub fn during(self, operation: &'static str) -> PortError {
        PortError::new(PortErrorKind::Unavailable, operation).because(self)
    }
}

/// The programs of this host; some may have other paths, or be wrapped in a command.
#[derive(Clone, Debug, Default)]
pub struct HostPrograms(BTreeMap<String, Vec<PathBuf>>);

impl HostPrograms {
    /// All programs by name, found through PATH.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `command` instead of the program with this name; its arguments come last.
    pub fn with(mut self, name: impl Into<String>, command: Vec<PathBuf>) -> Self {
        self.0.insert(name.into(), command);
        self
    }

    /// Runs a program to completion, and returns its output.
    ///
    /// # Cancel safety
    /// A dropped run kills the program.
    pub async fn run(&self, call: Call<'_>) -> Result<Vec<u8>, ProgramError> {
        self.run_to(call, Stdio::piped()).await
    }

    /// Runs a program and passes its output on to this process's own output, as it arrives.
    pub async fn run_shown(&self, call: Call<'_>) -> Result<(), ProgramError> {
        self.run_to(call, Stdio::inherit()).await.map(drop)
    }

    fn command(&self, name: &str) -> Command {
        let words = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        match words {
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest);
                command
            }
            [] => Command::new(name),
        }
    }

    async fn run_to(&self, call: Call<'_>, stdout: Stdio) -> Result<Vec<u8>, ProgramError> {
        let program = call.program.to_owned();
        let limit = call.limit;
        let mut command = self.command(call.program);
        command
            .args(&call.arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let work = async {
            let mut child = command.spawn()?;
            if let (Some(mut stdin), Some(input)) = (child.stdin.take(), call.input) {
                // It may fail before it reads; then its own message tells more than ours.
                let _ = stdin.write_all(input.expose("the program reads it")).await;
            }
            child.wait_with_output().await
        };
        let output = match tokio::time::timeout(limit, work).await {
            Ok(Ok(output)) => output,
            Ok(Err(source)) => return Err(ProgramError::Start { program, source }),
            Err(_) => return Err(ProgramError::TimedOut { program, limit }),
        };
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(ProgramError::Failed {
            program,
            status: output.status.code(),
            words: words(&output.stderr),
        })
    }
}

/// The last lines, with bootstrap tokens redacted.
fn words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.trim().lines().collect();
    let from = lines.len().saturating_sub(KEPT_LINES);
    let kept = lines.get(from..).unwrap_or_default().join("\n");
    kept.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).map(blot).collect()
}

fn blot(word: &str) -> String {
    let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let is_token = bare
        .split_once('.')
        .is_some_and(|(id, secret)| (id.len(), secret.len()) == TOKEN && !secret.contains('.'));
    if is_token { word.replacen(bare, "<token>", 1) } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'c>(program: &'c str, arguments: &[&str], limit: Duration) -> Call<'c> {
        Call {
            program,
            arguments: arguments.iter().map(OsString::from).collect(),
            input: None,
            limit,
        }
    }

    #[test]
    fn a_token_is_blotted_out_of_a_programs_words() {
        let said = b"join --token abcdef.0123456789abcdef now\nat k8s.io/kubernetes\n\
                     no abcdef.0123456789abcdef.\n";
        let words = words(said);
        let blotted = "join --token <token> now\nat k8s.io/kubernetes\nno <token>.";
        assert_eq!(words, blotted);
    }

    #[tokio::test]
    async fn a_failed_program_is_told_with_its_status_and_one_that_hangs_is_killed() {
        let host = HostPrograms::new().with("fails", vec!["/bin/sh".into(), "-c".into()]);
        let failed = host
            .run(call("fails", &["echo no >&2; exit 7"], Duration::from_secs(9)))
            .await
            .unwrap_err();
        assert_eq!(failed.status(), Some(7));
        let hangs = call("sleep", &["600"], Duration::from_millis(50));
        let error = host.run(hangs).await.unwrap_err();
        assert!(matches!(error, ProgramError::TimedOut { .. }));
    }

    #[tokio::test]
    async fn secrets_reach_a_program_by_its_standard_input() {
        let secret = SecretBytes::new(b"canary".to_vec());
        let mut cat = call("cat", &[], Duration::from_secs(9));
        cat.input = Some(&secret);
        assert_eq!(HostPrograms::new().run(cat).await.unwrap(), b"canary");
    }
}
