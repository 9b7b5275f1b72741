//! The real node: its disk, its files, kubeadm, its metadata (feature `host`).
//!
//! ```text
//!  crate::port        here
//!  StateDisk ────────────────► LuksDisk ─────────── cryptsetup
//!  NodeStore ────────────────► StateDirectory ───── journal.json, node_state.json
//!  ClusterInitializer, ──────► Kubeadm ──────────── kubeadm, systemctl, components by hash
//!  ClusterJoiner
//!  KeyServices ─────────────► KeyBackends ────────── OpenBao, Trustee, AWS (feature `aws`), files
//!  MetadataSource ───────────► FileMetadata, and those of QEMU, AWS, Azure, GCP
//! ```
//!
//! *What it is not*: a service. It provides neither gRPC nor a TPM; programs assemble the parts. Every
//! program is run through [`HostPrograms`], so that a test can substitute it.

mod directory;
mod http;
mod keys;
mod kubeadm;
mod luks;
mod metadata;
mod program;

pub use self::directory::{StateDirectory, write_whole};
pub use self::http::HttpError;
pub use self::keys::{CallError, KeyBackends, KeyServiceError};
pub use self::kubeadm::{
    ClusterDns, ClusterNetwork, EtcdTls, ExternalEtcd, Kubeadm, KubeadmPaths, KubeadmSettings,
    KubeletIdentity, KubeletKey, start_kubelet,
};
pub use self::luks::{Content, HeaderError, Integrity, LuksDisk, lies_on};
pub use self::metadata::{
    AwsMetadata, AzureCertificates, AzureMetadata, FileMetadata, GcpMetadata, MetadataError,
    QemuMetadata,
};
pub use self::program::{Call, HostPrograms, ProgramError};
