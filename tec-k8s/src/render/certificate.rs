//! Certificates that cert-manager issues, for servers whose Secret the cluster object does not name.

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;

use super::meta::{Owner, RenderError};
use super::name::{Component, KBS_SERVICE};
use crate::api::{CertificateIssuer, TlsServer, TrustedExecutionCluster};

/// The group of cert-manager's kinds.
pub const CERT_MANAGER: &str = "cert-manager.io";

/// `Certificate` of cert-manager, reduced to the fields that are used here.
pub fn certificate_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(CERT_MANAGER, "v1", "Certificate"))
}

/// One Certificate for each server without a Secret of its own, named after its Secret.
///
/// # Errors
/// The cluster object lacks what the API server gives every stored object.
pub fn certificates(
    cluster: &TrustedExecutionCluster,
    issuer: &CertificateIssuer,
) -> Result<Vec<DynamicObject>, RenderError> {
    let owner = Owner::new(cluster)?;
    let is_managed = |server: &TlsServer| cluster.named_secret(*server).is_none();
    let certificate = |server: TlsServer| {
        let secret = server.managed_secret();
        let (addresses, names): (Vec<_>, Vec<_>) = server_names(cluster, owner.namespace(), server)
            .into_iter()
            .partition(|name| name.parse::<std::net::IpAddr>().is_ok());
        let mut object = DynamicObject::new(secret, &certificate_resource());
        object.metadata = owner.metadata(secret, component_of(server));
        object.data = json!({"spec": {
            "secretName": secret,
            "dnsNames": names,
            "ipAddresses": addresses,
            "usages": ["digital signature", "server auth"],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": CERT_MANAGER},
        }});
        object
    };
    Ok(TlsServer::ALL.into_iter().filter(is_managed).map(certificate).collect())
}

fn component_of(server: TlsServer) -> Component {
    match server {
        TlsServer::KeyBroker => Component::Trustee,
        TlsServer::Registration => Component::RegisterServer,
        TlsServer::AttestationKeys => Component::AttestationKeyRegister,
    }
}

/// The names of the Service, and the one that nodes use.
pub(crate) fn server_names(
    cluster: &TrustedExecutionCluster,
    namespace: &str,
    server: TlsServer,
) -> Vec<String> {
    let spec = &cluster.spec;
    let (service, public) = match server {
        TlsServer::KeyBroker => (KBS_SERVICE, &spec.public_trustee_addr),
        TlsServer::Registration => {
            (Component::RegisterServer.deployment(), &spec.public_register_server_addr)
        }
        TlsServer::AttestationKeys => (
            Component::AttestationKeyRegister.deployment(),
            &spec.public_attestation_key_register_addr,
        ),
    };
    let public = public.as_deref().and_then(host_of).map(str::to_owned);
    public
        .into_iter()
        .chain([
            service.to_owned(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ])
        .collect()
}

/// The host of `host[:port]`; `None` if no certificate could name it.
fn host_of(address: &str) -> Option<&str> {
    let host = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => address.split(':').next()?,
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    (is_address || (!host.is_empty() && host.chars().all(is_name))).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_its_name_without_the_port() {
        for (address, host) in [
            ("kbs.example:8080", Some("kbs.example")),
            ("kbs.example", Some("kbs.example")),
            ("192.0.2.1:8080", Some("192.0.2.1")),
            ("[2001:db8::1]:8080", Some("2001:db8::1")),
            ("not a host", None),
            ("", None),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }
}
