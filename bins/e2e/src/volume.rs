//! The content of an encrypted volume, as reported by Clevis and cryptsetup.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::process::Transcript;

/// A command with the administration programs in its PATH.
pub fn command(program: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    let path = std::env::join_paths(std::env::split_paths(&path).chain(more));
    let mut command = Command::new(program);
    command.env("PATH", path.unwrap_or_default());
    command
}

/// The object `clevis` in the header of the sealed passphrase, as stored on the volume.
///
/// # Errors
/// As for [`sealed_header`].
pub fn clevis_header(logs: &Transcript, volume: &Path) -> anyhow::Result<Value> {
    Ok(sealed_header(logs, volume)?["clevis"].clone())
}

/// The protected header of the sealed passphrase (RFC 7516, 4), as stored on the volume.
///
/// # Errors
/// The volume has no such token.
pub fn sealed_header(logs: &Transcript, volume: &Path) -> anyhow::Result<Value> {
    let mut export = command("cryptsetup");
    export.args(["token", "export", "--token-id", "0"]).arg(volume);
    let token: Value = serde_json::from_str(&logs.must(&mut export)?)?;
    ensure!(token["type"] == "clevis", "unexpected type of token: {}", token["type"]);
    let protected = token["jwe"]["protected"].as_str().context("the token has no header")?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected)?).context("cannot read the header")
}
