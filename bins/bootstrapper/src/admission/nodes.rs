//! Decides which nodes are accepted, according to the settings.

use std::collections::BTreeSet;
use std::sync::Arc;

use tec_core::ak::{Fingerprint, PublicKey, TpmObjects};
use tec_core::port::Clock;
use tec_node::atls::{AkTrust, ValidateError};
use tec_node::rpc::EndorsementPolicy;

use crate::instance::trust::Trust;

/// Accepted attestation keys, and endorsement keys that vouch for others.
///
/// The handshake evaluates what a node proves by itself. If endorsement keys are accepted, it lets
/// every attestation key pass, and the service asks for the endorsement key of those that are not
/// listed.
#[derive(Debug)]
pub struct Nodes {
    in_handshake: Arc<dyn AkTrust>,
    listed: BTreeSet<Fingerprint>,
    issuer: Option<Arc<dyn TpmObjects>>,
}

impl Nodes {
    /// Creates the policy from these settings.
    pub fn new(trust: &Trust, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let issuer = trust.endorsements(clock)?;
        Ok(Self {
            in_handshake: match issuer {
                Some(_) => trust.keys_before_endorsement(),
                None => trust.keys(),
            },
            listed: trust.attestation_keys.clone(),
            issuer: issuer.map(|issuer| Arc::new(issuer) as Arc<dyn TpmObjects>),
        })
    }
}

impl AkTrust for Nodes {
    fn check(&self, ak: &PublicKey, instance_info: &[u8]) -> Result<(), ValidateError> {
        self.in_handshake.check(ak, instance_info)
    }
}

impl EndorsementPolicy for Nodes {
    fn is_demanded(&self, ak: &Fingerprint) -> bool {
        self.issuer.is_some() && !self.listed.contains(ak)
    }

    fn issuer(&self) -> Option<Arc<dyn TpmObjects>> {
        self.issuer.clone()
    }
}
