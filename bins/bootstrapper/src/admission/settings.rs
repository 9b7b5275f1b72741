//! The settings of the program: a TOML file.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use tec_core::ak::Fingerprint;
use tec_node::grant::ControlPlanes;
use tec_support::program;

use crate::instance::settings::TpmSettings;
use crate::instance::trust::Trust;

/// Port on control planes, where nodes look for it (Constellation). The pod uses the host network.
const PORT: u16 = 30090;

/// All settings.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Listening address for ticket requests.
    #[serde(default = "listen")]
    pub listen: SocketAddr,
    /// `host:port` at which members reach the API server.
    pub api_server: String,
    /// Namespace of members and machines.
    pub namespace: String,
    /// Certificates and keys of the cluster, in kubeadm's layout.
    #[serde(default = "pki")]
    pub pki: PathBuf,
    /// State of this node, which includes the cluster's salt.
    #[serde(default = "state_directory")]
    pub state_directory: PathBuf,
    /// File with the URI of the key service, mode 0600; Init and join leave it on the state disk of control
    /// planes.
    #[serde(default = "kms_uri")]
    pub kms_uri: PathBuf,
    /// File with the URI of the store for wrapped keys, mode 0600; absent if there is no store.
    pub storage_uri: Option<PathBuf>,
    /// File with the version of Kubernetes and the components of members, JSON.
    pub components: PathBuf,
    /// The TPM with which this service attests.
    #[serde(default)]
    pub tpm: TpmSettings,
    /// What nodes must prove.
    #[serde(default)]
    pub nodes: Trust,
    /// Attestation keys, and proven endorsement keys, of nodes that may be control planes.
    #[serde(default)]
    pub control_planes: BTreeSet<Fingerprint>,
    /// Keys of admins whose tickets allow a node to be a control plane.
    #[serde(default)]
    pub control_plane_signers: BTreeSet<Fingerprint>,
    /// Any node may be a control plane. Every node can then obtain the keys of the cluster's CA.
    #[serde(default)]
    pub dangerous_any_control_plane: bool,
}

impl Settings {
    /// Which nodes may be control planes. A setting that allows all of them is logged.
    pub(super) fn control_planes(&self) -> ControlPlanes {
        if self.dangerous_any_control_plane {
            tracing::warn!("any node that attests may have the keys of the cluster's CA");
            ControlPlanes::DangerousAny
        } else {
            ControlPlanes::Listed(self.control_planes.clone())
        }
    }

    /// Settings that take effect only when the program starts.
    pub(super) fn fixed(&self) -> Self {
        Self {
            nodes: Trust::default(),
            control_planes: BTreeSet::new(),
            control_plane_signers: BTreeSet::new(),
            dangerous_any_control_plane: false,
            ..self.clone()
        }
    }
}

fn listen() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT)
}

fn pki() -> PathBuf {
    "/etc/kubernetes/pki".into()
}

fn kms_uri() -> PathBuf {
    "/run/state/tec/kms-uri".into()
}

fn state_directory() -> PathBuf {
    "/run/state/constellation".into()
}

impl program::Settings for Settings {
    fn check(&self) -> anyhow::Result<()> {
        self.nodes.check()
    }
}

#[cfg(test)]
mod tests {
    use tec_support::program::Settings as _;

    use super::*;

    #[test]
    fn without_a_word_no_node_is_trusted_and_none_may_be_a_control_plane() {
        let text = "api_server = '10.0.0.1:6443'\nnamespace = 'tec'\n\
                    components = '/c'";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.listen.port(), 30090);
        assert_eq!(settings.kms_uri, kms_uri());
        assert!(settings.control_planes.is_empty() && !settings.dangerous_any_control_plane);
        let trust = &settings.nodes;
        assert!(trust.attestation_keys.is_empty() && !trust.dangerous_any_attestation_key);
        assert!(!trust.takes_endorsement_keys());
        assert!(Settings::parse(&format!("{text}\nunknown = 1")).is_err());
    }

    #[test]
    fn endorsement_keys_say_nothing_about_what_their_machine_booted() {
        let text = "api_server = '10.0.0.1:6443'\nnamespace = 'tec'\n\
                    components = '/c'\n[nodes]\nendorsement_roots = '/r'";
        assert!(Settings::parse(text).is_err());
        assert!(Settings::parse(&format!("{text}\nmeasurements = '/m'")).is_ok());
        let any = "dangerous_any_attestation_key = true\ndangerous_any_measurements = true";
        assert!(Settings::parse(&format!("{text}\n{any}")).is_err());
    }
}
