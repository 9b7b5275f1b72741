//! Flags that select what a node must prove, and its address.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use bootstrapper::instance::node;
use clap::Args;
use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_node::atls::{
    AkTrust, AnyAk, AzureSnpAk, Endpoint, EveryTrust, Expectation, LiveMeasurements, Measurements,
    PinnedAks, Severity, Variant, VtpmValidator,
};
use tec_node::derive::ClusterId;
use tec_support::SystemClock;
use tec_support::evidence::{guests, parse_sha384, parse_tcb};
use tec_tpm::snp::Tcb;

/// What a node must prove.
#[derive(Debug, Args)]
pub(super) struct TrustArgs {
    /// Fingerprint of an accepted attestation key, as printed by `bootstrapper key` on the node; repeatable.
    #[arg(long = "ak", value_name = "FINGERPRINT")]
    aks: Vec<Fingerprint>,
    /// Accept any attestation key: anyone on the network path can pose as the node.
    #[arg(long, conflicts_with = "aks")]
    dangerous_any_ak: bool,
    /// File with the register values that the node must have, JSON.
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// Accept the node whatever it booted.
    #[arg(long, conflicts_with = "measurements")]
    dangerous_any_measurements: bool,
    /// Type of the node's evidence.
    #[arg(long, default_value = "qemu-vtpm", value_parser = variant)]
    variant: Variant,
    /// SHA-384 of an ID key whose guests are accepted; with `--variant azure-sev-snp`; repeatable.
    #[arg(long = "snp-id-key", value_name = "DIGEST", value_parser = parse_sha384)]
    snp_id_keys: Vec<[u8; 48]>,
    /// Measurement of an accepted guest; with `--variant azure-sev-snp`; repeatable.
    #[arg(long = "snp-measurement", value_name = "DIGEST", value_parser = parse_sha384)]
    snp_measurements: Vec<[u8; 48]>,
    /// Oldest accepted firmware of the node's host: boot loader, TEE, SNP and microcode, separated by commas;
    /// with `--variant azure-sev-snp`.
    #[arg(long, value_name = "B,T,S,M", value_parser = parse_tcb)]
    snp_minimum_tcb: Option<Tcb>,
}

fn variant(name: &str) -> Result<Variant, String> {
    let known = Variant::of_name(name).filter(|one| *one != Variant::Dummy);
    known.ok_or_else(|| format!("{name:?} is not a type of evidence"))
}

impl TrustArgs {
    /// Fails without requirements on the node, because this program would then talk to any machine.
    fn ensure_something_is_demanded(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.aks.is_empty() || self.dangerous_any_ak || self.variant == Variant::AzureSevSnp,
            "--ak with the node's attestation key is required: otherwise any host could answer in its place"
        );
        anyhow::ensure!(
            self.measurements.is_some() || self.dangerous_any_measurements,
            "--measurements is required: an attestation key alone does not show what the node booted"
        );
        Ok(())
    }

    /// The keys that the flags name.
    pub(super) fn pinned(&self) -> Option<BTreeSet<Fingerprint>> {
        (!self.aks.is_empty()).then(|| self.aks.iter().copied().collect())
    }

    /// The CAs that vouch for keys that no flag names.
    pub(super) fn hardware(&self) -> anyhow::Result<Arc<dyn AkTrust>> {
        if self.variant != Variant::AzureSevSnp {
            return Ok(Arc::new(AnyAk));
        }
        let (id_keys, measurements) = (&self.snp_id_keys, &self.snp_measurements);
        let policy = guests(id_keys, measurements, self.snp_minimum_tcb).context(
            "--snp-id-key or --snp-measurement is required to select the accepted guests",
        )?;
        Ok(Arc::new(AzureSnpAk::new(Arc::new(SystemClock), policy)))
    }

    fn keys(&self) -> anyhow::Result<Arc<dyn AkTrust>> {
        if self.dangerous_any_ak {
            tracing::warn!("any attestation key is taken for the node's");
        }
        let mut all = vec![self.hardware()?];
        if let Some(pinned) = self.pinned() {
            all.push(Arc::new(PinnedAks::new(pinned)));
        }
        Ok(Arc::new(EveryTrust::new(all)))
    }

    /// The registers that the node must have. `cluster` is the value that the cluster's register must have.
    pub(super) fn measurements(
        &self,
        cluster: Option<Sha256Digest>,
    ) -> anyhow::Result<Measurements> {
        if self.dangerous_any_measurements {
            tracing::warn!("the node is taken whatever it booted");
        }
        let read = match &self.measurements {
            Some(path) => node::measurements(path)?,
            None => Measurements::default(),
        };
        Ok(match cluster {
            Some(expected) => {
                let severity = Severity::Enforce;
                let expectation = Expectation { expected, severity };
                read.with(PcrIndex::CLUSTER, expectation)
            }
            None => read,
        })
    }

    /// An endpoint that talks only to such a node.
    pub(super) fn endpoint(&self, cluster: Option<Sha256Digest>) -> anyhow::Result<Endpoint> {
        self.ensure_something_is_demanded()?;
        self.judging(self.keys()?, self.measurements(cluster)?)
    }

    /// An endpoint that talks to such a node whatever its cluster; the caller checks the cluster before it
    /// sends anything.
    pub(super) fn endpoint_of_any_cluster(&self) -> anyhow::Result<Endpoint> {
        self.ensure_something_is_demanded()?;
        let measurements = self.measurements(None)?.without(PcrIndex::CLUSTER);
        self.judging(self.keys()?, measurements)
    }

    pub(super) fn judging(
        &self,
        keys: Arc<dyn AkTrust>,
        measurements: Measurements,
    ) -> anyhow::Result<Endpoint> {
        let live = Arc::new(LiveMeasurements::new(measurements));
        let validator = VtpmValidator::new(self.variant, keys, live);
        Ok(node::endpoint().with_validator(Arc::new(validator)).build()?)
    }
}

/// A cluster by its ID.
pub(crate) fn cluster_id(text: &str) -> Result<ClusterId, String> {
    let mut id = [0; 32];
    hex::decode_to_slice(text, &mut id)
        .map_err(|_| "a cluster ID must have 64 hexadecimal digits".to_owned())?;
    Ok(ClusterId::new(id))
}

/// `host:port` for a host that may lack a port.
pub(super) fn address(given: &str, port: u16) -> String {
    if let Ok(ip) = given.parse::<IpAddr>() {
        return SocketAddr::new(ip, port).to_string();
    }
    if given.contains(':') {
        return given.to_owned();
    }
    format!("{given}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_where_there_is_none() {
        for (given, expected) in [
            ("node-1", "node-1:9000"),
            ("node-1:1", "node-1:1"),
            ("10.0.0.1", "10.0.0.1:9000"),
            ("fd00::1", "[fd00::1]:9000"),
            ("[fd00::1]:1", "[fd00::1]:1"),
        ] {
            assert_eq!(address(given, 9000), expected);
        }
    }
}
