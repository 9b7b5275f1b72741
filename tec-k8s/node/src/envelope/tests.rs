use std::sync::Arc;

use proptest::prelude::*;
use tec_core::testing::{Faulty, SeededEntropy, block_on};

use super::*;
use crate::testing::MemoryKeyService;

fn disk(number: u8) -> DataKeyId {
    let id = format!("00000000-0000-0000-0000-0000000000{number:02x}");
    DataKeyId::state_disk(id.parse().unwrap())
}

fn keys(service: &Arc<MemoryKeyService>, seed: u64) -> EnvelopeKeys {
    let entropy = Arc::new(SeededEntropy::new(seed));
    EnvelopeKeys::new(Arc::clone(service) as _, Arc::clone(service) as _, entropy)
}

#[test]
fn a_key_is_made_once_and_the_same_for_everybody_who_asks() {
    let service = Arc::new(MemoryKeyService::new());
    let first = block_on(keys(&service, 1).data_key(&disk(1), 32)).unwrap();
    for seed in 2..5 {
        let keys = keys(&service, seed);
        assert!(block_on(keys.data_key(&disk(1), 32)).unwrap().ct_eq(&first));
        let existing = block_on(keys.existing_data_key(&disk(1), 32)).unwrap();
        assert!(existing.ct_eq(&first));
    }
    let other = block_on(keys(&service, 9).data_key(&disk(2), 32)).unwrap();
    assert!(!other.ct_eq(&first));
}

#[test]
fn whoever_only_looks_makes_nothing() {
    let service = Arc::new(MemoryKeyService::new());
    let keys = keys(&service, 1);
    let error = block_on(keys.existing_data_key(&disk(1), 32)).unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::NotFound);
    assert_eq!(block_on(service.find(&disk(1))).unwrap(), None);
}

#[test]
fn a_wrapped_key_that_was_moved_to_another_id_is_refused() {
    let service = Arc::new(MemoryKeyService::new());
    let keys = keys(&service, 1);
    block_on(keys.data_key(&disk(1), 32)).unwrap();
    let stolen = block_on(service.find(&disk(1))).unwrap().unwrap();
    block_on(service.add(&disk(2), &stolen)).unwrap();
    for length in [32, 16] {
        let error = block_on(keys.data_key(&disk(2), length)).unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Invalid);
    }
    let error = block_on(keys.data_key(&disk(1), 31)).unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid, "of another length");
}

#[test]
fn lengths_that_no_service_wraps_are_refused() {
    let service = Arc::new(MemoryKeyService::new());
    for length in [0, MAX_WRAPPED_KEY + 1] {
        let error = block_on(keys(&service, 1).data_key(&disk(1), length)).unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Invalid);
    }
}

proptest! {
    #[test]
    fn whatever_is_lost_on_the_way_there_is_one_key(seed: u64, per_mille in 0_u32..700) {
        let service = Arc::new(MemoryKeyService::new());
        let faulty = Arc::new(Faulty::seeded(Arc::clone(&service), seed, per_mille));
        let mut seen: Option<SecretBytes> = None;
        for attempt in 0..40 {
            let entropy = Arc::new(SeededEntropy::new(attempt));
            let keys = EnvelopeKeys::new(Arc::clone(&faulty) as _, Arc::clone(&faulty) as _, entropy);
            if let Ok(key) = block_on(keys.data_key(&disk(1), 32)) {
                prop_assert!(seen.as_ref().is_none_or(|seen| seen.ct_eq(&key)));
                seen = Some(key);
            }
        }
        let settled = block_on(keys(&service, 99).data_key(&disk(1), 32)).unwrap();
        prop_assert!(seen.is_none_or(|seen| seen.ct_eq(&settled)));
    }
}
