//! The contracts of key services and their stores.

use super::data_key_id;
use crate::derive::DataKeyId;
use crate::envelope::{KeyWrapper, WrappedKeys};
use futures::future::join_all;
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

/// Checks the contract of [`KeyWrapper`].
///
/// # Panics
/// If the contract is broken.
pub async fn key_wrapper(wrapper: &dyn KeyWrapper) {
    let id = data_key_id(1);
    for length in [33, 64, 96] {
        let plain = SecretBytes::new((0..length).collect());
        let wrapped = ok(wrapper.wrap(&id, &plain).await);
        let hidden = plain.expose("look for it");
        assert!(
            !wrapped.windows(hidden.len()).any(|part| part == hidden),
            "the key is not wrapped"
        );
        assert!(ok(wrapper.unwrap(&id, &wrapped).await).ct_eq(&plain));
    }
    for stranger in [b"".as_slice(), b"stranger", &[0; 256]] {
        let refused = kind(wrapper.unwrap(&id, stranger).await);
        assert_eq!(refused, PortErrorKind::Invalid, "never wrapped with this key");
    }
}

/// Checks the contract of [`WrappedKeys`]; `store` is empty.
///
/// # Panics
/// If the contract is broken.
pub async fn wrapped_keys(store: &dyn WrappedKeys) {
    let (one, other) = (data_key_id(1), data_key_id(2));
    assert_eq!(ok(store.find(&one).await), None);
    assert_eq!(ok(store.add(&one, b"first").await), CreateOutcome::Created);
    for again in [b"first".as_slice(), b"second"] {
        assert_eq!(ok(store.add(&one, again).await), CreateOutcome::Existed);
        assert_eq!(ok(store.find(&one).await), Some(b"first".to_vec()));
    }
    assert_eq!(ok(store.find(&other).await), None);
    one_of_many_at_once_is_stored(store, &other).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let secret = DataKeyId::measurement_secret();
    assert_eq!(ok(store.add(&secret, &all_bytes).await), CreateOutcome::Created);
    assert_eq!(ok(store.find(&secret).await), Some(all_bytes));
}

async fn one_of_many_at_once_is_stored(store: &dyn WrappedKeys, id: &DataKeyId) {
    let wrapped: Vec<Vec<u8>> = (0..8).map(|number| vec![number; 40]).collect();
    let answers = join_all(wrapped.iter().map(|one| store.add(id, one))).await;
    let outcomes: Vec<_> = answers.into_iter().map(ok).collect();
    let created = |outcome: &&CreateOutcome| **outcome == CreateOutcome::Created;
    assert_eq!(outcomes.iter().filter(created).count(), 1);
    let winner = outcomes.iter().position(|outcome| created(&outcome));
    let winner = winner.and_then(|at| wrapped.get(at)).cloned();
    assert_eq!(ok(store.find(id).await), winner);
}

/// The value of a call that must succeed.
#[track_caller]
#[expect(clippy::panic, reason = "a suite reports a broken contract by panicking")]
fn ok<T>(answer: Result<T, PortError>) -> T {
    match answer {
        Ok(value) => value,
        Err(error) => panic!("the call must succeed: {}", tec_core::port::chain(&error)),
    }
}

/// The failure kind of a call that must fail.
#[track_caller]
#[expect(clippy::panic, reason = "a suite reports a broken contract by panicking")]
fn kind<T: std::fmt::Debug>(answer: Result<T, PortError>) -> PortErrorKind {
    match answer {
        Ok(value) => panic!("the call must fail, and gave {value:?}"),
        Err(error) => error.kind(),
    }
}
