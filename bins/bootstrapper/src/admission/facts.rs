//! The files of this control plane that members receive.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt as _};
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::rpc::{ClusterFacts, NodeStanding};
use tec_node::state::Role;
use tec_node::ticket::{CaPin, Component, NodeName, PkiFile};
use x509_cert::Certificate;
use x509_cert::der::{DecodePem as _, Encode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::admission::settings::Settings;
use crate::instance::components;

/// The label that kubeadm sets on a control plane in the last step of its join.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The facts; files are read for each ticket.
#[derive(Debug)]
pub struct Facts {
    nodes: Api<Node>,
    api_server: String,
    pki: PathBuf,
    components: PathBuf,
    kms_uri: PathBuf,
    storage_uri: Option<PathBuf>,
}

fn failed(operation: impl Into<String>) -> PortError {
    PortError::new(PortErrorKind::Internal, operation)
}

/// The API server's names in its certificate: its own names and addresses, those of its service, and the load
/// balancer's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServerNames {
    /// Addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// DNS names.
    pub names: BTreeSet<String>,
}

/// Names of the API server of this control plane.
pub fn api_server_names(pki: &Path) -> Result<ApiServerNames, PortError> {
    let malformed = || failed("take the certificate of the API server");
    let pem = fs::read(pki.join("apiserver.crt"));
    let pem = pem.map_err(|error| malformed().because(error))?;
    let certificate = Certificate::from_pem(pem).map_err(|error| malformed().because(error))?;
    let names = certificate.tbs_certificate().get_extension::<SubjectAltName>();
    let (_, names) = names.map_err(|error| malformed().because(error))?.ok_or_else(malformed)?;
    let mut found = ApiServerNames::default();
    for name in &names.0 {
        match name {
            GeneralName::IpAddress(bytes) => found.addresses.extend(address(bytes.as_bytes())),
            GeneralName::DnsName(name) => {
                found.names.insert(name.as_str().to_ascii_lowercase());
            }
            _ => {}
        }
    }
    Ok(found)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes {
        [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d])),
        other => <[u8; 16]>::try_from(other).ok().map(IpAddr::from),
    }
}

impl Facts {
    /// Facts for this cluster, from the settings.
    pub fn new(client: Client, settings: &Settings) -> Self {
        Self {
            nodes: Api::all(client),
            api_server: settings.api_server.clone(),
            pki: settings.pki.clone(),
            components: settings.components.clone(),
            kms_uri: settings.kms_uri.clone(),
            storage_uri: settings.storage_uri.clone(),
        }
    }

    /// Path of a file in a ticket; `None` if this cluster has no such file: with an external etcd, kubeadm
    /// creates no CA for it.
    fn path(&self, file: PkiFile) -> Option<PathBuf> {
        match file {
            PkiFile::KMS_URI => Some(self.kms_uri.clone()),
            PkiFile::STORAGE_URI => self.storage_uri.clone(),
            file => {
                let path = self.pki.join(file.as_str());
                let is_due = !file.as_str().starts_with("etcd/") || path.exists();
                is_due.then_some(path)
            }
        }
    }

    async fn read(path: &Path) -> Result<SecretBytes, PortError> {
        let read = tokio::fs::read(path).await.map(SecretBytes::new);
        read.map_err(|error| failed(format!("read {}", path.display())).because(error))
    }
}

#[async_trait]
impl ClusterFacts for Facts {
    async fn node(&self, name: &NodeName) -> Result<NodeStanding, PortError> {
        let found = self.nodes.get_metadata_opt(name.as_str()).await;
        let found = found.map_err(|error| {
            PortError::new(PortErrorKind::Unavailable, format!("look up node {name}"))
                .because(error)
        })?;
        Ok(match found {
            None => NodeStanding::Absent,
            Some(node) if node.labels().contains_key(CONTROL_PLANE) => NodeStanding::ControlPlane,
            Some(_) => NodeStanding::Registered,
        })
    }

    async fn api_server(&self) -> Result<String, PortError> {
        Ok(self.api_server.clone())
    }

    async fn ca_pin(&self) -> Result<CaPin, PortError> {
        let malformed = || failed("take the certificate of the cluster's CA");
        let pem = tokio::fs::read(self.pki.join("ca.crt")).await;
        let pem = pem.map_err(|error| malformed().because(error))?;
        let certificate = Certificate::from_pem(pem).map_err(|error| malformed().because(error))?;
        let key = certificate.tbs_certificate().subject_public_key_info();
        let der = key.to_der().map_err(|error| malformed().because(error))?;
        Ok(CaPin::new(Sha256Digest::of(der)))
    }

    async fn components(&self) -> Result<(String, Vec<Component>), PortError> {
        let path = self.components.clone();
        let read = tokio::task::spawn_blocking(move || components::read(&path)).await;
        read.map_err(|error| failed("read the components").because(error))?
    }

    async fn files(&self, role: Role) -> Result<Vec<(PkiFile, SecretBytes)>, PortError> {
        let is_due = |file: &PkiFile| role == Role::ControlPlane || *file == PkiFile::CA;
        let mut files = Vec::new();
        for file in PkiFile::ALL.into_iter().filter(is_due) {
            if let Some(path) = self.path(file) {
                files.push((file, Self::read(&path).await?));
            }
        }
        Ok(files)
    }
}
