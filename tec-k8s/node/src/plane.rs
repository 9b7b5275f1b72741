//! Tickets with which an admin allows one node to be a control plane of one cluster, for a while.
//!
//! ```text
//!   tec-plane.<base64url of JSON>.<base64url of an ECDSA signature over both parts before it>
//!   { "cluster": "<hex>", "node": "<fingerprint>", "until": "<RFC 3339>", "signer": "<base64 of the key>" }
//! ```
//! A ticket is not secret: it is valid for the node whose attestation key or endorsement key it names, and
//! the node that presents it must prove that key.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::derive::ClusterId;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::elliptic_curve::Generate as _;
use p256::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
    LineEnding,
};
use serde::{Deserialize, Serialize};
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::port::{Clock, Entropy, EntropyRng};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

/// Prefix of tickets. It is part of what is signed, so a signature cannot be mistaken for anything else.
const PREFIX: &str = "tec-plane";
/// Maximum length of a ticket.
const MAX_TICKET: usize = 2048;

/// The file contains no key that can sign tickets.
#[derive(Debug, thiserror::Error)]
#[error("a key that signs tickets must be a P-256 private key in PEM (PKCS #8)")]
#[non_exhaustive]
pub struct AdminKeyError;

/// The key of an admin.
#[derive(derive_more::Debug)]
#[debug("AdminKey {{ .. }}")]
pub struct AdminKey(SigningKey);

impl AdminKey {
    /// Generates one.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self(SigningKey::generate_from_rng(&mut EntropyRng::new(entropy)))
    }

    /// Reads it from the text of a file.
    pub fn from_pem(pem: &SecretBytes) -> Result<Self, AdminKeyError> {
        let text = std::str::from_utf8(pem.expose("read the key of an admin"));
        let key = text.ok().and_then(|text| SigningKey::from_pkcs8_pem(text).ok());
        key.map(Self).ok_or(AdminKeyError)
    }

    /// The text of the key for a file.
    ///
    /// # Errors
    /// Never with a key of this type.
    pub fn to_pem(&self) -> Result<SecretBytes, AdminKeyError> {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF).map_err(|_| AdminKeyError)?;
        Ok(SecretBytes::new(pem.as_bytes().to_vec()))
    }

    /// Its name in the settings of join services.
    ///
    /// # Errors
    /// Never with a key of this type.
    pub fn fingerprint(&self) -> Result<Fingerprint, AdminKeyError> {
        let key = PublicKey::from_der(&self.public()?).map_err(|_| AdminKeyError)?;
        Ok(key.fingerprint())
    }

    fn public(&self) -> Result<Vec<u8>, AdminKeyError> {
        let der = self.0.verifying_key().to_public_key_der().map_err(|_| AdminKeyError)?;
        Ok(der.into_vec())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    cluster: String,
    node: Fingerprint,
    until: Timestamp,
    signer: String,
}

/// What an admin allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneTicket {
    /// The cluster,
    pub cluster: ClusterId,
    /// the node, by its attestation key or endorsement key,
    pub node: Fingerprint,
    /// and when the ticket expires.
    pub until: Timestamp,
}

impl PlaneTicket {
    /// The text of the ticket.
    ///
    /// # Errors
    /// Never with a key of this type.
    pub fn sign(&self, key: &AdminKey) -> Result<String, AdminKeyError> {
        let wire = Wire {
            cluster: self.cluster.to_string(),
            node: self.node,
            until: self.until,
            signer: STANDARD.encode(key.public()?),
        };
        let json = serde_json::to_vec(&wire).map_err(|_| AdminKeyError)?;
        let signed = format!("{PREFIX}.{}", URL_SAFE_NO_PAD.encode(json));
        let signature: Signature = key.0.sign(signed.as_bytes());
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes())))
    }
}

/// Why a ticket is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaneTicketError {
    /// It is not a ticket.
    #[error("it is malformed")]
    Malformed,
    /// The settings do not list its signer.
    #[error("its signer {0} is not in control_plane_signers")]
    Signer(Fingerprint),
    /// The signature was not made by its signer.
    #[error("its signature is wrong")]
    Signature,
    /// It is for another cluster.
    #[error("it is for another cluster")]
    Cluster,
    /// It has expired.
    #[error("it expired at {0}")]
    Expired(Timestamp),
}

/// Accepts tickets of these admins.
#[derive(Debug)]
pub struct AdminTickets {
    signers: BTreeSet<Fingerprint>,
    clock: Arc<dyn Clock>,
}

