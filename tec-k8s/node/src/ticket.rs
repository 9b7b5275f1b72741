//! The ticket that a join service gives to a node that it admits.

use std::str::FromStr;

use tec_core::digest::Sha256Digest;
use tec_core::secret::{SecretArray, SecretBytes};

use super::derive::{ClusterId, MeasurementSalt, MeasurementSecret};

/// A value in a ticket or request does not have the required form. The message never contains the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{member} is not {form}")]
#[non_exhaustive]
pub struct TicketError {
    /// Name of the member.
    pub member: &'static str,
    /// The required form.
    pub form: &'static str,
}

impl TicketError {
    /// The member does not have this form.
    pub const fn new(member: &'static str, form: &'static str) -> Self {
        Self { member, form }
    }
}

/// Name of a node, as Kubernetes accepts it (RFC 1123 subdomain, at most 253 characters).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct NodeName(String);

/// Maximum length of a node name (RFC 1123, section 2.1; Kubernetes "Object Names and IDs").
const MAX_NODE_NAME: usize = 253;

impl NodeName {
    /// Normalizes an instance name from metadata: lower case, with hyphens instead of underscores.
    ///
    /// # Errors
    /// [`TicketError`] if the result is still not a name.
    pub fn of_instance(name: &str) -> Result<Self, TicketError> {
        name.to_ascii_lowercase().replace('_', "-").parse()
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let label = |label: &str| {
            let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            label.bytes().all(|byte| inner(byte) || byte == b'-')
                && label.bytes().next().is_some_and(inner)
                && label.bytes().next_back().is_some_and(inner)
        };
        if text.len() <= MAX_NODE_NAME && text.split('.').all(label) {
            return Ok(Self(text.to_owned()));
        }
        Err(TicketError::new("node name", "a DNS name in lower case"))
    }
}

/// A file in a ticket, named by its path under `/etc/kubernetes/pki`; files below `tec/` are kept
/// with the node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PkiFile {
    name: &'static str,
    mode: u32,
}

/// Readable by everyone on the node.
const PUBLIC: u32 = 0o644;
/// Keys are for root only.
const PRIVATE: u32 = 0o600;

impl PkiFile {
    /// All known files; a ticket with any other file is not accepted.
    pub const ALL: [Self; 10] = [
        Self::CA,
        Self::new("ca.key", PRIVATE),
        Self::new("sa.pub", PUBLIC),
        Self::new("sa.key", PRIVATE),
        Self::new("front-proxy-ca.crt", PUBLIC),
        Self::new("front-proxy-ca.key", PRIVATE),
        Self::new("etcd/ca.crt", PUBLIC),
        Self::new("etcd/ca.key", PRIVATE),
        Self::KMS_URI,
        Self::STORAGE_URI,
    ];

    /// Certificate of the cluster CA; workers get no other file.
    pub const CA: Self = Self::new("ca.crt", PUBLIC);

    /// URI of the cluster's key service, for the join service on a control plane.
    ///
    /// # Security
    /// It can be the master secret of all state disks: keep it readable only by root, on an encrypted disk,
    /// and never in an object that the API server stores.
    pub const KMS_URI: Self = Self::new("tec/kms-uri", PRIVATE);

    /// URI of the store of wrapped keys, kept in the same way.
    pub const STORAGE_URI: Self = Self::new("tec/storage-uri", PRIVATE);

    const fn new(name: &'static str, mode: u32) -> Self {
        Self { name, mode }
    }

    /// The name.
    pub fn as_str(self) -> &'static str {
        self.name
    }

    /// Mode of the file.
    pub fn mode(self) -> u32 {
        self.mode
    }
}

impl FromStr for PkiFile {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|one| one.name == text)
            .ok_or(TicketError::new("control-plane file", "one of the known names"))
    }
}

/// SHA-256 over the SubjectPublicKeyInfo of a cluster CA: `sha256:<64 hex>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("sha256:{_0}")]
pub struct CaPin(pub(super) Sha256Digest);

impl CaPin {
    /// Wraps this digest.
    pub fn new(digest: Sha256Digest) -> Self {
        Self(digest)
    }
}

impl FromStr for CaPin {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        sha256(text).map(Self).ok_or(TicketError::new("CA hash", "sha256:<64 hexadecimal digits>"))
    }
}

