//! Settings for what peers must prove.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tec_core::ak::Fingerprint;
use tec_core::port::Clock;
use tec_core::system::SystemClock;
use tec_node::atls::{AkTrust, AnyAk, AzureSnpAk, ChannelBinding, EveryTrust, PinnedAks};
use tec_support::{ek, evidence};
use tec_tpm::ek::CredentialIssuer;
use tec_tpm::snp::{Policy, Tcb};

/// What the other end must prove. If no keys are set, it is refused.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Trust {
    /// File with the required registers, JSON.
    pub measurements: Option<PathBuf>,
    /// Fingerprints of attestation keys.
    pub attestation_keys: BTreeSet<Fingerprint>,
    /// Only for a join service: fingerprints of endorsement keys. A node whose attestation key is not listed
    /// proves it by one of them.
    pub endorsement_keys: BTreeSet<Fingerprint>,
    /// Only for a join service: file of CA certificates, PEM. An endorsement key that one of them vouches for
    /// is accepted too.
    pub endorsement_roots: Option<PathBuf>,
    /// With `azure-sev-snp`, accept keys that a genuine processor vouches for, in guests with one of these ID
    /// keys: SHA-384, hexadecimal.
    pub snp_id_keys: Vec<GuestDigest>,
    /// With `azure-sev-snp`, accept keys that a genuine processor vouches for, in guests with one of these
    /// measurements.
    pub snp_measurements: Vec<GuestDigest>,
    /// With ID keys or measurements, the key that certified the ID key must be one of these: SHA-384,
    /// hexadecimal.
    pub snp_author_keys: Vec<GuestDigest>,
    /// With ID keys or measurements, the data that the host provided at launch must be one of these: 32
    /// bytes, hexadecimal.
    pub snp_host_data: Vec<HostData>,
    /// With ID keys or measurements, the oldest accepted firmware of the guests' hosts: boot loader, TEE, SNP
    /// and microcode, separated by commas.
    pub snp_minimum_tcb: Option<MinimumTcb>,
    /// Accept any key: anyone on the network path can be the other end.
    pub dangerous_any_attestation_key: bool,
    /// Accept a trusted key whatever its machine booted.
    pub dangerous_any_measurements: bool,
    /// Accept evidence in certificates from peers that send none over the connection: anyone who stole the
    /// key of such a certificate can be the other end.
    pub dangerous_unbound_evidence: bool,
}

impl Trust {
    /// Whether evidence over the connection is required.
    pub fn binding(&self) -> ChannelBinding {
        if self.dangerous_unbound_evidence {
            ChannelBinding::WherePeerCan
        } else {
            ChannelBinding::Required
        }
    }

