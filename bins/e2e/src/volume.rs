//! The content of an encrypted volume, as reported by Clevis and cryptsetup.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tec_core::secret::SecretBytes;

use crate::process::Transcript;

/// Exit status for a passphrase that opens nothing (cryptsetup(8), "RETURN CODES").
const NO_PERMISSION: i32 = 2;

/// A command with the administration programs in its PATH.
pub fn command(program: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    let path = std::env::join_paths(std::env::split_paths(&path).chain(more));
    let mut command = Command::new(program);
    command.env("PATH", path.unwrap_or_default());
    command
}

/// The numbers of a volume's key slots, and its tokens.
pub fn parts(volume: &Path) -> anyhow::Result<(Vec<String>, Vec<Value>)> {
    let mut dump = command("cryptsetup");
    let output = dump.args(["luksDump", "--dump-json-metadata"]).arg(volume).output();
    let output = output.context("cannot run cryptsetup")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let slots = metadata["keyslots"].as_object().context("no key slots in the header")?;
    let tokens = metadata["tokens"].as_object().context("no tokens in the header")?;
    Ok((slots.keys().cloned().collect(), tokens.values().cloned().collect()))
}

/// Whether a passphrase opens any key slot of a volume.
pub fn opens(volume: &Path, passphrase: &SecretBytes) -> anyhow::Result<bool> {
    let mut open = command("cryptsetup");
    open.args(["open", "--test-passphrase", "--batch-mode", "--key-file", "-"]).arg(volume);
    let mut child = open
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run cryptsetup")?;
    let mut pipe = child.stdin.take().context("no pipe to cryptsetup")?;
    pipe.write_all(passphrase.expose("try it"))?;
    drop(pipe);
    let output = child.wait_with_output().context("cannot run cryptsetup")?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(NO_PERMISSION) => Ok(false),
        _ => bail!("cryptsetup failed: {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

/// The object `clevis` in the header of the sealed passphrase, as stored on the volume.
pub fn clevis_header(logs: &Transcript, volume: &Path) -> anyhow::Result<Value> {
    Ok(sealed_header(logs, volume)?["clevis"].clone())
}

/// The protected header of the sealed passphrase (RFC 7516, 4), as stored on the volume.
pub fn sealed_header(logs: &Transcript, volume: &Path) -> anyhow::Result<Value> {
    let mut export = command("cryptsetup");
    export.args(["token", "export", "--token-id", "0"]).arg(volume);
    let token: Value = serde_json::from_str(&logs.must(&mut export)?)?;
    ensure!(token["type"] == "clevis", "unexpected type of token: {}", token["type"]);
    let protected = token["jwe"]["protected"].as_str().context("the token has no header")?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected)?).context("cannot read the header")
}
