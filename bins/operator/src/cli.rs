//! Flags and environment.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use tec_core::attest::PinnedPcrs;
use tec_core::endpoint::BaseUrl;
use tec_core::pcr::PcrIndex;
use tec_k8s::render::{Deploy, ImageAccess, Images, PodUser};
use tec_registry::RegistryArgs;
use tec_support::diskkey::DiskKeys;
use tec_support::program::LogArgs;
use tec_trustee::config::Generation;

/// Looks after the trusted execution cluster of one namespace.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Where /metrics, /livez and /readyz are served, in plain HTTP
    #[arg(long, default_value = "0.0.0.0:9090")]
    pub(crate) metrics_addr: SocketAddr,

    /// The namespace that is looked after
    #[arg(long, env = "POD_NAMESPACE")]
    pub(crate) namespace: String,

    /// Name of this replica, unique in the namespace
    #[arg(long, env = "POD_NAME")]
    pub(crate) identity: String,

    /// The platform assigns users to pods, as OpenShift does
    #[arg(long)]
    assigned_pod_user: bool,

    /// Generation of the Trustee that is deployed: mounted, unified or v0.21
    #[arg(long, default_value = "v0.21", value_parser = generation)]
    pub(crate) generation: Generation,

    /// Where the cluster's own Trustee is reached in place of its Service, for an operator that
    /// runs outside of the cluster
    #[arg(long, env = "TEC_TRUSTEE_URL")]
    pub(crate) trustee_url: Option<BaseUrl>,

    /// Registers that must be those of approved images, separated by commas. Where images are
    /// unified kernel images, 4,11,14 covers command line and initial file system, too
    #[arg(
        long,
        env = "TEC_PCRS",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = pcr,
        default_value = "4,14"
    )]
    pcrs: Vec<PcrIndex>,

    /// How a Job that measures an image sees it
    #[arg(long, value_enum, default_value_t = Access::Registry)]
    image_access: Access,

    /// Form of the disk keys of new machines; keys that exist stay as they are
    #[arg(long, env = "TEC_DISK_KEYS", value_enum, default_value_t)]
    pub(crate) disk_keys: DiskKeys,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Access {
    /// It reads what it needs of it from its registry
    Registry,
    /// The kubelet mounts all of it; the nodes must have image volumes
    Volume,
}

fn generation(text: &str) -> Result<Generation, String> {
    let known = Generation::ALL.into_iter().find(|generation| generation.as_str() == text);
    known.ok_or_else(|| {
        let names = Generation::ALL.map(Generation::as_str);
        format!("these are known: {}", names.join(", "))
    })
}

fn pcr(text: &str) -> Result<PcrIndex, String> {
    let index: u8 = text.parse().map_err(|_| "a number from 0 to 23")?;
    PcrIndex::new(index).map_err(|error| error.to_string())
}

impl Args {
    /// The registers that are pinned; without the flag those of existing clusters: boot loader and
    /// kernel, and the keys that shim accepts (trusted-cluster-operator).
    ///
    /// # Errors
    /// None is.
    pub(crate) fn pinned(&self) -> anyhow::Result<PinnedPcrs> {
        PinnedPcrs::new(self.pcrs.iter().copied().collect()).context("--pcrs")
    }

    /// What is deployed: images as the environment names them.
    ///
    /// # Errors
    /// Jobs cannot do what the flags say.
    pub(crate) fn deploy(&self) -> anyhow::Result<Deploy> {
        let variable =
            |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
        let mut deploy = Deploy::new(Images::from_variables(variable));
        if self.assigned_pod_user {
            deploy.user = PodUser::Assigned;
        }
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

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_the_default_generation_known() {
        Args::command().debug_assert();
        assert_eq!(generation("v0.21").ok(), Some(Generation::V0_21));
        assert!(generation("v9").is_err());
    }

    fn args(more: &[&str]) -> Args {
        let always = ["operator", "--namespace", "n", "--identity", "one"];
        Args::parse_from(always.iter().chain(more))
    }

    #[test]
    fn the_registers_of_existing_clusters_are_pinned_unless_others_are_named() {
        let pinned = |more: &[&str]| {
            let pinned = args(more).pinned().unwrap();
            pinned.iter().map(|pcr| pcr.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(pinned(&[]), ["4", "14"]);
        assert_eq!(pinned(&["--pcrs", "11,4,14"]), ["4", "11", "14"]);
        let wrong = ["operator", "--namespace", "n", "--identity", "one", "--pcrs", "24"];
        assert!(Args::try_parse_from(wrong).is_err());
    }

    #[test]
    fn jobs_get_the_flags_for_registries_and_never_files_that_they_do_not_have() {
        let plain =
            ["--dangerous-plain-registry", "r.example:5000", "--mirror", "a.example=b.example/c"];
        let deploy = args(&plain).deploy().unwrap();
        let flags = "--mirror a.example=b.example/c --dangerous-plain-registry r.example:5000 \
                     --platform linux/amd64";
        let flags = flags.split(' ').map(str::to_owned).collect();
        assert_eq!(deploy.image_access, ImageAccess::Registry(flags));
        let with_file = ["--registry-ca", "/ca.crt"];
        assert!(args(&with_file).deploy().is_err());
        let mounted = args(&[&with_file[..], &["--image-access", "volume"]].concat());
        assert_eq!(mounted.deploy().unwrap().image_access, ImageAccess::Volume);
    }
}
