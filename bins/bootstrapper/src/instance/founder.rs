//! A control plane's own claim, on its own state disk: its join service admits it on that basis.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tec_core::ak::PublicKey;
use tec_node::derive::DiskId;
use tec_node::grant::Claim;
use tec_node::host::write_whole;
use tec_node::state::Role;

const FILE: &str = "claim.json";
const MODE: u32 = 0o600;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// PEM.
    key: String,
    name: String,
    role: Role,
    disk: DiskId,
    /// Earlier versions wrote none.
    #[serde(default)]
    addresses: BTreeSet<IpAddr>,
}

/// A claim, and the key that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// The claim.
    pub claim: Claim,
    /// Its attestation key.
    pub key: PublicKey,
}

/// Writes the claim.
pub fn write(directory: &Path, Founder { claim, key }: &Founder) -> anyhow::Result<()> {
    let record = Record {
        key: key.to_pem(),
        name: claim.name.to_string(),
        role: claim.role,
        disk: claim.disk,
        addresses: claim.addresses.clone(),
    };
    let json = serde_json::to_vec(&record)?;
    write_whole(&directory.join(FILE), &json, MODE).context("cannot write the node's claim")
}

/// Reads it, if there is one.
pub fn read(directory: &Path) -> anyhow::Result<Option<Founder>> {
    let json = match fs::read(directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.context("cannot read the node's claim")?,
    };
    let record: Record = serde_json::from_slice(&json).context("cannot use the node's claim")?;
    let key = PublicKey::from_pem(&record.key).context("cannot use the key of the node's claim")?;
    let claim = Claim {
        ak: key.fingerprint(),
        name: record.name.parse()?,
        role: record.role,
        disk: record.disk,
        addresses: record.addresses,
    };
    Ok(Some(Founder { claim, key }))
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn a_claim_is_read_back_with_the_key_that_it_is_of() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), None);
        let key = sample::public_key(1);
        let founder = Founder {
            claim: Claim {
                ak: key.fingerprint(),
                name: "plane-0".parse().unwrap(),
                role: Role::ControlPlane,
                disk: "00000000-0000-0000-0000-0000000000aa".parse().unwrap(),
                addresses: BTreeSet::from([[10, 0, 0, 1].into()]),
            },
            key,
        };
        write(directory.path(), &founder).unwrap();
        assert_eq!(read(directory.path()).unwrap(), Some(founder));
    }
}
