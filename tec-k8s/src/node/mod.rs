//! A node as it is: its disk, its files, kubeadm, its metadata (feature `node`).
//!
//! ```text
//!  tec_core::node::port        here
//!  StateDisk ────────────────► LuksDisk ─────────── cryptsetup
//!  NodeStore ────────────────► StateDirectory ───── journal.json, node_state.json
//!  ClusterInitializer, ──────► Kubeadm ──────────── kubeadm, systemctl, components by hash
//!  ClusterJoiner
//!  KeyServices ─────────────► KeyBackends ────────── OpenBao, Trustee, clouds (feature `cloud`), files
//!  MetadataSource ───────────► FileMetadata, and those of QEMU, AWS, Azure, GCP
//! ```
//!
//! *What it is not*: a service. It speaks no gRPC, and knows no TPM; programs put the parts
//! together. Every program is run through [`Programs`], so that a test can say which one it is.

mod directory;
mod http;
mod keys;
mod kubeadm;
mod luks;
mod metadata;
mod program;

pub use self::directory::StateDirectory;
pub use self::directory::write_whole;
pub use self::http::HttpError;
pub use self::keys::CallError;
pub use self::keys::KeyBackends;
pub use self::keys::KeyServiceError;
pub use self::kubeadm::EtcdTls;
pub use self::kubeadm::ExternalEtcd;
pub use self::kubeadm::Kubeadm;
pub use self::kubeadm::KubeadmPaths;
pub use self::kubeadm::KubeadmSettings;
pub use self::kubeadm::KubeletIdentity;
pub use self::kubeadm::KubeletKey;
pub use self::kubeadm::start_kubelet;
pub use self::luks::HeaderError;
pub use self::luks::Integrity;
pub use self::luks::LuksDisk;
pub use self::metadata::AwsMetadata;
pub use self::metadata::AzureCertificates;
pub use self::metadata::AzureMetadata;
pub use self::metadata::FileMetadata;
pub use self::metadata::GcpMetadata;
pub use self::metadata::MetadataError;
pub use self::metadata::QemuMetadata;
pub use self::program::Call;
pub use self::program::HostPrograms;
pub use self::program::ProgramError;
pub use self::program::Programs;
