//! The kubelet's key, and the request for its certificate.

use std::net::IpAddr;
use std::path::Path;

use rcgen::CertificateParams;
use rcgen::DistinguishedName;
use rcgen::DnType;
use rcgen::KeyPair;
use rcgen::SanType;
use tec_core::node::ticket::NodeName;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::secret::SecretBytes;
use tec_k8s::node::KubeletIdentity;
use tec_k8s::node::KubeletKey;

use crate::authority::Authority;
use crate::authority::ORGANIZATION;
use crate::authority::PREFIX;

/// Made once for each run of the program.
#[derive(Debug)]
pub struct Identity {
    key: KubeletKey,
    authority: Authority,
}

impl Identity {
    /// For a node of this name and address; `authority` says how to sign, not with which CA.
    ///
    /// # Errors
    /// The provider of cryptography gives no key.
    pub fn generate(
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
        let pair = KeyPair::generate()?;
        let request = params.serialize_request(&pair)?;
        let key = KubeletKey {
            private: SecretBytes::new(pair.serialize_pem().into_bytes()),
            request: request.der().to_vec(),
        };
        Ok(Self { key, authority })
    }
}

impl KubeletIdentity for Identity {
    fn key(&self) -> &KubeletKey {
        &self.key
    }

    fn certify(&self, pki: &Path) -> Result<String, PortError> {
        let signed = self.authority.of_directory(pki).certify(&self.key.request);
        signed.map_err(|error| {
            PortError::new(PortErrorKind::Internal, "sign the kubelet's certificate").because(error)
        })
    }
}
