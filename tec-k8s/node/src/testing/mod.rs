//! A node and a key service in memory, the conformance suites of key services, and attestation documents that
//! prove nothing (feature `test-util`).

#[cfg(feature = "atls")]
mod atls;
mod faulty;
mod key_service;
mod node;
mod suite;

use tec_core::testing::sample;

#[cfg(feature = "atls")]
pub use self::atls::{DangerousDummyIssuer, DangerousDummyValidator};
pub use self::key_service::MemoryKeyService;
pub use self::node::{MemoryNode, NodeRecord};
pub use self::suite::{key_wrapper, wrapped_keys};
use crate::derive::DataKeyId;

/// ID of the key of a state disk.
pub fn data_key_id(number: u64) -> DataKeyId {
    let machine = sample::machine_id(number).to_string();
    match machine.parse() {
        Ok(disk) => DataKeyId::state_disk(disk),
        Err(_) => unreachable!("a machine's id is a UUID"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tec_core::testing::{Faulty, block_on};

    use super::MemoryKeyService;

    #[test]
    fn the_double_and_its_fault_wrapper_keep_the_contracts() {
        block_on(async {
            super::key_wrapper(&MemoryKeyService::new()).await;
            super::wrapped_keys(&MemoryKeyService::new()).await;
            super::key_wrapper(&Faulty::healthy(Arc::new(MemoryKeyService::new()))).await;
            super::wrapped_keys(&Faulty::healthy(Arc::new(MemoryKeyService::new()))).await;
        });
    }
}
