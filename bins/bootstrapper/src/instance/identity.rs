//! The kubelet's key, and the request for its certificate.

use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use anyhow::Context as _;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::host::{KubeletIdentity, KubeletKey};
use tec_node::ticket::{CaPin, NodeName};
use x509_cert::Certificate;
use x509_cert::der::{DecodePem as _, Encode as _};

use crate::instance::authority::{Authority, ORGANIZATION, PREFIX};

/// Generated once for each node: a join that was interrupted continues with the key that its certificate is
/// for.
#[derive(Debug)]
pub struct Identity {
    key: KubeletKey,
    public: Vec<u8>,
    authority: Authority,
}

impl Identity {
    /// Creates the identity of a node with this name and address; `authority` determines how to sign, but not
    /// with which CA.
    pub fn generate(
        name: &NodeName,
        address: IpAddr,
        authority: Authority,
    ) -> Result<Self, rcgen::Error> {
        Self::of_pair(&KeyPair::generate()?, name, address, authority)
    }

    /// Uses the key in this file, if an earlier process left one.
    /// Errors: it is not a key, or the cryptography provider generates none.
    pub fn open(
        key: &Path,
        name: &NodeName,
        address: IpAddr,
        authority: Authority,
    ) -> anyhow::Result<Self> {
        let what = || format!("read {}", key.display());
        let pem = match fs::read(key) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::generate(name, address, authority)?);
            }
            read => SecretBytes::new(read.with_context(what)?),
        };
        let pem = std::str::from_utf8(pem.expose("the kubelet's key of this node"));
        let pair = KeyPair::from_pem(pem.with_context(what)?);
        let pair = pair.with_context(what)?;
        Ok(Self::of_pair(&pair, name, address, authority)?)
    }

    fn of_pair(
        pair: &KeyPair,
        name: &NodeName,
        address: IpAddr,
        authority: Authority,
    ) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let subject = &mut params.distinguished_name;
        subject.push(DnType::OrganizationName, ORGANIZATION);
        subject.push(DnType::CommonName, format!("{PREFIX}{name}"));
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        let request = params.serialize_request(pair)?;
        let key = KubeletKey {
            private: SecretBytes::new(pair.serialize_pem().into_bytes()),
            request: request.der().to_vec(),
        };
        let public = pair.subject_public_key_info();
        Ok(Self { key, public, authority })
    }
}

impl KubeletIdentity for Identity {
    fn key(&self) -> &KubeletKey {
        &self.key
    }

    fn is_of(&self, certificate: &str) -> bool {
        let parsed = Certificate::from_pem(certificate).ok();
        let key = parsed.and_then(|one| {
            let key = one.tbs_certificate().subject_public_key_info();
            key.to_der().ok()
        });
        key.is_some_and(|der| der == self.public)
    }

    fn is_pinned(&self, ca: &[u8], pin: &CaPin) -> bool {
        let parsed = Certificate::from_pem(ca).ok();
        let key = parsed.and_then(|one| {
            let key = one.tbs_certificate().subject_public_key_info();
            key.to_der().ok()
        });
        key.is_some_and(|der| CaPin::new(Sha256Digest::of(der)) == *pin)
    }

    fn certify(&self, pki: &Path) -> Result<String, PortError> {
        let signed = self.authority.of_directory(pki).certify(&self.key.request);
        signed.map_err(|error| {
            PortError::new(PortErrorKind::Internal, "sign the kubelet's certificate").because(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use rcgen::{BasicConstraints, IsCa};
    use tec_core::system::{SystemClock, SystemEntropy};

    use super::*;

    #[test]
    fn a_certificate_for_another_key_is_told_from_ours() {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pair = KeyPair::generate().unwrap();
        let ca = params.self_signed(&pair).unwrap();
        fs::write(directory.path().join("ca.crt"), ca.pem()).unwrap();
        fs::write(directory.path().join("ca.key"), pair.serialize_pem()).unwrap();
        let authority = Authority::new("", Arc::new(SystemClock), Arc::new(SystemEntropy));
        let identity = || {
            let name = "node-1".parse().unwrap();
            Identity::generate(&name, [10, 0, 0, 1].into(), authority.clone()).unwrap()
        };
        let (ours, other) = (identity(), identity());
        assert!(ours.is_of(&ours.certify(directory.path()).unwrap()));
        assert!(!ours.is_of(&other.certify(directory.path()).unwrap()));
        assert!(!ours.is_of("no certificate"));
        let key = directory.path().join("kubelet.key");
        fs::write(&key, ours.key().private.expose("test")).unwrap();
        let again = Identity::open(
            &key,
            &"node-1".parse().unwrap(),
            [10, 0, 0, 1].into(),
            authority.clone(),
        );
        let again = again.unwrap();
        assert!(again.is_of(&ours.certify(directory.path()).unwrap()));
        let spki = pair.subject_public_key_info();
        let pem = ca.pem().into_bytes();
        let pin = CaPin::new(Sha256Digest::of(spki));
        assert!(ours.is_pinned(&pem, &pin));
        assert!(!ours.is_pinned(&pem, &CaPin::new(Sha256Digest::of("another"))));
        // Whatever else the file had would be trusted too.
        assert!(!ours.is_pinned(&[&pem[..], &pem[..]].concat(), &pin));
    }
}