impl AdminTickets {
    /// Keys by fingerprint.
    pub fn new(signers: BTreeSet<Fingerprint>, clock: Arc<dyn Clock>) -> Self {
        Self { signers, clock }
    }

    /// The attestation key or endorsement key of the node that the ticket is for.
    pub fn check(&self, text: &str, cluster: &ClusterId) -> Result<Fingerprint, PlaneTicketError> {
        let malformed = || PlaneTicketError::Malformed;
        let text = text.trim();
        let (signed, signature) =
            text.rsplit_once('.').filter(|_| text.len() <= MAX_TICKET).ok_or_else(malformed)?;
        let json = signed.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('.'));
        let json = json.and_then(|json| URL_SAFE_NO_PAD.decode(json).ok()).ok_or_else(malformed)?;
        let wire: Wire = serde_json::from_slice(&json).map_err(|_| malformed())?;
        let der = STANDARD.decode(&wire.signer).map_err(|_| malformed())?;
        let signer = PublicKey::from_der(&der).map_err(|_| malformed())?.fingerprint();
        if !self.signers.contains(&signer) {
            return Err(PlaneTicketError::Signer(signer));
        }
        let key = VerifyingKey::from_public_key_der(&der).map_err(|_| malformed())?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| malformed())?;
        let signature = Signature::from_slice(&signature).map_err(|_| malformed())?;
        key.verify(signed.as_bytes(), &signature).map_err(|_| PlaneTicketError::Signature)?;
        if wire.cluster != cluster.to_string() {
            return Err(PlaneTicketError::Cluster);
        }
        if wire.until <= self.clock.now() {
            return Err(PlaneTicketError::Expired(wire.until));
        }
        Ok(wire.node)
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::{ManualClock, SeededEntropy, sample};

    use super::*;

    fn admin(seed: u64) -> AdminKey {
        AdminKey::generate(&SeededEntropy::new(seed))
    }

    fn ticket() -> PlaneTicket {
        let node = sample::public_key(1).fingerprint();
        PlaneTicket { cluster: ClusterId::new([1; 32]), node, until: sample::time(60) }
    }

    fn tickets(now: i64) -> AdminTickets {
        let clock = Arc::new(ManualClock::new(sample::time(now)));
        AdminTickets::new([admin(1).fingerprint().unwrap()].into(), clock)
    }

    #[test]
    fn a_ticket_counts_for_its_cluster_until_it_expires() {
        let text = ticket().sign(&admin(1)).unwrap();
        let cluster = ticket().cluster;
        assert_eq!(tickets(59).check(&text, &cluster), Ok(ticket().node));
        assert_eq!(tickets(59).check(&format!("{text}\n"), &cluster), Ok(ticket().node));
        let expired = Err(PlaneTicketError::Expired(ticket().until));
        assert_eq!(tickets(60).check(&text, &cluster), expired);
        let other = ClusterId::new([2; 32]);
        assert_eq!(tickets(0).check(&text, &other), Err(PlaneTicketError::Cluster));
    }

    #[test]
    fn a_ticket_of_a_stranger_or_one_that_was_changed_is_refused() {
        let cluster = ticket().cluster;
        let strangers = ticket().sign(&admin(2)).unwrap();
        let stranger = admin(2).fingerprint().unwrap();
        let refused = tickets(0).check(&strangers, &cluster);
        assert_eq!(refused, Err(PlaneTicketError::Signer(stranger)));
        let text = ticket().sign(&admin(1)).unwrap();
        let signature = text.rsplit_once('.').unwrap().1;
        let later = PlaneTicket { until: sample::time(600), ..ticket() }.sign(&admin(1)).unwrap();
        let forged = format!("{}.{signature}", later.rsplit_once('.').unwrap().0);
        assert_eq!(tickets(0).check(&forged, &cluster), Err(PlaneTicketError::Signature));
        for length in 0..text.len() {
            assert!(tickets(0).check(&text[..length], &cluster).is_err(), "{length}");
        }
    }

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let pem = admin(1).to_pem().unwrap();
        let read = AdminKey::from_pem(&pem).unwrap();
        assert_eq!(read.fingerprint().unwrap(), admin(1).fingerprint().unwrap());
        assert!(AdminKey::from_pem(&SecretBytes::new(b"key".to_vec())).is_err());
    }
}
