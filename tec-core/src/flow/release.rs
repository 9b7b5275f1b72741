//! Release: an attested machine gets the key of its own disk.

use crate::attest::{Attempt, Attested};
use crate::boot::{BootState, BootStates, LiveImages, Unpinned};
use crate::code::Code;
use crate::explain::Gate;
use crate::flow::{Closed, taken_back};
use crate::id::{MachineId, ResourcePath};
use crate::port::{
    AkRegistry, AuditAction, AuditEvent, AuditSink, Clock, DiskKeys, ImageRegistry, PortError,
    SecretStore,
};
use crate::rotation::KeyMark;
use crate::secret::SecretBytes;

/// Ports for a release.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReleasePorts<'a> {
    /// The attestation keys and their machines.
    pub aks: &'a dyn AkRegistry,
    /// The approved images.
    pub images: &'a dyn ImageRegistry,
    /// The states that machines with these images can be in.
    pub states: &'a dyn BootStates,
    /// The disk keys.
    pub secrets: &'a dyn SecretStore,
    /// Where the release is recorded.
    pub audit: &'a dyn AuditSink,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// The disk keys while one replaces the other; `None` if no key is rotated.
    pub disk_keys: Option<&'a dyn DiskKeys>,
    /// The mark that the machine showed.
    pub shown: Option<KeyMark>,
}

impl<'a> ReleasePorts<'a> {
    /// Bundles the ports.
    pub fn new(
        aks: &'a dyn AkRegistry,
        images: &'a dyn ImageRegistry,
        states: &'a dyn BootStates,
        secrets: &'a dyn SecretStore,
        audit: &'a dyn AuditSink,
        clock: &'a dyn Clock,
    ) -> Self {
        Self { aks, images, states, secrets, audit, clock, disk_keys: None, shown: None }
    }

    /// Releases keys to a running system too, if it showed the mark of one of them.
    pub fn with_disk_keys(
        mut self,
        disk_keys: Option<&'a dyn DiskKeys>,
        shown: Option<KeyMark>,
    ) -> Self {
        (self.disk_keys, self.shown) = (disk_keys, shown);
        self
    }
}

/// No key was released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// A gate failed; the attempt's ladder shows which and why.
    #[error("refused with {0}")]
    Refused(Code),
    /// A registry or the store failed; nothing was decided.
    #[error("cannot look up the data for the release")]
    Port(#[from] PortError),
}

/// Releases the key at `path` to a machine that attested, and records it in `attempt`.
///
/// # Errors
/// `Refused` if the path is not the machine's own, if its initramfs had ended, or if the machine, its key or an image
/// that the boot depends on has been revoked since the attestation: revocation takes effect immediately.
///
/// # Security
/// The audit line is durable before the key is released; if it cannot be written, no key is
/// released.
///
/// A key is released while the initramfs runs, as PCR 11 shows: what follows it is a root file system that nobody
/// measured, and that may have been replaced. A machine whose TPM never attested in an initramfs, or that is in its
/// first boot, is being set up. One whose key is rotated needs the old key and the new one in its running system: it
/// shows that it has one of them, so that it already opens the disk.
pub async fn release(
    ports: ReleasePorts<'_>,
    attested: &Attested,
    path: &ResourcePath,
    attempt: &mut Attempt,
) -> Result<SecretBytes, ReleaseError> {
    let closed = closed_gate(ports, attested, path, attempt).await?;
    if let Some(closed) = closed {
        return refuse(ports, attempt, closed).await;
    }
    let still = explained(ports, attested).await?;
    let Some((booted, unpinned)) = still else {
        let why = format!("the approval of {} ended", attested.booted());
        return refuse(ports, attempt, Closed::new(Gate::Pcrs, why)).await;
    };
    attempt.explained_by(&booted, unpinned);
    attempt.ladder.pass(Gate::ReleasePolicy, "its own path");
    let Some(secret) = ports.secrets.find(path).await? else {
        let closed = Closed::new(Gate::Key, format!("nothing at {path}"));
        return refuse(ports, attempt, closed).await;
    };
    let event = AuditEvent::new(
        ports.clock.now(),
        AuditAction::KeyReleased,
        Some(attested.machine()),
        format!("{path} {} attempt {}", booted.sentence(), attested.attempt()),
    );
    ports.audit.append(&event).await?;
    attempt.ladder.pass(Gate::Key, "released");
    Ok(secret)
}

async fn closed_gate(
    ports: ReleasePorts<'_>,
    attested: &Attested,
    path: &ResourcePath,
    attempt: &Attempt,
) -> Result<Option<Closed>, PortError> {
    let own = attested.machine();
    if path.disk_key_of() != Some(own) {
        let why = format!("machine {own} asked for {path}, which is not its own");
        return Ok(Some(Closed::new(Gate::ReleasePolicy, why)));
    }
    if let Some(closed) = taken_back(ports.aks, own, &attested.ak()).await? {
        return Ok(Some(closed));
    }
    // Last: its code says that all the rest is right. Only then are the keys read.
    match Closed::after_initramfs(attempt) {
        Some(_) if has_key(ports, &own).await? => Ok(None),
        closed => Ok(closed),
    }
}

/// Whether the machine showed that it has one of its keys.
async fn has_key(ports: ReleasePorts<'_>, own: &MachineId) -> Result<bool, PortError> {
    let (Some(keys), Some(shown)) = (ports.disk_keys, ports.shown) else {
        return Ok(false);
    };
    Ok(keys.rotation(own).await?.is_some_and(|kept| kept.has(&shown)))
}

/// Explains the quoted registers by the images that are live now. An image may have been revoked,
/// or replaced by another of the same name, since the attestation.
async fn explained(
    ports: ReleasePorts<'_>,
    attested: &Attested,
) -> Result<Option<(BootState, Unpinned)>, PortError> {
    let images = ports.images.list().await?;
    let live = LiveImages::at(&images, ports.clock.now());
    let pins = attested.pins();
    let booted = pins.admit(ports.states, &live, attested.judged()).into_iter().next();
    Ok(booted.map(|booted| {
        let unpinned = pins.unpinned_in(&booted, &images);
        (booted, unpinned)
    }))
}

async fn refuse(
    ports: ReleasePorts<'_>,
    attempt: &mut Attempt,
    closed: Closed,
) -> Result<SecretBytes, ReleaseError> {
    let code = closed.code;
    closed.note(&mut attempt.ladder);
    let event = AuditEvent::key_refused(ports.clock.now(), attempt, code);
    ports.audit.append(&event).await?;
    Err(ReleaseError::Refused(code))
}
