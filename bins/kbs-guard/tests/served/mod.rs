//! Servers on loopback, and a client that fetches disk keys from them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tec_core::endpoint::Endpoint;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::port::Attester;
use tec_core::secret::SecretBytes;
use tec_support::SystemEntropy;
use tec_trustee::client::{Deadlines, RcarClient, RcarError};

pub(crate) const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
pub(crate) const OTHER: &str = "0b5e1f4a-9d7b-4c38-8a51-5f0f9f6a7c11";

pub(crate) fn machine(id: &str) -> MachineId {
    id.parse().unwrap()
}

pub(crate) async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// The disk key of a machine.
pub(crate) async fn fetch(
    server: SocketAddr,
    of: &str,
    attester: &dyn Attester,
) -> Result<SecretBytes, RcarError> {
    let endpoint = Endpoint::new(format!("http://{server}").parse().unwrap(), String::new());
    let deadlines = Deadlines::new(Duration::from_secs(5), Duration::from_secs(10));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let entropy = Arc::new(SystemEntropy);
    let client = RcarClient::new(&[endpoint], deadlines, &provider, entropy).unwrap();
    let path = ResourcePath::luks_root(&machine(of));
    client.fetch(&path, attester).await
}
