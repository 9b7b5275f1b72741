//! Configuration that nodes receive: addresses from the cluster object, with the CAs of their certificates.

use tec_core::endpoint::{BaseUrl, Endpoint, ParseBaseUrlError};
use tec_core::ignition::ClevisPinGenerator;

use crate::api::{AdditionalTrusteeError, TlsServer, TrustedExecutionCluster};

/// CA bundles, PEM: `ca.crt` of the Secrets that the cluster object names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authorities {
    /// CA of the key broker.
    pub kbs: Option<String>,
    /// CA of the server that accepts attestation keys.
    pub attestation_key_register: Option<String>,
}

impl Authorities {
    /// Uses these bundles.
    pub fn new(kbs: Option<String>, attestation_key_register: Option<String>) -> Self {
        Self { kbs, attestation_key_register }
    }
}

/// Nodes cannot be given their addresses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinsError {
    /// The cluster object names no address of the key broker.
    #[error("the cluster object names no publicTrusteeAddr yet")]
    NoAddress,
    /// An address is malformed.
    #[error("{field} is not host[:port]: {address:?}")]
    Address {
        /// Field of the cluster object.
        field: &'static str,
        /// The value.
        address: String,
        /// What is wrong with it.
        #[source]
        source: ParseBaseUrlError,
    },
    /// A further key broker is invalid.
    #[error("cannot build the list of key brokers for nodes")]
    AdditionalTrustee(#[from] AdditionalTrusteeError),
    /// A Secret is named, but its CA is not available.
    #[error("the Secret of {0} has no ca.crt")]
    NoAuthority(&'static str),
}

/// The generator of pins and Ignition configs of a cluster.
///
/// # Errors
/// There is no address, an address is malformed, the CA of a named Secret is missing, or a further key broker
/// is invalid.
///
/// # Security
/// A Secret, named or issued, means HTTPS with its CA; only `dangerousPlainHttp` means plain HTTP.
pub fn pins(
    cluster: &TrustedExecutionCluster,
    authorities: &Authorities,
) -> Result<ClevisPinGenerator, PinsError> {
    let spec = &cluster.spec;
    let address = spec.public_trustee_addr.as_deref();
    let kbs = endpoint(
        ("publicTrusteeAddr", address.ok_or(PinsError::NoAddress)?),
        (TlsServer::KeyBroker.field(), cluster.tls_secret(TlsServer::KeyBroker)),
        authorities.kbs.as_deref(),
    )?;
    let more = cluster.additional_trustees()?;
    let pins = more.into_iter().fold(ClevisPinGenerator::new(kbs), ClevisPinGenerator::also);
    let Some(address) = spec.public_attestation_key_register_addr.as_deref() else {
        return Ok(pins);
    };
    let register = endpoint(
        ("publicAttestationKeyRegisterAddr", address),
        (TlsServer::AttestationKeys.field(), cluster.tls_secret(TlsServer::AttestationKeys)),
        authorities.attestation_key_register.as_deref(),
    )?;
    Ok(pins.register_ak_at(register))
}

fn endpoint(
    (field, address): (&'static str, &str),
    (secret_field, secret): (&'static str, Option<&str>),
    authority: Option<&str>,
) -> Result<Endpoint, PinsError> {
    let (scheme, ca) = match (secret, authority) {
        (None, _) => ("http", ""),
        (Some(_), Some(ca)) => ("https", ca),
        (Some(_), None) => {
            return Err(PinsError::NoAuthority(secret_field));
        }
    };
    let url: Result<BaseUrl, _> = format!("{scheme}://{address}").parse();
    let url =
        url.map_err(|source| PinsError::Address { field, address: address.to_owned(), source })?;
    Ok(Endpoint::new(url, ca))
}

#[cfg(test)]
mod tests {
    use tec_core::ignition::PinGenerator as _;

    use super::*;
    use crate::api::{AdditionalTrustee, TrustedExecutionClusterSpec};

    fn with_secret() -> TrustedExecutionCluster {
        let spec = TrustedExecutionClusterSpec {
            public_trustee_addr: Some("kbs.example.com:8080".to_owned()),
            trustee_secret: Some("kbs-tls".to_owned()),
            ..TrustedExecutionClusterSpec::default()
        };
        TrustedExecutionCluster::new("tec", spec)
    }

    #[test]
    fn a_named_secret_means_https_with_its_ca() {
        let authorities = Authorities::new(Some("the CA".to_owned()), None);
        let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
        let pin = pins(&with_secret(), &authorities).unwrap().pin_config(&id);
        assert_eq!(pin.servers[0].url.as_str(), "https://kbs.example.com:8080");
        assert_eq!(pin.servers[0].cert, "the CA");
        assert!(pin.attestation_key.is_none());
    }

    #[test]
    fn further_key_brokers_come_after_that_of_the_cluster_or_nodes_get_none() {
        let authorities = Authorities::new(Some("the CA".to_owned()), None);
        let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
        let mut cluster = with_secret();
        let other = AdditionalTrustee::dangerous_plain_http("b.example");
        cluster.spec.additional_trustees = vec![other.clone()];
        let pin = pins(&cluster, &authorities).unwrap().pin_config(&id);
        let urls: Vec<_> = pin.servers.iter().map(|server| server.url.as_str()).collect();
        assert_eq!(urls, ["https://kbs.example.com:8080", "http://b.example"]);
        cluster.spec.additional_trustees.push(other);
        let error = pins(&cluster, &authorities).unwrap_err();
        assert!(matches!(error, PinsError::AdditionalTrustee(_)));
    }

    #[test]
    fn without_the_ca_of_a_named_secret_nodes_are_told_nothing() {
        let error = pins(&with_secret(), &Authorities::default()).unwrap_err();
        let field = "trusteeSecret";
        assert!(matches!(error, PinsError::NoAuthority(f) if f == field));
    }

    #[test]
    fn without_an_address_nodes_are_told_nothing() {
        let cluster = TrustedExecutionCluster::new("tec", TrustedExecutionClusterSpec::default());
        let error = pins(&cluster, &Authorities::default()).unwrap_err();
        assert!(matches!(error, PinsError::NoAddress));
    }

    #[test]
    fn an_address_with_a_scheme_is_refused() {
        let mut cluster = with_secret();
        cluster.spec.trustee_secret = None;
        cluster.spec.dangerous_plain_http = Some(true);
        cluster.spec.public_trustee_addr = Some("https://kbs.example.com".to_owned());
        let error = pins(&cluster, &Authorities::default()).unwrap_err();
        assert!(matches!(error, PinsError::Address { .. }));
    }
}
