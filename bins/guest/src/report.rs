//! Reads and sends what the boot measured.

use std::fmt::Write as _;
use std::fs;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::Context as _;

use crate::{frame, tpm};

const TPM: &str = "/dev/tpm0";
/// The event log of firmware, shim and the kernel's EFI stub. Absent if the boot loader starts the kernel
/// without its stub.
const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";
/// One directory `pcr-<bank>` for each active bank, with a file per register.
const REGISTERS: &str = "/sys/class/tpm/tpm0";
/// The lists that shim passes on; absent if shim did not run.
const MOK_VARIABLES: &str = "/sys/firmware/efi/mok-variables";

/// Sends everything over the serial line.
pub fn send(line: &mut File) -> anyhow::Result<()> {
    line.write_all(frame::GREETING).context("cannot greet the host")?;
    let mut nonce = [0; frame::NONCE_SIZE];
    line.read_exact(&mut nonce).context("cannot receive the host's nonce")?;
    crate::system::wait_for(Path::new(TPM))?;
    frame::write(line, "pcrs", registers()?.as_bytes())?;
    if Path::new(EVENT_LOG).exists() {
        let log = fs::read(EVENT_LOG).context("cannot read the event log")?;
        frame::write(line, "eventlog.bin", &log)?;
    }
    let quote = tpm::quote(Path::new(TPM), &nonce)?;
    frame::write(line, "quote/ak.pub.tpm2b", &quote.key)?;
    frame::write(line, "quote/quote.msg", &quote.message)?;
    frame::write(line, "quote/quote.sig", &quote.signature)?;
    for (name, content) in mok_variables()? {
        frame::write(line, &format!("mok-variables/{name}"), &content)?;
    }
    Ok(())
}

/// Lines of `<bank> <register> <value in hexadecimal>`.
fn registers() -> anyhow::Result<String> {
    let mut text = String::new();
    for (name, _) in sorted(Path::new(REGISTERS))? {
        let Some(bank) = name.strip_prefix("pcr-") else {
            continue;
        };
        for (register, path) in sorted(&Path::new(REGISTERS).join(&name))? {
            let value = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            let value = value.trim().to_ascii_lowercase();
            writeln!(text, "{bank} {register} {value}")?;
        }
    }
    Ok(text)
}

fn mok_variables() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    if !Path::new(MOK_VARIABLES).is_dir() {
        return Ok(Vec::new());
    }
    let mut variables = Vec::new();
    for (name, path) in sorted(Path::new(MOK_VARIABLES))? {
        let content = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
        variables.push((name, content));
    }
    Ok(variables)
}

/// Names and paths of the files in a directory.
fn sorted(directory: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let list = || format!("list {}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(list)? {
        let entry = entry.with_context(list)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        found.push((name, entry.path().to_string_lossy().into_owned()));
    }
    found.sort();
    Ok(found)
}
