//! Key services and stores, each on a real server if there is one: OpenBao, the KBS of this project with a
//! TPM, and moto for AWS (feature `aws`).

pub(crate) mod openbao;
mod server;
mod trustee;

#[cfg(feature = "aws")]
mod aws;

use std::sync::Arc;

use tec_core::port::PortError;
use tec_node::derive::DataKeyId;
use tec_node::host::KeyBackends;
use tec_node::port::{DataKeys, KeyServices};
use tec_node::uri::{KmsUri, StorageUri};
use tec_support::SystemEntropy;

fn backends() -> KeyBackends {
    // As a program does on start.
    let _ = rustls::crypto::ring::default_provider().install_default();
    KeyBackends::new(Arc::new(SystemEntropy))
}

async fn open(kms: &str, storage: &str) -> Result<Box<dyn DataKeys>, PortError> {
    let (kms, storage) = (KmsUri::parse(kms).unwrap(), StorageUri::parse(storage).unwrap());
    backends().open(kms, storage).await
}

fn disk(number: u8) -> DataKeyId {
    let id = format!("00000000-0000-0000-0000-0000000000{number:02x}");
    DataKeyId::state_disk(id.parse().unwrap())
}

/// A member of a response that a test requires.
fn text<'v>(answer: &'v serde_json::Value, pointer: &str) -> &'v str {
    answer.pointer(pointer).unwrap().as_str().unwrap()
}

/// Escapes every byte, since queries and forms accept any text.
#[cfg(feature = "aws")]
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        escaped.push('%');
        escaped.push_str(&hex::encode_upper([byte]));
    }
    escaped
}
