use super::{kind, ok};
use crate::machine::MachineChange;
use crate::port::{
    AkRegistry, AuditEvent, ImageRegistry, MachineRegistry, PortErrorKind, SecretStore,
    UnclaimedLimit,
};
use crate::testing::sample;

/// The ports whose changes carry an audit line: one type for all, which implements this
/// automatically, or several over one audit log, such as machines in a cluster and secrets in a
/// vault.
pub trait AuditedPorts {
    /// The machines.
    fn machines(&self) -> &dyn MachineRegistry;
    /// The keys.
    fn aks(&self) -> &dyn AkRegistry;
    /// The images.
    fn images(&self) -> &dyn ImageRegistry;
    /// The disk keys.
    fn secrets(&self) -> &dyn SecretStore;
}

impl<R: MachineRegistry + AkRegistry + ImageRegistry + SecretStore> AuditedPorts for R {
    fn machines(&self) -> &dyn MachineRegistry {
        self
    }

    fn aks(&self) -> &dyn AkRegistry {
        self
    }

    fn images(&self) -> &dyn ImageRegistry {
        self
    }

    fn secrets(&self) -> &dyn SecretStore {
        self
    }
}

/// Checks that a change that carries an audit line writes it, and that a call that changes nothing writes
/// none; `make` returns empty registries over one audit log, `read` its content in order.
///
/// # Panics
/// If the contract is broken.
pub async fn audited_changes<P: AuditedPorts>(
    make: impl AsyncFn() -> P,
    read: impl AsyncFn(&P) -> Vec<AuditEvent>,
) {
    let ports = &make().await;
    let (machines, aks) = (ports.machines(), ports.aks());
    let (images, secrets) = (ports.images(), ports.secrets());
    refused_without_a_line(machines, aks, images).await;
    assert!(read(ports).await.is_empty(), "nothing was changed");
    let mut lines = Vec::new();
    let mut line = || {
        let line = sample::audit_event(lines.len() as u64);
        lines.push(line.clone());
        line
    };
    ok(machines.create(&sample::machine(1), UnclaimedLimit::Unlimited).await);
    ok(images.put(&sample::image(1)).await);
    let unused = &sample::line_at(9);
    let (key, path) = (sample::ak(1, 1), sample::secret_path(1));
    ok(aks.submit(&key, &line()).await);
    ok(aks.submit(&key, unused).await);
    ok(aks.bind(&sample::approved_ak(1, 1), &line()).await);
    for taken in [1, 2] {
        ok(aks.bind(&sample::approved_ak(taken, 1), unused).await);
    }
    ok(secrets.put_new(&path, &sample::secret(1), &line()).await);
    ok(secrets.put_new(&path, &sample::secret(2), unused).await);
    for _ in 0..2 {
        ok(aks.revoke(&key.fingerprint(), &line()).await);
        ok(images.revoke(&sample::image_name(1), &line()).await);
    }
    ok(machines.change(&sample::machine_id(1), MachineChange::Quarantine, &line()).await);
    for _ in 0..2 {
        ok(machines.revoke(&sample::machine_id(1), &line()).await);
    }
    let late = machines.change(&sample::machine_id(1), MachineChange::Release, unused).await;
    assert_eq!(kind(late), PortErrorKind::Conflict);
    assert_eq!(read(ports).await, lines);
}

async fn refused_without_a_line(
    machines: &dyn MachineRegistry,
    aks: &dyn AkRegistry,
    images: &dyn ImageRegistry,
) {
    let unused = &sample::line_at(9);
    ok(aks.bind(&sample::approved_ak(1, 99), unused).await);
    kind(aks.submit(&sample::ak(1, 99), unused).await);
    kind(aks.revoke(&sample::ak(1, 1).fingerprint(), unused).await);
    kind(images.revoke(&sample::image_name(1), unused).await);
    kind(machines.revoke(&sample::machine_id(1), unused).await);
}
