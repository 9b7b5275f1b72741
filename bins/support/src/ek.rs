//! Challenges to endorsement keys: to any key, or to those that the CA certificates in a file vouch for.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rand_core::CryptoRng;
use tec_core::ak::{Credential, EkOffer, PublicKey, TpmObjectError, TpmObjects};
use tec_core::port::Clock;
use tec_core::secret::SecretArray;
use tec_tpm::ek::{CredentialIssuer, TrustStore};

use crate::pem;

/// Issues challenges to any endorsement key or, with a file of CA certificates in PEM, only to keys whose
/// certificate chains to one of them. The log shows why a key is refused.
pub fn issuer(file: Option<&Path>, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<dyn TpmObjects>> {
    let issuer = match file {
        Some(path) => CredentialIssuer::with_roots(roots(path)?, clock),
        None => CredentialIssuer::new(),
    };
    Ok(Arc::new(Logged(issuer)))
}

/// The CA certificates in a PEM file; each of them is trusted as a root.
/// Errors: the file cannot be read, has no certificate, or has one that is not acceptable.
pub fn roots(path: &Path) -> anyhow::Result<TrustStore> {
    let mut store = TrustStore::new();
    let certificates = pem::certificates(path)?;
    anyhow::ensure!(!certificates.is_empty(), "{} contains no certificate", path.display());
    for der in certificates {
        store
            .add_root(&der)
            .with_context(|| format!("cannot use a CA certificate in {}", path.display()))?;
    }
    Ok(store)
}

#[derive(Debug)]
struct Logged(CredentialIssuer);

impl TpmObjects for Logged {
    fn attestation_key(&self, tpm2b_public: &[u8]) -> Result<PublicKey, TpmObjectError> {
        self.0.attestation_key(tpm2b_public)
    }

    fn challenge(
        &self,
        ek: &EkOffer,
        tpm2b_public: &[u8],
        secret: &SecretArray<32>,
        rng: &mut dyn CryptoRng,
    ) -> Result<Credential, TpmObjectError> {
        self.0.challenge(ek, tpm2b_public, secret, rng).inspect_err(|error| {
            let ek = ek.public.fingerprint();
            tracing::warn!(ek.fingerprint = %ek, reason = error.reason, "endorsement key refused");
        })
    }
}
