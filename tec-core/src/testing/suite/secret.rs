use super::{at_once, ok};
use crate::id::ResourcePath;
use crate::port::{PutOutcome, SecretStore};
use crate::secret::SecretBytes;
use crate::testing::sample;

/// Two paths of keys.
type Paths = [ResourcePath; 2];

/// Checks the contract of [`SecretStore`]; `make` returns a store without keys. If recovery keys
/// are removed with their machine, the first sample machine must exist.
///
/// # Panics
/// If the contract is broken.
pub async fn secret_store<S: SecretStore>(make: impl AsyncFn() -> S) {
    for paths in [
        [1, 2].map(sample::secret_path),
        [1, 2].map(sample::recovery_path),
        [sample::recovery_path(1), sample::secret_path(1)],
    ] {
        put_new_never_overwrites(&make().await, &paths).await;
        one_of_many_at_once_is_stored(&make().await, &paths).await;
        remove_repeats(&make().await, &paths).await;
    }
    any_bytes_come_back_as_they_were(&make().await).await;
}

async fn holds(store: &dyn SecretStore, path: &ResourcePath, secret: &SecretBytes) -> bool {
    let found = ok(store.find(path).await);
    found.is_some_and(|found| found.ct_eq(secret))
}

async fn put_new_never_overwrites(store: &dyn SecretStore, [path, other]: &Paths) {
    assert!(!ok(store.exists(path).await));
    assert!(ok(store.find(path).await).is_none());
    assert_eq!(
        ok(store.put_new(path, &sample::sealed(1), &sample::line()).await),
        PutOutcome::Stored
    );
    assert!(ok(store.exists(path).await));
    for number in [1, 2] {
        let outcome = ok(store.put_new(path, &sample::sealed(number), &sample::line()).await);
        assert_eq!(outcome, PutOutcome::Existed);
        assert!(holds(store, path, &sample::sealed(1)).await, "left as it was");
    }
    assert!(!ok(store.exists(other).await));
}

async fn one_of_many_at_once_is_stored(store: &dyn SecretStore, [path, _]: &Paths) {
    let secrets: Vec<_> = (1..=8).map(sample::sealed).collect();
    let line = sample::line();
    let put = |secret| store.put_new(path, secret, &line);
    let answers = at_once(secrets.iter().map(put).collect()).await;
    let outcomes: Vec<_> = answers.into_iter().map(ok).collect();
    let mut winners = outcomes.iter().zip(&secrets);
    let stored = winners.find(|(outcome, _)| **outcome == PutOutcome::Stored);
    let (_, winner) = stored.unwrap_or_else(|| unreachable!("one of the calls must store"));
    assert!(winners.all(|(outcome, _)| *outcome == PutOutcome::Existed), "only one stores");
    assert!(holds(store, path, winner).await);
}

async fn any_bytes_come_back_as_they_were(store: &dyn SecretStore) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let contents = [Vec::new(), vec![0], all_bytes, vec![0xa5; 16 * 1024]];
    for (number, content) in (1..).zip(&contents) {
        let secret = SecretBytes::new(content.clone());
        ok(store.put_new(&sample::secret_path(number), &secret, &sample::line()).await);
    }
    for (number, content) in (1..).zip(contents) {
        assert!(holds(store, &sample::secret_path(number), &SecretBytes::new(content)).await);
    }
}

async fn remove_repeats(store: &dyn SecretStore, [path, other]: &Paths) {
    ok(store.remove(path).await);
    ok(store.put_new(path, &sample::sealed(1), &sample::line()).await);
    ok(store.put_new(other, &sample::sealed(2), &sample::line()).await);
    for _ in 0..2 {
        ok(store.remove(path).await);
        assert!(!ok(store.exists(path).await));
        assert!(ok(store.find(path).await).is_none());
    }
    assert!(holds(store, other, &sample::sealed(2)).await);
    assert_eq!(
        ok(store.put_new(path, &sample::sealed(3), &sample::line()).await),
        PutOutcome::Stored
    );
    assert!(holds(store, path, &sample::sealed(3)).await);
}
