//! Key services and stores, each on a real server where there is one: OpenBao, the KBS of this
//! project with a TPM, and moto for AWS (feature `cloud`).

mod openbao;
mod server;
mod trustee;

#[cfg(feature = "cloud")]
mod aws;

use std::sync::Arc;

use tec_core::node::derive::DataKeyId;
use tec_core::node::port::DataKeys;
use tec_core::node::port::KeyServices;
use tec_core::node::uri::KmsUri;
use tec_core::node::uri::StorageUri;
use tec_core::port::PortError;
use tec_k8s::node::KeyBackends;
use tec_support::SystemEntropy;

fn backends() -> KeyBackends {
    // A program does this first of all.
    let _ = rustls::crypto::ring::default_provider().install_default();
    KeyBackends::new(Arc::new(SystemEntropy))
}

async fn open(kms: &str, storage: &str) -> Result<Box<dyn DataKeys>, PortError> {
    let (kms, storage) = (
        KmsUri::parse(kms).unwrap(),
        StorageUri::parse(storage).unwrap(),
    );
    backends().open(kms, storage).await
}

fn disk(number: u8) -> DataKeyId {
    let id = format!("00000000-0000-0000-0000-0000000000{number:02x}");
    DataKeyId::state_disk(id.parse().unwrap())
}
