//! Reads a request from standard input and prints the verdict. Exit status 0: the machine booted what it
//! should; 1: it did not, or no verdict is possible.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;

/// Largest request: an event log of the largest size in base64, plus as much for the rest.
const MAX_REQUEST: u64 = 2 << 20;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut request = Vec::new();
    std::io::stdin().take(MAX_REQUEST).read_to_end(&mut request)?;
    let verdict = outside_wasi::verify(&request)?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&verdict)?)?;
    Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
