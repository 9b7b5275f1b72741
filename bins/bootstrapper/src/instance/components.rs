//! The components that nodes install, from a file that admins write: for the first node, and for those that
//! join.

use std::path::Path;

use serde::Deserialize;
use tec_core::port::{PortError, PortErrorKind};
use tec_node::ticket::{Component, ComponentForm};

/// `{"kubernetesVersion": "v1.34.3", "components": [{"url", "hash", "installPath", "extract"}]}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    kubernetes_version: String,
    components: Vec<Record>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Record {
    url: String,
    hash: String,
    install_path: String,
    #[serde(default)]
    extract: bool,
}

impl Record {
    fn component(&self) -> Result<Component, PortError> {
        let form = if self.extract { ComponentForm::Archive } else { ComponentForm::File };
        Component::new(&self.url, &self.hash, &self.install_path, form).map_err(|error| {
            let operation = format!("take the component {}", self.url);
            PortError::new(PortErrorKind::Internal, operation).because(error)
        })
    }
}

/// Kubernetes version and components from a file.
pub fn read(path: &Path) -> Result<(String, Vec<Component>), PortError> {
    let failed = || {
        let operation = format!("read {}", path.display());
        PortError::new(PortErrorKind::Internal, operation)
    };
    let json = std::fs::read(path).map_err(|error| failed().because(error))?;
    let document: Document =
        serde_json::from_slice(&json).map_err(|error| failed().because(error))?;
    let components = document.components.iter().map(Record::component);
    Ok((document.kubernetes_version, components.collect::<Result<_, _>>()?))
}
