//! Where everything is mounted.

use tec_core::digest::Sha256Digest;
use tec_core::time::Timestamp;

/// Number of ConfigMaps over which reference values are spread. It is fixed, so that a new value requires no
/// new pod.
pub(super) const SHARDS: u8 = 16;

/// Where the configuration is mounted.
pub(super) const CONFIG_DIR: &str = "/etc/kbs";
/// Where everything else is mounted by default.
const STORAGE_DIR: &str = "/opt/trustee/storage";

/// The settings that do not follow from the desired state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// The whole kbs-config.toml, patched for `storage_dir` and without an admin key.
    pub config: String,
    /// Directory below which everything but the configuration is mounted, as in the configuration.
    pub storage_dir: String,
    /// Expiration of the reference values. Nothing reads it (Trustee, RVPS), but it must be there; it is an
    /// argument, so that the same input gives the same bytes.
    pub expiration: Timestamp,
}

impl Layout {
    /// Everything below `/opt/trustee/storage`; expiration in the year 9999.
    pub fn new(config: impl Into<String>) -> Self {
        Self {
            config: config.into(),
            storage_dir: STORAGE_DIR.to_owned(),
            expiration: Timestamp::from_unix_seconds(i64::MAX),
        }
    }

    pub(super) fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.storage_dir.trim_end_matches('/'))
    }
}

/// File of a machine's disk key in the directory of resources: a flat name in which `\x2F`, four characters,
/// replaces each slash (Trustee, key-value storage).
pub(super) fn resource_file(machine: &str) -> String {
    format!(r"default\x2F{machine}\x2Froot")
}

/// The shard of a name: a hexadecimal digit.
pub(super) fn shard(name: &str) -> u8 {
    let first = Sha256Digest::of(name).as_bytes().first().copied().unwrap_or_default();
    first % SHARDS
}

/// Name of the ConfigMap of a shard.
pub(super) fn shard_name(shard: u8) -> String {
    format!("reference-values-{shard:x}")
}
