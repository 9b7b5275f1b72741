//! What a control plane claims, on its own state disk: its join service admits it by that.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use serde::Serialize;
use tec_core::ak::Fingerprint;
use tec_core::node::derive::DiskId;
use tec_core::node::grant::Claim;
use tec_core::node::state::Role;
use tec_k8s::node::write_whole;

const FILE: &str = "claim.json";
const MODE: u32 = 0o600;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    ak: Fingerprint,
    name: String,
    role: Role,
    disk: DiskId,
}

/// Writes the claim.
///
/// # Errors
/// The file cannot be written.
pub fn write(directory: &Path, claim: &Claim) -> anyhow::Result<()> {
    let record = Record {
        ak: claim.ak,
        name: claim.name.to_string(),
        role: claim.role,
        disk: claim.disk,
    };
    let json = serde_json::to_vec(&record)?;
    write_whole(&directory.join(FILE), &json, MODE).context("write the node's claim")
}

/// Reads it, if there is one.
///
/// # Errors
/// It cannot be read.
pub fn read(directory: &Path) -> anyhow::Result<Option<Claim>> {
    let json = match fs::read(directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.context("read the node's claim")?,
    };
    let record: Record = serde_json::from_slice(&json).context("take the node's claim")?;
    Ok(Some(Claim {
        ak: record.ak,
        name: record.name.parse()?,
        role: record.role,
        disk: record.disk,
    }))
}
