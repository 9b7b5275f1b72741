//! Silence of libtss2, which writes warnings to stderr even where nothing is wrong, such as "there
//! is no key at this handle yet".
//!
//! Only its environment can tell it so, and a process cannot change its own without `unsafe`; hence
//! the program starts itself once more.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Read by libtss2 on its first log line (tpm2-tss, doc/logging.md).
const VARIABLE: &str = "TSS2_LOG";
/// No line of any module.
const NOTHING: &str = "all+NONE";

/// Starts the program again with a silent libtss2, unless somebody asked for its log. Arguments,
/// name, streams and process id stay. Returns when there is nothing to do, or when it failed: a
/// noisy console is better than no key.
pub fn restart_quietly(arguments: impl IntoIterator<Item = OsString>) -> Option<io::Error> {
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let mut arguments = arguments.into_iter();
    let name = arguments.next().unwrap_or_default();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    let error = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, NOTHING)
        .exec();
    Some(error)
}
