//! Where everything is mounted, by generation.

use tec_core::digest::Sha256Digest;
use tec_core::time::Timestamp;

use crate::config::Generation;

/// Number of ConfigMaps over which reference values are spread. It is fixed, so that a new value requires no
/// new pod.
pub(super) const SHARDS: u8 = 16;

/// The settings that do not follow from the desired state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// Schema of the KBS; the paths of its files follow from it.
    pub generation: Generation,
    /// The whole kbs-config.toml, patched for `storage_dir` and without an admin key.
    pub config: String,
    /// Directory below which everything is mounted, as in the configuration.
    pub storage_dir: String,
    /// Directory of trusted attestation keys, as in the configuration.
    pub ak_dir: String,
    /// Maximum number of attestation keys that the KBS loads, as in the configuration.
    pub max_aks: u32,
    /// Expiration of the reference values. Nothing reads it (Trustee, RVPS), but it must be there; it is an
    /// argument, so that the same input gives the same bytes.
    pub expiration: Timestamp,
}

impl Layout {
    /// The paths from the documentation: `/opt/trustee` and below it, or `/opt/trustee/storage` since v0.19;
    /// expiration in the year 9999; the keys of
    /// [`TrusteeIntent`](tec_core::trustee::TrusteeIntent).
    pub fn new(generation: Generation, config: impl Into<String>) -> Self {
        let (storage_dir, max_aks) = match generation {
            Generation::Mounted => ("/opt/trustee", 10_000),
            // v0.19 has the directory too, and its default limit (Trustee, verifiers).
            Generation::Unified | Generation::V0_21 => ("/opt/trustee/storage", 100),
        };
        Self {
            generation,
            config: config.into(),
            storage_dir: storage_dir.to_owned(),
            ak_dir: "/etc/tpm/trusted_ak_keys".to_owned(),
            max_aks,
            expiration: Timestamp::from_unix_seconds(i64::MAX),
        }
    }

    /// Where the configuration is mounted.
    pub(super) fn config_dir(&self) -> &str {
        match self.generation {
            Generation::Mounted => "/opt/trustee",
            Generation::Unified | Generation::V0_21 => "/etc/kbs",
        }
    }

    pub(super) fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.storage_dir.trim_end_matches('/'))
    }

    /// Directories of the attestation policies. v0.19 and v0.20 each use a different separator in
    /// their namespaces (Trustee, key-value storage), so both are listed.
    pub(super) fn policy_dirs(&self) -> Vec<String> {
        self.namespaces("policies/opa", "attestation_service_policy")
    }

    /// Directories of the reference values, one file each; none if they are all in one file.
    pub(super) fn reference_dirs(&self) -> Vec<String> {
        match self.generation {
            Generation::Mounted => Vec::new(),
            _ => self.namespaces("", "reference_value"),
        }
    }

    fn namespaces(&self, mounted: &str, namespace: &str) -> Vec<String> {
        match self.generation {
            Generation::Mounted => vec![self.below(mounted)],
            Generation::Unified => {
                vec![self.below(namespace), self.below(&namespace.replace('_', "-"))]
            }
            Generation::V0_21 => vec![self.below(namespace)],
        }
    }

    /// Directory of the disk keys.
    pub(super) fn resource_dir(&self) -> String {
        match self.generation {
            Generation::Mounted => self.below("kbs-repository/default"),
            Generation::Unified | Generation::V0_21 => self.below("repository"),
        }
    }
}

/// File of a machine's disk key below [`Layout::resource_dir`]: a path of its own until v0.18, later one flat
/// name in which `\x2F`, four characters, replaces each slash (Trustee, key-value storage).
pub(super) fn resource_file(generation: Generation, machine: &str) -> String {
    match generation {
        Generation::Mounted => format!("{machine}/root"),
        Generation::Unified | Generation::V0_21 => format!(r"default\x2F{machine}\x2Froot"),
    }
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