fn sha256(text: &str) -> Option<Sha256Digest> {
    text.strip_prefix("sha256:")?.parse().ok()
}

/// A file to download; it is always checked against its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Component {
    /// Source URL; plain HTTP is allowed, because the hash is checked.
    pub url: String,
    /// SHA-256 of the download.
    pub hash: Sha256Digest,
    /// Absolute path where it is installed or extracted.
    pub install_path: String,
    /// Whether it is an archive.
    pub form: ComponentForm,
}

/// The form of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentForm {
    /// A file.
    File,
    /// A tar archive, compressed with gzip.
    Archive,
}

impl Component {
    /// Checks the strings.
    ///
    /// # Errors
    /// [`TicketError`] if the hash is missing, or the path is not absolute or contains `..`.
    pub fn new(
        url: &str,
        hash: &str,
        install_path: &str,
        form: ComponentForm,
    ) -> Result<Self, TicketError> {
        if !(url.starts_with("https://") || url.starts_with("http://")) {
            return Err(TicketError::new("component URL", "an http or https URL"));
        }
        let hash = sha256(hash)
            .ok_or(TicketError::new("component hash", "sha256:<64 hexadecimal digits>"))?;
        let upwards = install_path.split('/').any(|part| part == "..");
        if !install_path.starts_with('/') || upwards {
            return Err(TicketError::new("install path", "an absolute path"));
        }
        Ok(Self { url: url.to_owned(), hash, install_path: install_path.to_owned(), form })
    }
}

/// Everything that a node needs to become a member.
#[derive(Debug)]
pub struct JoinTicket {
    /// Key of its state disk.
    pub state_disk_key: SecretArray<32>,
    /// Salt of the cluster's ID.
    pub measurement_salt: MeasurementSalt,
    /// Secret of the cluster's ID.
    pub measurement_secret: MeasurementSecret,
    /// Certificate for its kubelet, PEM.
    pub kubelet_certificate: String,
    /// `host:port` of the API server.
    pub api_server: String,
    /// The CA that must have issued the API server's certificate.
    pub ca_pin: CaPin,
    /// Files of a control plane; for workers, only the CA certificate.
    pub files: Vec<(PkiFile, SecretBytes)>,
    /// Components to install.
    pub components: Vec<Component>,
    /// Kubernetes version.
    pub kubernetes_version: String,
}

impl JoinTicket {
    /// The cluster that it is for.
    pub fn cluster(&self) -> ClusterId {
        self.measurement_secret.cluster_id(&self.measurement_salt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_instances_become_names_of_nodes() {
        let name = NodeName::of_instance("Cluster_Worker_0").unwrap();
        assert_eq!(name.as_str(), "cluster-worker-0");
        for bad in ["", "-a", "a-", "a..b", "ü", &"a".repeat(254)] {
            assert!(NodeName::of_instance(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_known_files_are_taken_and_keys_are_for_root() {
        assert!("../admin.conf".parse::<PkiFile>().is_err());
        for file in PkiFile::ALL {
            assert_eq!(file.as_str().parse::<PkiFile>().unwrap(), file);
            let is_key = file.as_str().contains(".key") || file.as_str().starts_with("tec/");
            assert_eq!(file.mode() == 0o600, is_key);
        }
    }

    #[test]
    fn components_need_a_hash_and_a_place_that_leads_nowhere_else() {
        let hash = format!("sha256:{}", Sha256Digest::of("kubeadm"));
        let url = "https://example.org/kubeadm";
        let new = |url, hash, path| Component::new(url, hash, path, ComponentForm::File);
        assert!(new(url, &hash, "/run/state/bin/kubeadm").is_ok());
        for (url, hash, path) in [
            ("file:///kubeadm", &*hash, "/run/state/bin/kubeadm"),
            (url, "", "/run/state/bin/kubeadm"),
            (url, "sha256:00", "/run/state/bin/kubeadm"),
            (url, &*hash, "bin/kubeadm"),
            (url, &*hash, "/run/state/bin/../../etc/passwd"),
        ] {
            assert!(new(url, hash, path).is_err(), "{url} {hash} {path}");
        }
    }
}
