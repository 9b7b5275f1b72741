//! The cluster's CA, in the files that kubeadm keeps, for signing kubelet certificates.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use p256::pkcs8::EncodePrivateKey as _;
use rcgen::{
    CertificateSigningRequestParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use tec_core::port::{Clock, Entropy, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::rpc::KubeletSigner;
use tec_node::ticket::NodeName;
use time::{Duration, OffsetDateTime};

/// The group that Kubernetes treats as nodes (Kubernetes, "Using Node Authorization").
pub const ORGANIZATION: &str = "system:nodes";
/// Prefix of a node's user name.
pub const PREFIX: &str = "system:node:";
/// Validity of a kubelet's certificate (Constellation); the kubelet renews its client certificate
/// itself.
const BACKDATED: Duration = Duration::hours(2);
const VALID: Duration = Duration::days(365);
/// Bytes of a serial number.
const SERIAL: usize = 16;

/// A request or the CA's files cannot be used. The text contains no part of a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The key is not in a format that kubeadm writes.
    #[error("the CA's key is not a PKCS #1, PKCS #8 or SEC 1 key")]
    Key,
    /// The CA's certificate, or the one to be issued.
    #[error("cannot create the certificate")]
    Certificate(#[source] rcgen::Error),
    /// The request is malformed, or not signed by its own key.
    #[error("the certificate request is invalid")]
    Request(#[source] rcgen::Error),
    /// The request asks for more than a node may have.
    #[error("the certificate request is invalid: its {0}")]
    Refused(&'static str),
}

/// `ca.crt` and `ca.key` in a directory; they are read for each certificate.
#[derive(Clone, Debug)]
pub struct Authority {
    directory: PathBuf,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    reserved: BTreeSet<IpAddr>,
}

impl Authority {
    /// The CA in this directory.
    pub fn new(
        directory: impl Into<PathBuf>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { directory: directory.into(), clock, entropy, reserved: BTreeSet::new() }
    }

    /// Also refuses to certify a node with one of these addresses: they belong to other nodes.
    pub fn reserving(mut self, addresses: BTreeSet<IpAddr>) -> Self {
        let addresses = addresses.into_iter();
        self.reserved.extend(addresses.map(|address| address.to_canonical()));
        self
    }

    /// The node that a request is for. A certificate for the address of an API server, or of another node,
    /// would allow impersonating it, since the same CA signs all of them.
    fn admitted(
        &self,
        request: &[u8],
    ) -> Result<(NodeName, CertificateSigningRequestParams), AuthorityError> {
        let (name, request) = node_request(request)?;
        let is_reserved = |one: &SanType| match one {
            // Clients treat an IPv4-mapped IPv6 address as the same address.
            SanType::IpAddress(address) => self.reserved.contains(&address.to_canonical()),
            _ => false,
        };
        if request.params.subject_alt_names.iter().any(is_reserved) {
            return Err(AuthorityError::Refused(
                "address is that of an API server or another node",
            ));
        }
        Ok((name, request))
    }

    /// Uses the files in another directory.
    #[must_use]
    pub fn of_directory(&self, directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ..self.clone() }
    }

    /// Signs a node's request.
    pub fn certify(&self, request: &[u8]) -> Result<String, AuthorityError> {
        let (_, mut request) = self.admitted(request)?;
        let mut serial = [0; SERIAL];
        self.entropy.fill(&mut serial);
        let now = self.clock.now().unix_seconds();
        let now = OffsetDateTime::from_unix_timestamp(now)
            .map_err(|_| AuthorityError::Certificate(rcgen::Error::Time))?;
        let params = &mut request.params;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = now - BACKDATED;
        params.not_after = now + VALID;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = read(&self.directory.join("ca.crt"))?;
        let certificate = String::from_utf8_lossy(&certificate).into_owned();
        let key = SecretBytes::new(read(&self.directory.join("ca.key"))?);
        let issuer = Issuer::from_ca_cert_pem(&certificate, ca_key(&key)?)
            .map_err(AuthorityError::Certificate)?;
        let signed = request.signed_by(&issuer);
        Ok(signed.map_err(AuthorityError::Certificate)?.pem())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AuthorityError> {
    fs::read(path).map_err(|source| AuthorityError::File { path: path.to_owned(), source })
}

/// Parses a key in a format that kubeadm or older tools write.
fn ca_key(pem: &SecretBytes) -> Result<KeyPair, AuthorityError> {
    let malformed = |_| AuthorityError::Key;
    let text = pem.expose("sign a kubelet's certificate");
    let (label, der) = pem_rfc7468::decode_vec(text).map_err(malformed)?;
    let pkcs8 = match label {
        "PRIVATE KEY" => SecretBytes::new(der),
        "RSA PRIVATE KEY" => {
            let der = SecretBytes::new(der);
            let key = rsa::RsaPrivateKey::from_pkcs1_der(der.expose("change its form"));
            let key = key.map_err(|_| AuthorityError::Key)?.to_pkcs8_der();
            SecretBytes::new(key.map_err(|_| AuthorityError::Key)?.as_bytes().to_vec())
        }
        "EC PRIVATE KEY" => {
            let der = SecretBytes::new(der);
            let key = p256::SecretKey::from_sec1_der(der.expose("change its form"));
            let key = key.map_err(|_| AuthorityError::Key)?.to_pkcs8_der();
            SecretBytes::new(key.map_err(|_| AuthorityError::Key)?.as_bytes().to_vec())
        }
        _ => return Err(AuthorityError::Key),
    };
    KeyPair::try_from(pkcs8.expose("sign a kubelet's certificate")).map_err(|_| AuthorityError::Key)
}

/// The node that a request is for. The request is signed by its own key, and has one organization, one name,
/// and no server name but one address: nodes choose their names, and one named like a service of the cluster
/// would get a certificate for that service, since the same CA signs both.
pub fn node_request(
    der: &[u8],
) -> Result<(NodeName, CertificateSigningRequestParams), AuthorityError> {
    let (name, request) = named_request(der)?;
    let is_address = |one: &SanType| matches!(one, SanType::IpAddress(_));
    let names = &request.params.subject_alt_names;
    if names.len() > 1 || !names.iter().all(is_address) {
        return Err(AuthorityError::Refused("alternative names are not one address"));
    }
    Ok((name, request))
}

/// The node that a request is for according to its subject, whatever other names it asks for.
pub(crate) fn named_request(
    der: &[u8],
) -> Result<(NodeName, CertificateSigningRequestParams), AuthorityError> {
    let request = CertificateSigningRequestParams::from_der(&der.into());
    let request = request.map_err(AuthorityError::Request)?;
    let subject = &request.params.distinguished_name;
    let one = |sort: DnType| text(subject, &sort);
    if subject.iter().count() != 2 || one(DnType::OrganizationName) != Some(ORGANIZATION) {
        return Err(AuthorityError::Refused(
            "subject is not one organization, system:nodes, and one name",
        ));
    }
    let name = one(DnType::CommonName)
        .and_then(|name| name.strip_prefix(PREFIX))
        .and_then(|name| name.parse::<NodeName>().ok())
        .ok_or(AuthorityError::Refused("name is not that of a node"))?;
    Ok((name, request))
}

fn text<'s>(subject: &'s DistinguishedName, sort: &DnType) -> Option<&'s str> {
    match subject.get(sort)? {
        DnValue::Utf8String(text) => Some(text),
        DnValue::PrintableString(text) => Some(text.as_str()),
        _ => None,
    }
}

#[async_trait]
impl KubeletSigner for Authority {
    fn named(&self, csr: &[u8]) -> Result<(NodeName, BTreeSet<IpAddr>), PortError> {
        let named = self.admitted(csr).map(|(name, request)| {
            let addresses = request.params.subject_alt_names.iter().filter_map(|one| match one {
                SanType::IpAddress(address) => Some(*address),
                _ => None,
            });
            (name, addresses.collect())
        });
        named.map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "read a kubelet's request").because(error)
        })
    }

    /// Runs on a thread that may block: files are read, and signing with an RSA key takes time.
    async fn sign(&self, csr: &[u8]) -> Result<String, PortError> {
        let operation = "sign a kubelet's certificate";
        let (authority, csr) = (self.clone(), csr.to_vec());
        let signed = tokio::task::spawn_blocking(move || authority.certify(&csr)).await;
        let signed = signed
            .map_err(|error| PortError::new(PortErrorKind::Internal, operation).because(error));
        signed?.map_err(|error| {
            let kind = match error {
                AuthorityError::Request(_) | AuthorityError::Refused(_) => PortErrorKind::Invalid,
                _ => PortErrorKind::Internal,
            };
            PortError::new(kind, operation).because(error)
        })
    }
}

#[cfg(test)]
mod tests;
