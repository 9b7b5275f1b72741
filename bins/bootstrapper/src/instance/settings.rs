//! The settings of the program: a TOML file.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Deserializer};
use tec_node::host::ClusterDns;
use tec_node::uri::ListedPlaces;
use tec_support::program;

use crate::instance::trust::Trust;

/// Port of Init (Constellation).
const INIT_PORT: u16 = 9000;
/// Port of Recover.
const RECOVERY_PORT: u16 = 9999;
/// Port of join services.
const JOIN_PORT: u16 = 30090;
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const STATE_DIRECTORY: &str = "/run/state/constellation";
const TCTI: &str = "device:/dev/tpmrm0";
const INITIAL_KEY: &str = "/run/cryptsetup-keys.d/state.key";
const HEADER: &str = "/run/cryptsetup-keys.d/state.header";
const VARIANT: &str = "qemu-vtpm";

/// All settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Listening address of Init.
    pub listen: SocketAddr,
    /// Listening address of Recover.
    pub recovery_listen: SocketAddr,
    /// Key services and stores that callers of Recover may name, as URIs without credentials.
    pub recovery_key_services: Vec<String>,
    /// Port of join services on control planes.
    pub join_port: u16,
    /// Directory on the state disk with the journal and the state of the node.
    pub state_directory: PathBuf,
    /// Root of the host's paths.
    pub root: PathBuf,
    /// The platform.
    pub metadata: Metadata,
    /// The TPM.
    pub tpm: TpmSettings,
    /// The state disk.
    pub disk: Disk,
    /// What join services must prove.
    pub join_services: Trust,
    /// File with the ticket by which an admin allows this node to be a control plane.
    pub control_plane_ticket: Option<PathBuf>,
    /// Properties of clusters.
    pub kubernetes: Kubernetes,
    /// A setting of earlier versions, which may still be false: the field of Init that it was for is not served.
    #[serde(deserialize_with = "only_false")]
    pub accept_older_master_secret: (),
    /// Commands for programs that cannot be run by name.
    pub programs: BTreeMap<String, Vec<PathBuf>>,
}

fn only_false<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    if bool::deserialize(from)? {
        let why = "accept_older_master_secret is gone: clients must send the key in kms_uri";
        return Err(serde::de::Error::custom(why));
    }
    Ok(())
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(ANY, INIT_PORT),
            recovery_listen: SocketAddr::new(ANY, RECOVERY_PORT),
            recovery_key_services: Vec::new(),
            join_port: JOIN_PORT,
            state_directory: STATE_DIRECTORY.into(),
            root: "/".into(),
            metadata: Metadata::default(),
            tpm: TpmSettings::default(),
            disk: Disk::default(),
            join_services: Trust::default(),
            control_plane_ticket: None,
            kubernetes: Kubernetes::default(),
            accept_older_master_secret: (),
            programs: BTreeMap::new(),
        }
    }
}

/// Source of metadata.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Metadata {
    /// A file.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// The service of QEMU's runner.
    Qemu {
        /// Base URL, if it is not the usual one.
        url: Option<String>,
    },
    /// The service of Azure.
    Azure {
        /// Base URL, if it is not the usual one.
        url: Option<String>,
    },
    /// The service of AWS, version 2.
    Aws {
        /// Base URL, if it is not the usual one.
        url: Option<String>,
    },
    /// The server of Google Cloud.
    Gcp {
        /// Base URL, if it is not the usual one.
        url: Option<String>,
    },
}

impl Default for Metadata {
    fn default() -> Self {
        Self::Qemu { url: None }
    }
}

/// The TPM.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct TpmSettings {
    /// Settings for accessing the source.
    pub tcti: String,
    /// Handle of the attestation key, hexadecimal (default 0x81000003 with `azure-sev-snp`, otherwise
    /// 0x81010002).
    pub ak_handle: Option<String>,
    /// Type of the evidence.
    pub variant: String,
    /// With `azure-sev-snp`: base URL of the service that certifies the processor's key, if it is not the
    /// usual one.
    pub vcek_url: Option<String>,
    /// With `azure-sev-snp`: file with the certificate of the processor's key, PEM or DER, in case the
    /// service has none.
    pub vcek_file: Option<PathBuf>,
}

impl Default for TpmSettings {
    fn default() -> Self {
        Self {
            tcti: TCTI.to_owned(),
            ak_handle: None,
            variant: VARIANT.to_owned(),
            vcek_url: None,
            vcek_file: None,
        }
    }
}

/// The state disk.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Device with the LUKS2 header.
    pub device: PathBuf,
    /// File with the passphrase that the disk was created with; recovery writes the disk's key there.
    pub key_file: PathBuf,
    /// File to which recovery writes the checked header. The unit that maps the disk must name it (`header=`
    /// of crypttab(5)), otherwise the unit trusts whatever header the disk contains at that time.
    pub header_file: PathBuf,
    /// Units that map and mount it, in this order.
    pub units: Vec<String>,
    /// Accept a disk that `bootstrapper prepare` of this boot did not format, if `key_file` opens it.
    pub dangerous_formatted_elsewhere: bool,
    /// Accept a disk whose sectors are not authenticated.
    pub dangerous_without_integrity: bool,
    /// Accept a state directory that is not on the state disk.
    pub dangerous_state_elsewhere: bool,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            device: "/dev/disk/by-partlabel/state".into(),
            key_file: INITIAL_KEY.into(),
            header_file: HEADER.into(),
            units: vec![
                "systemd-cryptsetup@state.service".to_owned(),
                "run-state.mount".to_owned(),
            ],
            dangerous_formatted_elsewhere: false,
            dangerous_without_integrity: false,
            dangerous_state_elsewhere: false,
        }
    }
}

