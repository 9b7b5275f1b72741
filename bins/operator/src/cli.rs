//! Flags and environment variables.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use tec_core::endpoint::BaseUrl;
use tec_k8s::render::{Deploy, ImageAccess, Images, NoRegistryError, PodUser, Settings};
use tec_support::diskkey::DiskKeys;
use tec_support::pins::PinsArgs;
use tec_support::program::LogArgs;
use tec_support::registry::RegistryArgs;

/// Reconciles the trusted execution cluster of one namespace.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Address of /metrics, /livez and /readyz, plain HTTP
    #[arg(long, default_value = "0.0.0.0:9090")]
    pub(crate) metrics_addr: SocketAddr,

    /// Namespace to reconcile
    #[arg(long, env = "POD_NAMESPACE")]
    pub(crate) namespace: String,

    /// Name of this replica, unique in the namespace
    #[arg(long, env = "POD_NAME")]
    pub(crate) identity: String,

    /// The platform assigns the user IDs of pods, as OpenShift does
    #[arg(long)]
    assigned_pod_user: bool,

    /// URL of the cluster's own Trustee, instead of its Service, for an operator that runs outside the
    /// cluster
    #[arg(long, env = "TEC_TRUSTEE_URL")]
    pub(crate) trustee_url: Option<BaseUrl>,

    #[command(flatten)]
    pub(crate) pins: PinsArgs,

    /// How a measuring Job accesses the image
    #[arg(long, value_enum, default_value_t = Access::Registry)]
    image_access: Access,

    /// Networks whose addresses each stand for many nodes, such as 10.0.0.0/8, separated by commas. The
    /// registration servers apply no per-address limit to them. For Services that hide client addresses
    /// (default: none)
    #[arg(long, env = "TEC_SHARED_SOURCES", value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = network)]
    shared_sources: Vec<String>,

    /// Settings of the pods and Services that the operator creates, as JSON: replicas, log, nodeSelector,
    /// tolerations, affinity, resources, services, egressPorts (default: none)
    #[arg(
        long,
        env = "TEC_SETTINGS",
        value_name = "JSON",
        default_value = "{}",
        hide_default_value = true
    )]
    settings: Settings,

    /// Form of the disk keys of new machines; existing keys do not change
    #[arg(long, env = "TEC_DISK_KEYS", value_enum, default_value_t)]
    pub(crate) disk_keys: DiskKeys,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Access {
    /// Read the needed parts from the registry
    Registry,
    /// Have the kubelet mount the whole image; the nodes must support image volumes
    Volume,
}

fn network(text: &str) -> Result<String, String> {
    let network = text.parse::<tec_support::shared::Network>();
    network.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The images that the environment names.
/// Errors: it is not known where they are.
pub(crate) fn images() -> Result<Images, NoRegistryError> {
    let variable = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    Images::from_variables(variable)
}

impl Args {
    /// The settings of what to deploy, with these images.
    pub(crate) fn deploy(&self, images: Images) -> anyhow::Result<Deploy> {
        let mut deploy = Deploy::new(images);
        deploy.pins = self.pins.pins()?;
        if self.assigned_pod_user {
            deploy.user = PodUser::Assigned;
        }
        deploy.shared_sources.clone_from(&self.shared_sources);
        deploy.settings.clone_from(&self.settings);
        deploy.image_access = match self.image_access {
            Access::Volume => ImageAccess::Volume,
            Access::Registry => {
                let flags = self.registry.without_files();
                ImageAccess::Registry(flags.context(
                    "--pull-secret and --registry-ca name files of this pod, which Jobs do not \
                     have: add --image-access volume, or name a pull secret in the ApprovedImage",
                )?)
            }
        };
        Ok(deploy)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use tec_core::boot::Pins;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    fn args(more: &[&str]) -> Args {
        let always = ["operator", "--namespace", "n", "--identity", "one"];
        Args::parse_from(always.iter().chain(more))
    }

    #[test]
    fn the_guard_pins_what_the_operator_pins() {
        let pins = |more: &[&str]| {
            (args(more).pins.pins().unwrap(), args(more).deploy(Images::default()).unwrap().pins)
        };
        assert_eq!(pins(&[]), (Pins::Predicted, Pins::Predicted));
        let (operator, guard) = pins(&["--pcrs", "4,14"]);
        assert!(operator == guard && operator != Pins::Predicted);
    }

    #[test]
    fn settings_that_nobody_knows_are_refused() {
        let parse = |settings: &str| {
            let always = ["operator", "--namespace", "n", "--identity", "one", "--settings"];
            Args::try_parse_from(always.iter().copied().chain([settings]))
        };
        let deploy = parse(r#"{"replicas": 3}"#).unwrap().deploy(Images::default()).unwrap();
        assert_eq!(deploy.settings.replicas, Some(3));
        let typo = r#"{"replica": 3}"#;
        let service = r#"{"services": {"kbs": {}}}"#;
        for bad in [typo, service, "", r#"{"services": {"kbs-service": {"type": "X"}}}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn jobs_get_the_flags_for_registries_and_never_files_that_they_do_not_have() {
        let plain =
            ["--dangerous-plain-registry", "r.example:5000", "--mirror", "a.example=b.example/c"];
        let deploy = args(&plain).deploy(Images::default()).unwrap();
        let flags = "--mirror a.example=b.example/c --dangerous-plain-registry r.example:5000 \
                     --platform linux/amd64";
        let flags = flags.split(' ').map(str::to_owned).collect();
        assert_eq!(deploy.image_access, ImageAccess::Registry(flags));
        let with_file = ["--registry-ca", "/ca.crt"];
        assert!(args(&with_file).deploy(Images::default()).is_err());
        let mounted = args(&[&with_file[..], &["--image-access", "volume"]].concat());
        assert_eq!(mounted.deploy(Images::default()).unwrap().image_access, ImageAccess::Volume);
    }
}
