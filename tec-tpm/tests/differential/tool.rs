//! Running the tools.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Command, Output};

/// Runs a tool to its end.
///
/// # Panics
/// When it is missing.
pub(crate) fn run<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Output {
    match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{program} is missing: run `cargo xtask tools`")
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Runs a tool that must succeed, and returns what it printed.
pub(crate) fn output<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> String {
    let output = run(program, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