/// Properties of clusters.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// Name in kubeconfigs.
    pub cluster_name: Option<String>,
    /// Additional names in the API server's certificate.
    pub certificate_names: Vec<String>,
    /// Subnet of services.
    pub service_subnet: Option<String>,
    /// Subnet of pods; empty if the network plugin has its own.
    pub pod_subnet: Option<String>,
    /// DNS server for pods.
    pub dns: ClusterDns,
    /// File with a `KubeProxyConfiguration` that replaces the default one.
    pub kube_proxy: Option<PathBuf>,
    /// File with the objects of the pod network, YAML; applied to a new cluster.
    pub network: Option<PathBuf>,
    /// Socket of the container runtime.
    pub cri_socket: Option<String>,
    /// `external` if a cloud provider's controllers run.
    pub cloud_provider: String,
    /// Errors of kubeadm's preflight that are known and harmless.
    pub ignored_preflight_errors: Vec<String>,
    /// URLs of an external etcd; by default kubeadm runs one.
    pub external_etcd: Vec<String>,
}

impl Settings {
    /// Key services and stores that callers of Recover may name.
    pub fn listed_key_services(&self) -> anyhow::Result<ListedPlaces> {
        let mut places = Vec::new();
        for text in &self.recovery_key_services {
            // An entry with a secret in it must not get into the log.
            places.push(text.parse().context("cannot read recovery_key_services")?);
        }
        Ok(ListedPlaces::new(places))
    }
}

impl program::Settings for Settings {
    fn check(&self) -> anyhow::Result<()> {
        self.listed_key_services()?;
        anyhow::ensure!(
            !self.join_services.takes_endorsement_keys(),
            "endorsement_keys and endorsement_roots have no effect in [join_services]: a join \
             service does \
             not prove its endorsement key; list its attestation key"
        );
        self.join_services.check()
    }
}

#[cfg(test)]
mod tests {
    use tec_support::program::Settings as _;

    use super::*;

    #[test]
    fn an_empty_file_has_the_default_values_and_trusts_nobody() {
        let settings = Settings::parse("").unwrap();
        assert_eq!(settings.listen.port(), 9000);
        assert_eq!(settings.recovery_listen.port(), 9999);
        assert_eq!(settings.join_port, 30090);
        assert!(!settings.join_services.dangerous_any_attestation_key);
        assert!(!settings.disk.dangerous_without_integrity);
        assert!(!settings.disk.dangerous_state_elsewhere);
        assert!(!settings.disk.dangerous_formatted_elsewhere);
        assert_eq!(settings.kubernetes.dns, ClusterDns::CoreDns);
        assert!(settings.kubernetes.network.is_none());
    }

    #[test]
    fn unknown_members_and_contradictions_are_refused() {
        for text in [
            "listn = '0.0.0.0:1'",
            "recovery_key_services = ['https://bao']",
            "recovery_key_services = ['kms://openbao?url=https://bao&token=t']",
            "[disk]\nintegrity = true",
            "[kubernetes]\ndns = 'bind'",
            "[metadata]\nkind = 'cloud'",
            "[join_services]\nattestation_keys = ['00']",
            "[join_services]\nendorsement_roots = '/r'\ndangerous_any_measurements = true",
            "[join_services]\nsnp_id_keys = ['00']",
            "[join_services]\nsnp_minimum_tcb = '4,0,24,219'",
        ] {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
        let both = format!(
            "[join_services]\ndangerous_any_attestation_key = true\nattestation_keys = ['{}']",
            "0".repeat(64)
        );
        assert!(Settings::parse(&both).is_err());
        let ignored = format!(
            "[join_services]\ndangerous_any_attestation_key = true\n\
             dangerous_any_measurements = true\nsnp_id_keys = ['{}']",
            "1".repeat(96)
        );
        assert!(Settings::parse(&ignored).is_err());
        let floor = |minimum: &str| {
            let key = "1".repeat(96);
            format!(
                "[join_services]\ndangerous_any_measurements = true\nsnp_id_keys = ['{key}']\n\
                 snp_minimum_tcb = '{minimum}'"
            )
        };
        assert!(Settings::parse(&floor("4,0,24,219")).is_ok());
        assert!(Settings::parse(&floor("4,0,24")).is_err());
        let owner = |line: &str| Settings::parse(&format!("{}\n{line}", floor("4,0,24,219")));
        assert!(owner(&format!("snp_host_data = ['{}']", "2".repeat(64))).is_ok());
        assert!(owner(&format!("snp_author_keys = ['{}']", "2".repeat(96))).is_ok());
        // The value in a guest that nobody signed for.
        assert!(owner(&format!("snp_author_keys = ['{}']", "0".repeat(96))).is_err());
        let host_data = format!("[join_services]\nsnp_host_data = ['{}']", "2".repeat(64));
        assert!(Settings::parse(&host_data).is_err());
        let unmeasured = format!("[join_services]\nattestation_keys = ['{}']", "0".repeat(64));
        assert!(Settings::parse(&unmeasured).is_err());
        let demanded = unmeasured + "\ndangerous_any_measurements = true";
        assert!(Settings::parse(&demanded).is_ok());
        assert!(Settings::parse(&format!("{demanded}\nmeasurements = '/m'")).is_err());
    }
}
