use super::{kind, ok};
use crate::port::{
    AkRegistry, AuditEvent, ImageRegistry, MachineRegistry, SecretStore, UnclaimedLimit,
};
use crate::testing::sample;

/// Checks that changes which take an audit line along write it, and calls that change nothing write
/// none; `make` gives empty registries over one audit log, `read` what is in it, in order.
///
/// # Panics
/// Where the contract is broken.
pub async fn audited_changes<R>(
    make: impl AsyncFn() -> R,
    read: impl AsyncFn(&R) -> Vec<AuditEvent>,
) where
    R: MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    let registry = &make().await;
    refused_without_a_line(registry).await;
    assert!(read(registry).await.is_empty(), "nothing was changed");
    let mut lines = Vec::new();
    let mut line = || {
        let line = sample::audit_event(lines.len() as u64);
        lines.push(line.clone());
        line
    };
    ok(registry.create(&sample::machine(1), UnclaimedLimit::Unlimited).await);
    ok(registry.put(&sample::image(1)).await);
    let unused = &sample::line_at(9);
    let (key, path) = (sample::ak(1, 1), sample::secret_path(1));
    ok(registry.submit(&key, &line()).await);
    ok(registry.submit(&key, unused).await);
    ok(registry.bind(&sample::approved_ak(1, 1), &line()).await);
    for taken in [1, 2] {
        ok(registry.bind(&sample::approved_ak(taken, 1), unused).await);
    }
    ok(registry.put_new(&path, &sample::secret(1), &line()).await);
    ok(registry.put_new(&path, &sample::secret(2), unused).await);
    for _ in 0..2 {
        ok(AkRegistry::revoke(registry, &key.fingerprint(), &line()).await);
        ok(ImageRegistry::revoke(registry, &sample::image_name(1), &line()).await);
        ok(MachineRegistry::revoke(registry, &sample::machine_id(1), &line()).await);
    }
    assert_eq!(read(registry).await, lines);
}

async fn refused_without_a_line<R>(registry: &R)
where
    R: MachineRegistry + AkRegistry + ImageRegistry,
{
    let unused = &sample::line_at(9);
    ok(registry.bind(&sample::approved_ak(1, 99), unused).await);
    kind(registry.submit(&sample::ak(1, 99), unused).await);
    kind(AkRegistry::revoke(registry, &sample::ak(1, 1).fingerprint(), unused).await);
    kind(ImageRegistry::revoke(registry, &sample::image_name(1), unused).await);
    kind(MachineRegistry::revoke(registry, &sample::machine_id(1), unused).await);
}
