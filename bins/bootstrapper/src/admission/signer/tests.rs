//! Two control planes and a worker, as an API server lists them.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use http::{Request, Response};
use kube::client::Body;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tec_core::port::PortErrorKind;
use tec_core::system::{SystemClock, SystemEntropy};
use tec_node::host::KubeletIdentity as _;

use crate::instance::identity::Identity;

use super::*;

const NODES: &str = r#"{"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": [
    {"metadata": {"name": "c-1"}, "status": {"addresses": [
        {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "c-1"}]}},
    {"metadata": {"name": "c-2"}, "status": {"addresses": [
        {"type": "InternalIP", "address": "10.0.0.2"}]}},
    {"metadata": {"name": "w-2"}, "status": {"addresses": [
        {"type": "InternalIP", "address": "10.0.0.3"}]}}]}"#;
const PLANES: &str = "labelSelector=node-role.kubernetes.io%2Fcontrol-plane";

fn client() -> Client {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let query = request.uri().query().unwrap_or_default();
        assert!(!query.contains(PLANES), "workers have addresses, too");
        Ok::<_, Infallible>(Response::new(Body::from(NODES.as_bytes().to_vec())))
    });
    Client::new(service, "default")
}

fn authority(directory: &Path) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&pair).unwrap();
    fs::write(directory.join("ca.crt"), certificate.pem()).unwrap();
    fs::write(directory.join("ca.key"), pair.serialize_pem()).unwrap();
    Authority::new(directory, Arc::new(SystemClock), Arc::new(SystemEntropy))
}

#[tokio::test]
async fn no_node_is_certified_for_the_address_of_another_node() {
    let directory = tempfile::tempdir().unwrap();
    let authority = authority(directory.path());
    let signer = Signer::new(authority.clone(), client());
    for (node, address, is_certified) in [
        ("w-1", [10, 0, 0, 9], true),
        ("w-1", [10, 0, 0, 1], false),
        ("c-2", [10, 0, 0, 1], false),
        ("w-1", [10, 0, 0, 3], false),
        // Nodes that ask again.
        ("w-2", [10, 0, 0, 3], true),
        ("c-2", [10, 0, 0, 2], true),
    ] {
        let node = node.parse().unwrap();
        let identity = Identity::generate(&node, address.into(), authority.clone()).unwrap();
        let signed = signer.sign(&identity.key().request).await;
        assert_eq!(signed.is_ok(), is_certified, "{node} {address:?}");
        if let Err(error) = signed {
            assert_eq!(error.kind(), PortErrorKind::Invalid);
        }
    }
}
