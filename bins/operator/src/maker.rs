//! The files with which the cluster's own Trustee starts.

use rand_core::CryptoRng;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::time::Timestamp;
use tec_core::trustee::TrusteeIntent;
use tec_k8s::controller::{AdminPair, CertificatePair, SignerFiles, TrusteeMaker};
use tec_operator::trustee_config;
use tec_support::tls;
use tec_trustee::config::Schema;
use tec_trustee::publish::AdminKey;
use tec_trustee::signer;
use tec_trustee::signer::{SignerCa, SignerError};

/// Creates the files of a Trustee.
#[derive(Clone, Copy, Debug, Default)]
pub struct Maker;

impl TrusteeMaker for Maker {
    fn config(&self, intent: &TrusteeIntent) -> Result<String, PortError> {
        trustee_config(&Schema, intent)
    }

    fn admin_pair(&self, rng: &mut dyn CryptoRng) -> Result<AdminPair, PortError> {
        let key = AdminKey::generate(rng);
        Ok(AdminPair { private: key.private_pem(), public: key.public_pem() })
    }

    /// The key of the CA is dropped: nobody can sign another signer with it.
    fn signer(&self, rng: &mut dyn CryptoRng, now: Timestamp) -> Result<SignerFiles, PortError> {
        let failed = |error: SignerError| {
            PortError::new(PortErrorKind::Internal, "make the signer of tokens").because(error)
        };
        let authority = SignerCa::generate(rng, now).map_err(failed)?;
        let signer = authority.issue(rng, now).map_err(failed)?;
        Ok(SignerFiles {
            key: signer.key_pem().duplicate("the API server stores it"),
            certificate: signer.certificate_pem().map_err(failed)?,
            authority: authority.certificate_pem().map_err(failed)?,
        })
    }

    fn authority(&self, now: Timestamp) -> Result<CertificatePair, PortError> {
        let made = tls::new_ca(now).map_err(|error| {
            PortError::new(PortErrorKind::Internal, "make the authority of certificates")
                .because(error)
        })?;
        Ok(CertificatePair { chain: made.chain, key: made.key })
    }

    fn authority_ends(&self, certificate: &str) -> Option<Timestamp> {
        tls::validity(certificate).ok().map(|(_, end)| end)
    }

    fn certificate(
        &self,
        authority: &CertificatePair,
        names: &[String],
        now: Timestamp,
    ) -> Result<(CertificatePair, Timestamp), PortError> {
        let authority = tls::Pair {
            chain: authority.chain.clone(),
            key: authority.key.duplicate("a certificate is signed with it"),
        };
        let (leaf, renew_at) = tls::issue(&authority, names, now).map_err(|error| {
            let why = format!("issue a certificate for {}", names.join(", "));
            PortError::new(PortErrorKind::Invalid, why).because(error)
        })?;
        let leaf = CertificatePair { chain: leaf.chain, key: leaf.key };
        Ok((leaf, renew_at))
    }

    /// A certificate that cannot be parsed counts as expired: the Trustee cannot use it either.
    fn is_signer_due(&self, certificate: &str, now: Timestamp) -> bool {
        signer::is_due(certificate, now).unwrap_or(true)
    }
}
