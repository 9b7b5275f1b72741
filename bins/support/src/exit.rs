//! Exit codes, and the only way to print an error.

use std::error::Error;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use tec_core::code::Code;

/// Success.
pub const OK: u8 = 0;
/// Failure.
pub const FAILED: u8 = 1;
/// Wrong command line.
pub const USAGE: u8 = 2;
/// Not ready yet: the command may succeed later.
pub const NOT_READY: u8 = 3;

/// What failed if there is no API server to talk to.
pub const NO_CLIENT: &str = "cannot create a Kubernetes client: found neither a service account nor a usable \
                             kubeconfig";

/// An error with the code that identifies its fix.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
#[non_exhaustive]
pub struct CodedError {
    /// The code.
    pub code: Code,
    /// What failed, with the culprit.
    pub context: String,
    /// Why it failed.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl CodedError {
    /// An error without a cause.
    pub fn new(code: Code, context: impl Into<String>) -> Self {
        Self { code, context: context.into(), source: None }
    }

    /// An error with a cause.
    pub fn caused(
        code: Code,
        context: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { code, context: context.into(), source: Some(source.into()) }
    }
}

/// Ends a program: prints the error, if any, with its causes, code and fix, and returns the exit code.
pub fn finish(result: Result<u8, anyhow::Error>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            print_error(&error);
            ExitCode::from(status(&error))
        }
    }
}

fn coded(error: &anyhow::Error) -> Option<&CodedError> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// A server that does not answer may answer later.
fn status(error: &anyhow::Error) -> u8 {
    match coded(error).map(|error| error.code) {
        Some(Code::BootstrapUnreachable) => NOT_READY,
        _ => FAILED,
    }
}

fn print_error(error: &anyhow::Error) {
    let mut stderr = std::io::stderr().lock();
    let (on, off) = if stderr.is_terminal() { ("\u{1b}[31m", "\u{1b}[0m") } else { ("", "") };
    let coded = coded(error);
    let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
    let text = causes.join(": ");
    // A closed stderr must not cause a second failure.
    let _ = match coded {
        Some(CodedError { code, .. }) => writeln!(
            stderr,
            "{on}error{off} {code}: {text}\n  cause: {}\n  fix:   {}\n  more:  {}",
            code.cause(),
            code.fix(),
            code.command()
        ),
        None => writeln!(stderr, "{on}error{off}: {text}"),
    };
}
