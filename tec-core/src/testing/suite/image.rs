use super::{kind, ok};
use crate::port::{ImageRegistry, PortErrorKind};
use crate::testing::sample;

/// Checks the contract of [`ImageRegistry`]; `make` returns an empty registry.
///
/// # Panics
/// If the contract is broken.
pub async fn image_registry<R: ImageRegistry>(make: impl AsyncFn() -> R) {
    put_adds_and_replaces(&make().await).await;
    list_is_in_order_of_names(&make().await).await;
    revoke_marks_and_repeats(&make().await).await;
}

async fn put_adds_and_replaces(registry: &dyn ImageRegistry) {
    let mut image = sample::image(1);
    assert_eq!(ok(registry.find(&image.name).await), None);
    for _ in 0..2 {
        ok(registry.put(&image).await);
        assert_eq!(ok(registry.find(&image.name).await), Some(image.clone()));
    }
    image.reference.push_str("-other");
    image.expected = sample::image(2).expected;
    image.expires_at = Some(sample::time(500));
    ok(registry.put(&image).await);
    assert_eq!(ok(registry.list().await), [image]);
    assert_eq!(ok(registry.find(&sample::image_name(2)).await), None);
}

async fn list_is_in_order_of_names(registry: &dyn ImageRegistry) {
    assert!(ok(registry.list().await).is_empty());
    for number in [3, 1, 2] {
        ok(registry.put(&sample::image(number)).await);
    }
    ok(registry.revoke(&sample::image_name(2), &sample::line_at(9)).await);
    let names: Vec<_> = ok(registry.list().await).into_iter().map(|image| image.name).collect();
    assert_eq!(names, [1, 2, 3].map(sample::image_name), "revoked ones too");
}

async fn revoke_marks_and_repeats(registry: &dyn ImageRegistry) {
    let missing = registry.revoke(&sample::image_name(1), &sample::line_at(9)).await;
    assert_eq!(kind(missing), PortErrorKind::NotFound);
    let mut image = sample::image(1);
    ok(registry.put(&image).await);
    ok(registry.put(&sample::image(2)).await);
    ok(registry.revoke(&image.name, &sample::line_at(9)).await);
    image.revoked_at = Some(sample::time(9));
    assert_eq!(ok(registry.find(&image.name).await), Some(image.clone()));
    ok(registry.revoke(&image.name, &sample::line_at(20)).await);
    let again = ok(registry.find(&image.name).await);
    assert!(again.is_some_and(|image| image.revoked_at.is_some()), "it stays revoked");
    assert_eq!(ok(registry.find(&sample::image_name(2)).await), Some(sample::image(2)));
}
