//! Provisioning: a machine gets its disk key, exactly once.

use crate::id::{MachineId, ResourcePath};
use crate::luks::LuksKeyGenerator;
use crate::port::{
    AuditAction, AuditEvent, Clock, Entropy, EntropyRng, PortError, PutOutcome, SecretStore,
};

/// Ports for provisioning.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ProvisionPorts<'a> {
    /// Where keys are stored.
    pub secrets: &'a dyn SecretStore,
    /// Generates a key.
    pub generator: &'a dyn LuksKeyGenerator,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// Randomness for the key.
    pub entropy: &'a dyn Entropy,
}

impl<'a> ProvisionPorts<'a> {
    /// Bundles the ports.
    pub fn new(
        secrets: &'a dyn SecretStore,
        generator: &'a dyn LuksKeyGenerator,
        clock: &'a dyn Clock,
        entropy: &'a dyn Entropy,
    ) -> Self {
        Self { secrets, generator, clock, entropy }
    }
}

/// Ensures that a machine has a disk key. The key is durable when this returns.
///
/// # Security
/// An existing key is never regenerated and never overwritten: if several callers race, one key
/// survives, and the store decides which.
pub async fn provision(
    ports: ProvisionPorts<'_>,
    machine: MachineId,
) -> Result<PutOutcome, PortError> {
    let path = ResourcePath::luks_root(&machine);
    if ports.secrets.exists(&path).await? {
        return Ok(PutOutcome::Existed);
    }
    let key = ports.generator.generate(&mut EntropyRng::new(ports.entropy)).into_bytes();
    let (now, action) = (ports.clock.now(), AuditAction::KeyGenerated);
    let line = AuditEvent::new(now, action, Some(machine), path.as_str());
    ports.secrets.put_new(&path, &key, &line).await
}