    /// Checks that the settings are consistent.
    /// Errors: they contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.attestation_keys.is_empty() || !self.dangerous_any_attestation_key,
            "attestation_keys has no effect together with dangerous_any_attestation_key"
        );
        anyhow::ensure!(
            !self.takes_endorsement_keys() || !self.dangerous_any_attestation_key,
            "endorsement_keys and endorsement_roots have no effect together with \
             dangerous_any_attestation_key"
        );
        anyhow::ensure!(
            self.guests().is_none() || !self.dangerous_any_attestation_key,
            "snp_id_keys and snp_measurements have no effect together with \
             dangerous_any_attestation_key"
        );
        anyhow::ensure!(
            self.guests().is_some()
                || (self.snp_minimum_tcb.is_none()
                    && self.snp_author_keys.is_empty()
                    && self.snp_host_data.is_empty()),
            "snp_minimum_tcb, snp_author_keys and snp_host_data have no effect without \
             snp_id_keys or snp_measurements"
        );
        let takes_keys = self.dangerous_any_attestation_key
            || !self.attestation_keys.is_empty()
            || self.takes_endorsement_keys()
            || self.guests().is_some();
        anyhow::ensure!(
            !takes_keys || self.measurements.is_some() || self.dangerous_any_measurements,
            "measurements are missing: a trusted key proves nothing about what its machine booted"
        );
        anyhow::ensure!(
            self.measurements.is_none() || !self.dangerous_any_measurements,
            "measurements have no effect together with dangerous_any_measurements"
        );
        Ok(())
    }

    /// Whether endorsement keys may vouch for attestation keys.
    pub fn takes_endorsement_keys(&self) -> bool {
        !self.endorsement_keys.is_empty() || self.endorsement_roots.is_some()
    }

    /// Challenges the endorsement keys that may vouch for attestation keys; `None` if none may.
    /// Errors: the file of the roots cannot be read, or has an unacceptable certificate.
    pub fn endorsements(&self, clock: Arc<dyn Clock>) -> anyhow::Result<Option<CredentialIssuer>> {
        let listed = self.endorsement_keys.iter().copied();
        Ok(match &self.endorsement_roots {
            Some(path) => {
                let roots = CredentialIssuer::with_roots(ek::roots(path)?, clock);
                Some(roots.with_listed(listed))
            }
            None if self.endorsement_keys.is_empty() => None,
            None => Some(CredentialIssuer::new().with_listed(listed)),
        })
    }

    /// Trust in an attestation key before its endorsement key is checked: only the platform is checked.
    ///
    /// # Security
    /// A caller that accepts peers by this must ask them to prove an endorsement key, and do nothing for them
    /// until then.
    pub fn keys_before_endorsement(&self) -> Arc<dyn AkTrust> {
        self.warn();
        match self.guests() {
            Some(policy) => Arc::new(AzureSnpAk::new(Arc::new(SystemClock), policy)),
            None => Arc::new(AnyAk),
        }
    }

    /// The keys that are trusted. Dangerous settings are logged.
    pub fn keys(&self) -> Arc<dyn AkTrust> {
        self.warn();
        if self.dangerous_any_attestation_key {
            tracing::warn!("any attestation key is taken for a trusted one");
            return Arc::new(AnyAk);
        }
        let pinned = PinnedAks::new(self.attestation_keys.iter().copied());
        match self.guests() {
            Some(policy) => {
                let genuine = Arc::new(AzureSnpAk::new(Arc::new(SystemClock), policy));
                if self.attestation_keys.is_empty() {
                    return genuine;
                }
                Arc::new(EveryTrust::new([genuine as Arc<dyn AkTrust>, Arc::new(pinned)]))
            }
            None => Arc::new(pinned),
        }
    }

    fn warn(&self) {
        if self.dangerous_any_measurements {
            tracing::warn!("a trusted attestation key is taken whatever its machine booted");
        }
        if self.dangerous_unbound_evidence {
            tracing::warn!(
                "evidence is taken that whoever stole the key of a certificate can relay"
            );
        }
        if self.guests().is_some() && self.snp_minimum_tcb.is_none() {
            tracing::warn!(
                "SNP hosts with any firmware are accepted, however old: set snp_minimum_tcb"
            );
        }
    }

    fn guests(&self) -> Option<Policy> {
        let bytes = |all: &[GuestDigest]| all.iter().map(|one| one.0).collect::<Vec<_>>();
        let (id_keys, measurements) = (bytes(&self.snp_id_keys), bytes(&self.snp_measurements));
        let minimum = self.snp_minimum_tcb.map(|minimum| minimum.0);
        let mut policy = evidence::guests(&id_keys, &measurements, minimum)?;
        if !self.snp_author_keys.is_empty() {
            policy = policy.with_author_keys(bytes(&self.snp_author_keys));
        }
        if !self.snp_host_data.is_empty() {
            policy = policy.with_host_data(self.snp_host_data.iter().map(|one| one.0));
        }
        Some(policy)
    }
}

/// SHA-384 of a guest, or of the key that signed for it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub struct GuestDigest([u8; 48]);

impl TryFrom<String> for GuestDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut digest = [0; 48];
        hex::decode_to_slice(text, &mut digest)
            .map_err(|_| "a SHA-384 digest has 96 hexadecimal digits")?;
        if digest == [0; 48] {
            return Err("a digest of zeros is that of every guest without an ID block");
        }
        Ok(Self(digest))
    }
}

/// What a host provides to a guest at launch.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub struct HostData([u8; 32]);

impl TryFrom<String> for HostData {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut data = [0; 32];
        hex::decode_to_slice(text, &mut data)
            .map_err(|_| "host data have 64 hexadecimal digits")?;
        Ok(Self(data))
    }
}

/// Oldest accepted firmware of a host.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub struct MinimumTcb(Tcb);

impl TryFrom<String> for MinimumTcb {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        evidence::parse_tcb(&text).map(Self)
    }
}
